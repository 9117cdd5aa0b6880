"""What an earlier process has left of jobs, and of settings, looked for in one go: at most starts there is nothing."""

import attrs
from sqlalchemy import text

from gateway.storage.database import Database
from gateway.storage.schema import DUE, LIVE, RUNNING

_LOOK = text(
    f"SELECT EXISTS (SELECT 1 FROM videos WHERE {LIVE}), EXISTS (SELECT 1 FROM deliveries WHERE {DUE}), "  # noqa: S608 - our own words
    f"EXISTS (SELECT 1 FROM replays WHERE {RUNNING}), EXISTS (SELECT 1 FROM settings)",
)


@attrs.frozen
class StartupState:
    """Whether there are jobs that have not ended, deliveries that are not over, named calls under way, and settings."""

    videos: bool
    deliveries: bool
    replays: bool
    settings: bool


async def find_leftovers(database: Database) -> StartupState:
    """Look for them. Raises ``StoreUnavailable``."""
    (row,) = await database.read(_LOOK)
    return StartupState(*map(bool, row))
