"""Brings the kept changes of a node back into a database that may lack them."""

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
"""How many changes one transaction brings back. All other writes wait for it."""
_REFUSALS = (IntegrityError, RowRefused, TypeError, LookupError)
"""Errors of a change that cannot be brought back: its account is gone, or it is of another version."""

log = structlog.stdlib.get_logger(__name__)


async def restore_changes(database: Database, timeline: str, process: str) -> None:
    """Bring all kept changes back into the database on this ``timeline``. Raises ``StoreUnavailable``."""
    change_file, restored_count, last_number = database.kept, 0, 0
    if not isinstance(change_file, ChangeFile):
        return
    for _ in range(2):  # a change of a row that is not back yet has found no row
        changes = change_file.list_changes(last_number)
        while part := tuple(islice(changes, MAX_CHANGES)):
            last_number = max(last_number, part[-1].number)
            restored_count += await _restore_part(database, part, process)
    change_file.confirm(timeline)
    if restored_count:
        log.warning("jobs_restored", rows=restored_count)


async def _restore_part(database: Database, changes: Sequence[Change], process: str) -> int:
    """Bring ``changes`` back in one transaction, or one by one if one of them is refused; return how many were lacking.

    The lock that excludes other writes costs more than what a change writes.
    """

    async def restore_all(connection: AsyncConnection) -> int:
        transaction = Transaction(database, connection)
        return sum([await RESTORE_BY_KIND[change.kind](transaction, change.state, process) for change in changes])

    try:
        return await database.write(restore_all)
    except _REFUSALS:
        return sum([await _restore_change(database, change, process) for change in changes])


async def _restore_change(database: Database, change: Change, process: str) -> bool:
    try:
        return await RESTORE_BY_KIND[change.kind](database, change.state, process)
    except _REFUSALS as error:
        name, reason = f"{change.kind} {change.key}", str(error).partition("\n")[0]
        log.error("job_not_restored", job=name, error=reason)  # noqa: TRY400 - not a bug here
        return False
