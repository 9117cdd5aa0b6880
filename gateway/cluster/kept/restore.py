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
from gateway.cluster.kept.videos import restore_videos
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database, RowRefused
from gateway.storage.kept_changes import KeptKind

Restore = Callable[[Database, Mapping[str, Any], str], Awaitable[bool]]
"""Brings one state back, on behalf of a process (its name); returns whether the database lacked something."""
RESTORE_BY_KIND: Mapping[KeptKind, Restore] = {
    "batch": restore_batch,
    "file": restore_file,
    "named_request": restore_named_request,
    "response": restore_response,
    "response_owner": restore_owners,
    "session": restore_session,
    "upload": restore_upload,
    "upload_part": restore_part,
}
"""The functions for all kinds except video jobs, which are brought back together."""
MAX_CHANGES = 200
"""How many changes one transaction brings back."""
MAX_HOLD_S = 0.5
"""After so many seconds a transaction brings back no more changes, because all other writes wait for its end."""
_REFUSALS = (IntegrityError, RowRefused, TypeError, LookupError)
"""Errors of a change that cannot be brought back: its account is gone, or it is of another version."""

log = structlog.stdlib.get_logger(__name__)


async def restore_changes(database: Database, timeline: str, process: str, max_hold_s: float = MAX_HOLD_S) -> None:
    """Bring the kept changes back into the database on this ``timeline``, and log those that it refuses."""
    change_file, restored_count, last_number = database.kept, 0, 0
    if not isinstance(change_file, ChangeFile):
        return
    for _ in range(2):  # a change of a row that is not back yet has found no row
        remaining_changes, next_changes = change_file.list_changes(last_number), list[Change]()
        while next_changes := [*next_changes, *islice(remaining_changes, MAX_CHANGES - len(next_changes))]:
            last_number = max(last_number, *(change.number for change in next_changes))
            lacking_count, undone_changes = await _restore_some(database, next_changes, process, max_hold_s)
            restored_count += lacking_count
            undone_numbers = {change.number for change in undone_changes}
            change_file.renew([change for change in next_changes if change.number not in undone_numbers])
            next_changes = undone_changes
    change_file.confirm(timeline)
    if restored_count:
        log.warning("jobs_restored", rows=restored_count)


async def _restore_some(
    database: Database, changes: Sequence[Change], process: str, max_hold_s: float
) -> tuple[int, list[Change]]:
    """Bring ``changes`` back in one transaction, or the first half of them if a change is refused.

    The lock that excludes other writes costs more than what a change writes. Return how many changes the database
    lacked, and those that were not looked at.
    """

    async def restore(connection: AsyncConnection) -> tuple[int, list[Change]]:
        transaction, end_s = Transaction(database, connection), asyncio.get_running_loop().time() + max_hold_s
        states = [change.state for change in changes if change.kind == "video"]
        lacking_count = await restore_videos(transaction, connection, states, process) if states else 0
        other_changes = [change for change in changes if change.kind != "video"]
        for done_count, change in enumerate(other_changes, start=1):
            lacking_count += await RESTORE_BY_KIND[change.kind](transaction, change.state, process)
            if asyncio.get_running_loop().time() >= end_s:
                return lacking_count, other_changes[done_count:]
        return lacking_count, []

    try:
        return await database.write(restore)
    except _REFUSALS as error:
        if len(changes) == 1:
            name, reason = f"{changes[0].kind} {changes[0].key}", str(error).partition("\n")[0]
            log.error("job_not_restored", job=name, error=reason)  # noqa: TRY400 - not a bug here
            return 0, []
    half = len(changes) // 2
    lacking_count, undone_changes = await _restore_some(database, changes[:half], process, max_hold_s)
    return lacking_count, [*undone_changes, *changes[half:]]
