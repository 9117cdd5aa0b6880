"""Brings the kept changes of a node back into a database that may lack them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import structlog
from sqlalchemy.exc import IntegrityError

from gateway.cluster.kept.batches import restore_batch
from gateway.cluster.kept.files import restore_file, restore_part, restore_upload
from gateway.cluster.kept.kept_changes import Change, ChangeFile
from gateway.cluster.kept.named_requests import restore_named_request
from gateway.cluster.kept.responses import restore_owners, restore_response
from gateway.cluster.kept.sessions import restore_session
from gateway.cluster.kept.transaction import Transaction
from gateway.cluster.kept.videos import restore_video
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database, RowRefused
from gateway.storage.kept_changes import KeptKind

Restore = Callable[[Database, Mapping[str, Any], str], Awaitable[bool]]
"""Brings one state back for the process that is named; returns whether the database lacked something."""
RESTORE_BY_KIND: Mapping[KeptKind, Restore] = {
    "batch": restore_batch,
    "file": restore_file,
    "named_request": restore_named_request,
    "response": restore_response,
    "response_owner": restore_owners,
    "session": restore_session,
    "upload": restore_upload,
    "upload_part": restore_part,
    "video": restore_video,
}
MAX_CHANGES = 50
"""How many changes one transaction brings back."""
MAX_HOLD_S = 0.5
"""After so many seconds a transaction brings back no more changes, because all other writes wait for its end."""
_REFUSALS = (IntegrityError, RowRefused, TypeError, LookupError)
"""Errors of a change that cannot be brought back: its account is gone, or it is of another version."""

log = structlog.stdlib.get_logger(__name__)


async def restore_changes(database: Database, timeline: str, process: str, max_hold_s: float = MAX_HOLD_S) -> None:
    """Bring all kept changes back into the database on this ``timeline``. Raises ``StoreUnavailable``."""
    change_file, restored_count, last_number = database.kept, 0, 0
    if not isinstance(change_file, ChangeFile):
        return
    for _ in range(2):  # a change of a row that is not back yet has found no row
        remaining_changes, next_changes = change_file.list_changes(last_number), list[Change]()
        while next_changes := [*next_changes, *islice(remaining_changes, MAX_CHANGES - len(next_changes))]:
            lacking_count, done_count = await _restore_some(database, next_changes, process, max_hold_s)
            restored_count += lacking_count
            last_number = max(last_number, next_changes[done_count - 1].number)
            next_changes = next_changes[done_count:]
    change_file.confirm(timeline)
    if restored_count:
        log.warning("jobs_restored", rows=restored_count)


async def _restore_some(
    database: Database, changes: Sequence[Change], process: str, max_hold_s: float
) -> tuple[int, int]:
    """Bring the first ``changes`` back in one transaction, or all of them one by one if one is refused.

    The lock that excludes other writes costs more than what a change writes. Return how many changes the database
    lacked, and how many were looked at.
    """

    async def restore(connection: AsyncConnection) -> tuple[int, int]:
        transaction, end_s = Transaction(database, connection), asyncio.get_running_loop().time() + max_hold_s
        lacking_count = done_count = 0
        for change in changes:
            lacking_count += await RESTORE_BY_KIND[change.kind](transaction, change.state, process)
            done_count += 1
            if asyncio.get_running_loop().time() >= end_s:
                break
        return lacking_count, done_count

    try:
        return await database.write(restore)
    except _REFUSALS:
        return sum([await _restore_change(database, change, process) for change in changes]), len(changes)


async def _restore_change(database: Database, change: Change, process: str) -> bool:
    try:
        return await RESTORE_BY_KIND[change.kind](database, change.state, process)
    except _REFUSALS as error:
        name, reason = f"{change.kind} {change.key}", str(error).partition("\n")[0]
        log.error("job_not_restored", job=name, error=reason)  # noqa: TRY400 - not a bug here
        return False
