"""Checks of the store for media and clients' files."""

import asyncio
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from gateway.config.extras import list_missing_extras
from gateway.config.schema import Config
from gateway.doctor.finding import Finding
from gateway.errors import StoreUnavailable
from gateway.storage.media_location import BucketAddress, parse_location

_UNSHARED_WARNING = (
    "Images, videos and clients' files are on this node alone: other nodes of the cluster cannot read them"
)
_RETRY_FOR_S = 2.0


def check_media(config: Config) -> Iterator[Finding]:
    """Check the access to the folder at ``store.media_url``; in a bucket, write, read and delete an object."""
    location = parse_location(config.store.media_url)
    if location is None:
        if config.cluster.enabled:
            yield Finding(
                "media", "warning", _UNSHARED_WARNING, "Set store.media_url to a folder of all nodes, or to a bucket"
            )
    elif isinstance(location, Path):
        yield _check_folder(location)
    elif not any(problem.startswith("store.media_url") for problem in list_missing_extras(config)):
        yield _check_bucket(location)


def _check_folder(folder: Path) -> Finding:
    text = f"Media are kept in {folder}"
    if not folder.is_dir():
        return Finding(
            "media", "problem", f"The folder {folder} does not exist", "Mount it, or correct store.media_url"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        fix = "Let every node run as the same user, who owns the folder"
        return Finding("media", "problem", f"This user cannot read and write {folder}", fix)
    return Finding("media", "ok", text)


def _check_bucket(address: BucketAddress) -> Finding:
    from gateway.storage.bucket.client import Bucket  # noqa: PLC0415 - obstore is an extra

    location, name = address.describe(), f"check-{secrets.token_hex(8)}"

    async def check() -> None:
        bucket = Bucket(address, retry_for_s=_RETRY_FOR_S)
        await bucket.put(name, b"gateway doctor", len(b"gateway doctor"))
        await bucket.read(name, 0, 1)
        async for _ in bucket.list_objects(name):
            break
        await bucket.delete([name])

    try:
        asyncio.run(check())
    except StoreUnavailable as error:
        fix = "Check endpoint, bucket and credentials, which must allow to write, read, list and delete"
        reason = str(error.__cause__).partition("\n")[0][:300]
        return Finding("media", "problem", f"The bucket {location} cannot be used: {reason}", fix)
    return Finding("media", "ok", f"Media can be written, read and deleted in {location}")
