"""Opens the store of media and clients' files: the data folder, another folder, or a bucket (``store.media_url``)."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import structlog

from gateway.deployment import Deployment, Job
from gateway.options import AppOptions
from gateway.server.context import MediaStores
from gateway.storage.database import DatabaseStartupError
from gateway.storage.file_folder import FileFolder
from gateway.storage.media_files import MediaFiles
from gateway.storage.media_location import BucketAddress, parse_location

if TYPE_CHECKING:  # its driver is an extra
    from gateway.cluster.membership.node import ClusterNode

IMAGES, VIDEOS, FILES = "media", "videos", "files"
"""The folders of the store; they have the same names in every kind of store."""
DRAFTS = "media-drafts"
"""The folder of this machine for drafts that will be moved to a bucket."""
WATCH_INTERVAL_S = 5.0
UNSHARED_WARNING = (
    "Images, videos and clients' files are on this node alone: no other node can read them (store.media_url)"
)

log = structlog.stdlib.get_logger(__name__)


def open_media_stores(options: AppOptions) -> MediaStores:
    """Open the media store.

    Raises ``DatabaseStartupError`` if the folder at ``store.media_url`` is unusable, ``OSError`` if the data folder is.
    """
    location = parse_location(options.config.store.media_url)
    if isinstance(location, BucketAddress):
        return _open_bucket(location, options.folder.path / DRAFTS)
    if location is None:
        return _open_folder(options.folder.path)
    if not os.access(location, os.R_OK | os.W_OK | os.X_OK):
        # The folder is not created here: below a mount point without its mount, that would make a second, empty store.
        reason = "cannot be used by this user" if location.is_dir() else "does not exist"
        raise DatabaseStartupError(f"store.media_url: the folder {location} {reason}")
    try:
        return attrs.evolve(_open_folder(location), shared=True)
    except OSError as error:
        raise DatabaseStartupError(f"store.media_url: the folder {location} cannot be used: {error}") from error


def _open_folder(folder: Path) -> MediaStores:
    images, videos = MediaFiles(folder / IMAGES), MediaFiles(folder / VIDEOS)
    return MediaStores(images, videos, FileFolder(folder / FILES), folder)


def _open_bucket(address: BucketAddress, local_folder: Path) -> MediaStores:
    from gateway.storage.bucket.client import Bucket  # noqa: PLC0415 - obstore is an extra
    from gateway.storage.bucket.files import BucketFiles  # noqa: PLC0415
    from gateway.storage.bucket.media import BucketMedia  # noqa: PLC0415

    shutil.rmtree(local_folder, ignore_errors=True)  # left by a crash; the folder is locked, so nothing else uses it
    drafts, bucket = MediaFiles(local_folder), Bucket(address)
    images, videos = BucketMedia(bucket, IMAGES, drafts), BucketMedia(bucket, VIDEOS, drafts)
    return MediaStores(images, videos, BucketFiles(bucket, drafts, local_folder), None, shared=True)


def sweep_store(stores: MediaStores, deployment: Deployment, sweep: Job) -> Job:
    """Return a job that deletes old files: on every node for a local store, on the leader for a shared one."""
    return deployment.run_once(sweep) if stores.shared else sweep


async def watch_nodes(node: "ClusterNode") -> None:
    """Log a warning as soon as a second node is live: other nodes cannot read the media stored on this one."""
    while node.live_count <= 1:  # noqa: ASYNC110 - the node count changes with each beat, without an event
        await asyncio.sleep(WATCH_INTERVAL_S)
    log.warning("media_on_this_node_alone", reason=UNSHARED_WARNING)
