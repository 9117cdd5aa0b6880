"""Files and uploads of clients among the kept changes: their rows. Their bytes are not in the database."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Table, delete, select, update
from sqlalchemy.dialects.postgresql import insert

from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.schema import files, upload_parts, uploads


async def restore_file(database: Database, state: Mapping[str, Any], _process: str) -> bool:
    """Insert the row of a file, or delete it if the file was deleted; return whether the database was changed.

    Raises the errors of ``database``.
    """
    row = state["row"]
    if state.get("removed"):
        return bool(await database.change(delete(files).where(files.c.id == row["id"])))
    return await database.write_shared(lambda connection: _insert_if_missing(connection, files, row))


async def restore_upload(database: Database, state: Mapping[str, Any], _process: str) -> bool:
    """Insert the row of an upload; if the upload has ended, end it and delete its parts.

    Return whether the row was inserted or ended.

    Raises the errors of ``database``.
    """
    row = state["row"]

    async def put(connection: AsyncConnection) -> bool:
        is_added = await _insert_if_missing(connection, uploads, row)
        if row["status"] == "pending":
            return is_added
        end_query = update(uploads).where(uploads.c.id == row["id"], uploads.c.status == "pending").values(row)
        await connection.execute(delete(upload_parts).where(upload_parts.c.upload_id == row["id"]))
        return bool((await connection.execute(end_query)).rowcount) or is_added

    return await database.write_shared(put)


async def restore_part(database: Database, state: Mapping[str, Any], _process: str) -> bool:
    """Insert the row of a part's upload if it is missing, then the row of the part if the upload is pending.

    Return whether the part was added.
    Raises the errors of ``database``.
    """
    row = state["row"]

    async def put(connection: AsyncConnection) -> bool:
        await _insert_if_missing(connection, uploads, state["upload"])
        pending_query = select(uploads.c.id).where(uploads.c.id == row["upload_id"], uploads.c.status == "pending")
        if (await connection.execute(pending_query.with_for_update())).first() is None:
            return False
        return await _insert_if_missing(connection, upload_parts, row)

    return await database.write_shared(put)


async def _insert_if_missing(connection: AsyncConnection, table: Table, row: Mapping[str, Any]) -> bool:
    insertion = insert(table).values(**row).on_conflict_do_nothing(index_elements=["id"])
    return bool((await connection.execute(insertion)).rowcount)
