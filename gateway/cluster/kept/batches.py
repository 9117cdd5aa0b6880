"""Batches among the kept changes: which lines may have been sent, the results, and who runs them."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert

from gateway.cluster.kept.owners import is_former
from gateway.domain.batch import ENDED_STATES, RUNNING_STATUSES
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.schema import batches

_CHANGING_COLUMNS = ("status", "claimed", "detail", "owner")
_STATE_ORDER = {"validating": 0, "in_progress": 1, "cancelling": 2, "finalizing": 3, **dict.fromkeys(ENDED_STATES, 4)}


async def restore_batch(database: Database, state: Mapping[str, Any], process: str) -> bool:
    """Bring a batch to its kept state, or delete a removed one; return whether the database was changed.

    The state of the last node that ran a batch counts. A batch of an earlier process of this node gets no owner.
    Raises the errors of ``database``.
    """
    if removed_id := state.get("removed"):
        return bool(await database.change(delete(batches).where(batches.c.id == removed_id)))
    row = dict(state["row"])
    if is_former(row["owner"], process):
        row["owner"] = ""
    is_cancelled = bool(state.get("cancelled"))
    return await database.write_shared(lambda connection: _put(connection, row, is_cancelled=is_cancelled))


async def _put(connection: AsyncConnection, row: dict[str, Any], *, is_cancelled: bool) -> bool:
    """Insert a batch, or advance it; return whether anything was changed.

    ``is_cancelled`` marks the row of a node that has only cancelled the batch.
    """
    insertion = insert(batches).values(**row).on_conflict_do_nothing(index_elements=["id"])
    if (await connection.execute(insertion)).rowcount:
        return True
    columns = (batches.c[name] for name in _CHANGING_COLUMNS)
    stored_row = (await connection.execute(select(*columns).where(batches.c.id == row["id"]).with_for_update())).first()
    if stored_row is None:  # deleted meanwhile
        return False
    stored_values = dict(zip(_CHANGING_COLUMNS, stored_row, strict=True))
    new_values = stored_values
    if not is_cancelled and _measure_progress(row) >= _measure_progress(stored_values):
        new_values = {name: row[name] for name in _CHANGING_COLUMNS}
    if new_values["status"] in RUNNING_STATUSES and "cancelling" in {row["status"], stored_values["status"]}:
        new_values = {**new_values, "status": "cancelling"}
    if new_values == stored_values:
        return False
    await connection.execute(update(batches).where(batches.c.id == row["id"]).values(new_values))
    return True


def _measure_progress(row: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return a sort key that grows with the batch, because no single field grows with each change."""
    detail = row["detail"]
    tally = detail["tally"]
    result_count = sum(tally[name] for name in ("completed", "failed", "cancelled", "expired"))
    return detail["moves"], row["claimed"], result_count, _STATE_ORDER[row["status"]]
