"""Budgets of sessions, and sessions that were ended, among the kept changes."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import case, func, literal, or_, select
from sqlalchemy.dialects.postgresql import insert

from gateway.storage.database import Database
from gateway.storage.schema import accounts, session_states


async def restore_session(database: Database, state: Mapping[str, Any], _process: str) -> bool:
    """Store the state of a session unless the database has a later one, or its account is gone.

    A session that was ended stays ended, also if its end is the earlier change. Return whether anything was stored.
    Raises the errors of ``database``.
    """
    table, row = session_states, state["row"]
    values = select(*(literal(row[column.name], column.type) for column in table.c))
    insertion = insert(table).from_select(table.c.keys(), values.where(accounts.c.id == row["account_id"]))
    new, stored = insertion.excluded, table.c
    is_later = stored.changed_ms < new.changed_ms
    names = ("limit_nanos", "status", "changed_ms")
    return bool(
        await database.change(
            insertion.on_conflict_do_update(
                index_elements=["subject"],
                set_={
                    **{name: case((is_later, new[name]), else_=stored[name]) for name in names},
                    "ended_ms": func.coalesce(stored.ended_ms, new.ended_ms),
                },
                where=or_(is_later, stored.ended_ms.is_(None) & new.ended_ms.is_not(None)),
            )
        )
    )
