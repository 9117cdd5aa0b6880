"""Open the store of bodies: at the first request whose bodies are kept, or if an earlier process has kept some."""

from gateway.background import JobRunner
from gateway.services.base import BaseServices
from gateway.storage.bodies.body_store import BodyStore
from gateway.storage.bodies.index import BodyIndex
from gateway.storage.encryption import SecretBox

FOLDER = "bodies"


def open_bodies(base: BaseServices, secret_box: SecretBox, jobs: JobRunner) -> BodyStore:
    """Open the store. With ``gateway serve`` it also writes and removes by itself."""
    node = base.storage.node
    store = BodyStore(
        base.options.folder.path / FOLDER,
        BodyIndex(base.storage.database, "" if node is None else node.id),
        secret_box,
        find_bounds=base.live_config.find_body_bounds,
        clock=base.storage.retention_clock.now,
    )
    if base.options.declare:
        jobs.start("keep_bodies", store.run)
    return store
