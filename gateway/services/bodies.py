"""Opens the store of bodies: at the first request whose bodies are kept, or if an earlier process has kept some."""

from pathlib import Path
from typing import TYPE_CHECKING

from gateway.background import JobRunner
from gateway.services.base import BaseServices
from gateway.storage.bodies.body_store import KEYS_FOLDER, BodyStore
from gateway.storage.bodies.index import BodyIndex
from gateway.storage.bodies.segments import MAX_SEGMENT_BYTES
from gateway.storage.encryption import SecretBox
from gateway.storage.media_location import BucketAddress, parse_location

if TYPE_CHECKING:  # only with a shared store
    from gateway.storage.bodies.shared_bodies import SharedBodies

FOLDER = "bodies"


def open_bodies(base: BaseServices, secret_box: SecretBox, jobs: JobRunner) -> BodyStore:
    """Open the store. With ``gateway serve``, also start the jobs that write, move and remove bodies."""
    node, folder = base.storage.node, base.options.folder
    node_id, shared = "" if node is None else node.id, None
    if (location := parse_location(base.options.config.store.bodies_url)) is not None:
        shared = _open_shared(base, secret_box, node_id, location)
    store = BodyStore(
        folder.path / FOLDER,
        BodyIndex(base.storage.database, node_id, shares_keys=shared is not None),
        secret_box,
        find_bounds=base.live_config.find_body_bounds,
        clock=base.storage.retention_clock.now,
        max_segment_bytes=MAX_SEGMENT_BYTES if shared is None else shared.max_segment_bytes,
        shared=shared,
        former_node="" if node is not None else folder.find_node_id(),
    )
    if base.options.declare:
        jobs.start("keep_bodies", store.run)
        if shared is not None:
            jobs.start("move_bodies", store.run_moves)
    return store


def _open_shared(
    base: BaseServices, secret_box: SecretBox, node_id: str, location: Path | BucketAddress
) -> "SharedBodies":
    from gateway.storage.bodies.open_store import open_segment_store  # noqa: PLC0415 - only with a shared store
    from gateway.storage.bodies.shared_bodies import SharedBodies  # noqa: PLC0415
    from gateway.storage.bodies.shared_index import SharedIndex  # noqa: PLC0415

    return SharedBodies(
        open_segment_store(location),
        SharedIndex(base.storage.database, node_id),
        base.options.folder.path / FOLDER / KEYS_FOLDER,
        secret_box,
        leads=base.storage.deployment.leads,
    )
