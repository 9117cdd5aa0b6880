"""What earlier processes have left: open work, and the time of the last record.

Open work is read with one statement, because most starts find none.
"""

from sqlalchemy import text

from gateway.domain.batch import ENDED_STATES
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.schema import HAS_DUE_TIME, IS_LIVE, RUNNING

_IS_OPEN = f"status NOT IN ({', '.join(repr(status) for status in sorted(ENDED_STATES))})"
_STATE_QUERY = text(
    f"SELECT EXISTS (SELECT 1 FROM videos WHERE {IS_LIVE}), EXISTS (SELECT 1 FROM deliveries WHERE {HAS_DUE_TIME}), "  # noqa: S608 - our own words
    f"EXISTS (SELECT 1 FROM replays WHERE {RUNNING}), EXISTS (SELECT 1 FROM settings), "
    f"EXISTS (SELECT 1 FROM batches WHERE {_IS_OPEN})"
)

_NEWEST_QUERY = text(
    "SELECT MAX(at_ms) FROM ("
    "SELECT * FROM (SELECT settled_ms AS at_ms FROM requests ORDER BY sequence DESC LIMIT 1) AS of_requests "
    "UNION ALL SELECT * FROM (SELECT at_ms FROM entries ORDER BY sequence DESC LIMIT 1) AS of_entries "
    "UNION ALL SELECT * FROM (SELECT at_ms FROM audit ORDER BY sequence DESC LIMIT 1) AS of_audit) AS newest"
)


@frozen
class StartupState:
    """Whether there are unfinished jobs and batches, pending deliveries, running idempotent requests, and settings."""

    videos: bool
    deliveries: bool
    replays: bool
    settings: bool
    batches: bool


async def find_leftovers(database: Database) -> StartupState:
    """Return what earlier processes of this gateway have left unfinished."""
    (row,) = await database.read(_STATE_QUERY)
    return StartupState(*map(bool, row))


async def find_newest_ms(database: Database) -> int | None:
    """Return when the last request, credit or change was recorded, in Unix milliseconds; None before the first."""
    ((newest_ms,),) = await database.read(_NEWEST_QUERY)
    return None if newest_ms is None else int(newest_ms)
