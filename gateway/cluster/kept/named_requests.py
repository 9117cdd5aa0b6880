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

_ORDER = get_args(ReplayState)


async def restore_named(database: Database, state: Mapping[str, Any], process: str) -> bool:
    """Store the record of a named request as far as the database lacks it. Raises ``StoreUnavailable``.

    A request that an earlier process of this node was answering is lost.
    """
    row = {**state["row"], "body": decode_bytes(state["row"]["body"])}
    if row["state"] == "running" and is_former(row["owner"], process):
        row["state"] = "lost"
    call = (replays.c.key_id == row["key_id"], replays.c.name == row["name"])
    if state["removed"]:
        return bool(await database.change(delete(replays).where(*call, replays.c.request_id == row["request_id"])))

    async def put(connection: AsyncConnection) -> bool:
        added = insert(replays).values(**row).on_conflict_do_nothing(index_elements=["key_id", "name"])
        if (await connection.execute(added)).rowcount:
            return True
        columns = select(replays.c.request_id, replays.c.created_ms, replays.c.state)
        found = (await connection.execute(columns.where(*call).with_for_update())).first()
        if found is None:  # deleted meanwhile
            return False
        if found.request_id == row["request_id"]:
            newer = _ORDER.index(row["state"]) > _ORDER.index(found.state)
        else:  # the name has expired, or a lost request was repeated
            newer = row["created_ms"] > found.created_ms
        if newer:
            await connection.execute(update(replays).where(and_(*call)).values(row))
        return newer

    return await database.write_shared(put)
