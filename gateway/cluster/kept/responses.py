"""Responses among the kept changes: those that the gateway stores, and which channel has each of the others."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, update
from sqlalchemy.dialects.postgresql import insert

from gateway.storage.database import Database
from gateway.storage.kept_changes import decode_bytes
from gateway.storage.schema import kept_responses, response_owners


async def restore_response(database: Database, state: Mapping[str, Any], _process: str) -> bool:
    """Store a response unless the database has it, or a later state of it; return whether anything was changed.

    A deleted response is only hidden, because later responses may continue it. Raises the errors of ``database``.
    """
    table, changed_rows = kept_responses, 0
    if row := state.get("row"):
        values = {**row, "sealed": decode_bytes(row["sealed"]), "inputs": decode_bytes(row["inputs"])}
        upsert = insert(table).values(**values)
        upsert = upsert.on_conflict_do_update(
            index_elements=["id"], set_=values, where=table.c.created_ms < upsert.excluded.created_ms
        )
        changed_rows = await database.change(upsert)
    if deleted_id := state.get("deleted"):
        conditions = table.c.id == deleted_id, table.c.expires_ms > state["deleted_ms"]
        changed_rows += await database.change(update(table).where(*conditions).values(expires_ms=state["deleted_ms"]))
    return bool(changed_rows)


async def restore_owners(database: Database, state: Mapping[str, Any], _process: str) -> bool:
    """Store who owns a response and the objects in it, and delete the owner of a deleted response.

    Return whether anything was changed. Raises the errors of ``database``.
    """
    table, changed_rows = response_owners, 0
    if rows := state.get("rows"):
        changed_rows = await database.change(insert(table).values(rows).on_conflict_do_nothing(index_elements=["id"]))
    if deleted_id := state.get("deleted"):
        changed_rows += await database.change(delete(table).where(table.c.id == deleted_id))
    return bool(changed_rows)
