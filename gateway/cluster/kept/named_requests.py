"""Requests with an ``Idempotency-Key`` among the kept changes: their names, and their answers."""

from collections.abc import Mapping
from typing import Any, get_args

from sqlalchemy import and_, delete, select, update
from sqlalchemy.dialects.postgresql import insert

from gateway.cluster.kept.owners import is_former
from gateway.domain.idempotency import ReplayState
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.kept_changes import decode_bytes
from gateway.storage.schema import replays

_STATE_ORDER = get_args(ReplayState)


async def restore_named_request(database: Database, state: Mapping[str, Any], process: str) -> bool:
    """Store the kept record of a named request, or delete a removed one; return whether the database was changed.

    A request that an earlier process of this node was answering is lost. Raises the errors of ``database``.
    """
    row = {**state["row"], "body": decode_bytes(state["row"]["body"])}
    if row["state"] == "running" and is_former(row["owner"], process):
        row["state"] = "lost"
    conditions = (replays.c.key_id == row["key_id"], replays.c.name == row["name"])
    if state["removed"]:
        return bool(
            await database.change(delete(replays).where(*conditions, replays.c.request_id == row["request_id"]))
        )

    async def put(connection: AsyncConnection) -> bool:
        insertion = insert(replays).values(**row).on_conflict_do_nothing(index_elements=["key_id", "name"])
        if (await connection.execute(insertion)).rowcount:
            return True
        columns = select(replays.c.request_id, replays.c.created_ms, replays.c.state)
        stored_row = (await connection.execute(columns.where(*conditions).with_for_update())).first()
        if stored_row is None:  # deleted meanwhile
            return False
        if stored_row.request_id == row["request_id"]:
            is_newer = _STATE_ORDER.index(row["state"]) > _STATE_ORDER.index(stored_row.state)
        else:  # the name has expired, or a lost request was repeated
            is_newer = row["created_ms"] > stored_row.created_ms
        if is_newer:
            await connection.execute(update(replays).where(and_(*conditions)).values(row))
        return is_newer

    return await database.write_shared(put)
