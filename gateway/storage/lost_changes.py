"""What nodes of a cluster have found to be lost when another server replaced the store."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import select, text

from gateway.domain.audit_log import AuditRow
from gateway.domain.lost_change import LostChange, ReplacedStore
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.row_mapping import parse_audit
from gateway.storage.schema import audit

_NAME = "replaced"
_MOST = 500
_READ_AT_ONCE = 2_000
_OVERLAP = 100
"""Rows are read again this far back, because commits do not follow the order of their sequences."""
_READ = text("SELECT convert_from(value, 'UTF8') AS value FROM cluster WHERE name = :name").bindparams(name=_NAME)
_PUT = text("""
INSERT INTO cluster (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value
""")


class LostChangeRepository:
    """The record of the last replacement of the store, in the table ``cluster``; and the newest audit rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_newest(self, after: int) -> Sequence[AuditRow]:
        """Return the audit rows after the sequence ``after``, and some before it."""
        newest = audit.c.sequence.desc()
        wanted = select(audit).where(audit.c.sequence > after - _OVERLAP).order_by(newest).limit(_READ_AT_ONCE)
        return [parse_audit(row) for row in await self._database.read_first(wanted)]

    async def list_between(self, first: int, last: int) -> Sequence[AuditRow]:
        wanted = select(audit).where(audit.c.sequence.between(first, last))
        return [parse_audit(row) for row in await self._database.read_first(wanted)]

    async def read(self) -> ReplacedStore:
        """Return the last replacement; of a single gateway there is no record."""
        if self._database.kind != "postgresql":
            return ReplacedStore()
        rows = await self._database.read_first(_READ)
        return _parse(orjson.loads(rows[0].value)) if rows else ReplacedStore()

    async def put(self, replaced: ReplacedStore) -> None:
        value = orjson.dumps(
            {
                "generation": replaced.generation,
                "found_ms": replaced.found_ms,
                "changes": [_build(change) for change in replaced.changes[-_MOST:]],
            }
        )

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(_PUT.bindparams(name=_NAME, value=value))

        await self._database.write(work)


def _build(change: LostChange) -> Mapping[str, object]:
    row = {name: getattr(change.row, name) for name in _ROW}
    return {"row": row, "applied": change.applied, "reason": change.reason, "found_ms": change.found_ms}


_ROW = tuple(AuditRow.__annotations__)


def _parse(value: Mapping[str, Any]) -> ReplacedStore:
    changes = [LostChange(**{**change, "row": AuditRow(**change["row"])}) for change in value["changes"]]
    return ReplacedStore(value["generation"], value["found_ms"], tuple(changes))
