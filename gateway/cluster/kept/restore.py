"""Brings the kept changes of a node back into a database that may lack them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from sqlalchemy.exc import IntegrityError

from gateway.cluster.kept.kept_changes import ChangeFile
from gateway.cluster.kept.videos import restore_video
from gateway.storage.database import Database, RowRefused
from gateway.storage.kept_changes import KeptKind

Restore = Callable[[Database, Mapping[str, Any], str], Awaitable[bool]]
"""Brings one state back for the process that is named; returns whether the database lacked something."""
KINDS: Mapping[KeptKind, Restore] = {"video": restore_video}

log = structlog.stdlib.get_logger(__name__)


async def restore_changes(database: Database, timeline: str, process: str) -> None:
    """Bring all kept changes back into the database on this ``timeline``. Raises ``StoreUnavailable``."""
    changes, restored = database.kept, 0
    if not isinstance(changes, ChangeFile):
        return
    for kind, key, state in changes.list_changes():
        try:
            restored += await KINDS[kind](database, state, process)
        except (IntegrityError, RowRefused, TypeError) as error:  # its account is lost, or of another version
            log.error("job_not_restored", job=f"{kind} {key}", error=str(error).partition("\n")[0])  # noqa: TRY400
    changes.confirm(timeline)
    if restored:
        log.warning("jobs_restored", rows=restored)
