"""Brings the kept changes of a node back into a database that may lack them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from sqlalchemy.exc import IntegrityError

from gateway.cluster.kept.batches import restore_batch
from gateway.cluster.kept.files import restore_file, restore_part, restore_upload
from gateway.cluster.kept.kept_changes import ChangeFile
from gateway.cluster.kept.named_requests import restore_named_request
from gateway.cluster.kept.responses import restore_owners, restore_response
from gateway.cluster.kept.sessions import restore_session
from gateway.cluster.kept.videos import restore_video
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

log = structlog.stdlib.get_logger(__name__)


async def restore_changes(database: Database, timeline: str, process: str) -> None:
    """Bring all kept changes back into the database on this ``timeline``. Raises ``StoreUnavailable``."""
    change_file, restored_count, last_number = database.kept, 0, 0
    if not isinstance(change_file, ChangeFile):
        return
    for _ in range(2):  # a change of a row that is not back yet has found no row
        for change in change_file.list_changes(last_number):
            last_number = max(last_number, change.number)
            try:
                restored_count += await RESTORE_BY_KIND[change.kind](database, change.state, process)
            except (IntegrityError, RowRefused, TypeError, LookupError) as error:  # no account, or another version
                name, reason = f"{change.kind} {change.key}", str(error).partition("\n")[0]
                log.error("job_not_restored", job=name, error=reason)  # noqa: TRY400 - not a bug here
    change_file.confirm(timeline)
    if restored_count:
        log.warning("jobs_restored", rows=restored_count)
