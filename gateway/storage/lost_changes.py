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
_MAX_STORED_CHANGES = 500
_MAX_ROWS = 2_000
_OVERLAP_ROWS = 100
"""Rows are read again this far back, because commits do not follow the order of their sequences."""
_READ_CHANGES = text("SELECT convert_from(value, 'UTF8') AS value FROM cluster WHERE name = :name").bindparams(
    name=_NAME
)
_PUT_CHANGES = text("""
INSERT INTO cluster (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value
""")


class LostChangeRepository:
    """The record of the last replacement of the store, in the table ``cluster``; and the newest audit rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_newest_rows(self, after_sequence: int) -> Sequence[AuditRow]:
        """Return up to 2,000 audit rows, newest first: those after ``after_sequence`` and some before it."""
        newest_first = audit.c.sequence.desc()
        statement = (
            select(audit)
            .where(audit.c.sequence > after_sequence - _OVERLAP_ROWS)
            .order_by(newest_first)
            .limit(_MAX_ROWS)
        )
        return [parse_audit(row) for row in await self._database.read_first(statement)]

    async def list_between(self, first_sequence: int, last_sequence: int) -> Sequence[AuditRow]:
        statement = select(audit).where(audit.c.sequence.between(first_sequence, last_sequence))
        return [parse_audit(row) for row in await self._database.read_first(statement)]

    async def read(self) -> ReplacedStore:
        """Return the last replacement of the store; an empty ``ReplacedStore`` if there was none, and on SQLite."""
        if self._database.kind != "postgresql":
            return ReplacedStore()
        rows = await self._database.read_first(_READ_CHANGES)
        return _parse(orjson.loads(rows[0].value)) if rows else ReplacedStore()

    async def put(self, replaced_store: ReplacedStore) -> None:
        value = orjson.dumps(
            {
                "generation": replaced_store.generation,
                "found_ms": replaced_store.found_ms,
                "changes": [_build(change) for change in replaced_store.changes[-_MAX_STORED_CHANGES:]],
            }
        )

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(_PUT_CHANGES.bindparams(name=_NAME, value=value))

        await self._database.write(work)


def _build(change: LostChange) -> Mapping[str, object]:
    row = {name: getattr(change.row, name) for name in _ROW_FIELDS}
    return {"row": row, "applied": change.applied, "reason": change.reason, "found_ms": change.found_ms}


_ROW_FIELDS = tuple(AuditRow.__annotations__)


def _parse(value: Mapping[str, Any]) -> ReplacedStore:
    changes = [LostChange(**{**change, "row": AuditRow(**change["row"])}) for change in value["changes"]]
    return ReplacedStore(value["generation"], value["found_ms"], tuple(changes))
