"""Counts stored requests for a limit that is newer than they are, in commits that other writes do not wait long for.

A row that is counted gets the limit among its ``limit_charges``, in the commit that adds its cost to the sums. So a row
counts once, whatever ends the process; and a row that is deleted, reversed or renamed later changes the sums as if it
had been counted from the beginning.
"""

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import orjson
from sqlalchemy import delete, func, select

from gateway.domain.limit import LimitCharge, build_charges
from gateway.frozen import frozen
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.dialect import insert_for
from gateway.storage.limit_counters import ADD_SPENT
from gateway.storage.schema import limit_fills, requests, retired
from gateway.storage.sqlite_database import SqliteDatabase

BEFORE_UPGRADE = ""
"""The counter of a row that the migration stores: until it is deleted, limits may be older than this table."""
_ROWS_PER_LOOK = 50_000
_MARGIN_ROWS = 10_000
"""How many earlier sequences are examined, too: in a cluster, a row may become visible after later ones."""
FillState = Literal["filling", "following", "done"]
_FIND_CURSOR = "SELECT counted_until FROM limit_fills WHERE counter = ?1 AND state <> 'done'"
_FIND_RANGE = """
SELECT count(*), coalesce(max(sequence), 0)
FROM (SELECT sequence FROM requests WHERE sequence > ?1 ORDER BY sequence LIMIT ?2) later
"""
_LIST_ROWS = """
SELECT sequence, settled_ms, cost_nanos, account_id, key_id, key_name, model, end_user, session, tags, limit_charges
FROM requests WHERE sequence > ?1 AND sequence <= ?2 AND cost_nanos > 0 AND settled_ms >= ?3 ORDER BY sequence
"""
_PUT_CHARGES = "UPDATE requests SET limit_charges = ?1 WHERE sequence = ?2"
_PUT_CURSOR = "UPDATE limit_fills SET counted_until = ?1 WHERE counter = ?2"


class ChargedRow(NamedTuple):
    """The columns of a request that decide what it counts for."""

    sequence: int
    settled_ms: int
    cost_nanos: int
    account_id: int
    key_id: int
    key_name: str
    model: str
    end_user: str
    session: str
    tags: str
    limit_charges: str


FindCharge = Callable[[ChargedRow], LimitCharge | None]
"""Returns what a row counts for; None if it does not count, or is counted already."""


@frozen
class LimitFill:
    """How far the earlier requests of a limit are counted.

    Attributes:
        counter: ``Limit.counter``.
        keys: ``Limit.keys``: whose requests are counted.
        until_s: ``Limit.until_s``, in Unix seconds; None: it does not end.
        created_s: from when on requests count at their end, in Unix seconds; 0: from before the limit was recorded.
        since_s: the time that earlier requests are counted from, in Unix seconds.
        counted_until: the sequence of the last request that was looked at.
        state: "filling"; "following" when all requests that were stored are counted, and those that ran when the limit
            was created may follow; "done".
    """

    counter: str
    keys: tuple[str, ...] = ()
    until_s: int | None = None
    created_s: int = 0
    since_s: int = 0
    counted_until: int = 0
    state: FillState = "done"

    @property
    def is_filling(self) -> bool:
        return self.state == "filling"

    def find_counting_start_s(self, window_start_s: int) -> int | None:
        """Return since when the limit counts, in Unix seconds; None: for its whole window, or the time is unknown."""
        since_s = self.created_s if self.is_filling else self.since_s
        return since_s if since_s and since_s >= window_start_s else None


@frozen
class FillStep:
    """What one commit has done.

    Attributes:
        sums: what was counted, in nano-USD.
        ended: whether no later row is stored.
        held_s: for how many seconds the commit has kept other writers waiting.
    """

    sums: Mapping[LimitCharge, int]
    ended: bool
    held_s: float


class LimitFillRepository:
    """The table ``limit_fills``, and the commits that count requests."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_fills(self) -> dict[str, LimitFill]:
        """Return all fills by counter; also that of ``BEFORE_UPGRADE`` until a process has recorded its limits."""
        rows = await self._database.read(select(limit_fills))
        return {row.counter: _parse(row) for row in rows}

    async def put(self, fills: Iterable[LimitFill], gone_counters: Collection[str] = ()) -> None:
        """Store ``fills``, and delete those of ``gone_counters``."""
        new_fills = list(fills)

        async def work(connection: AsyncConnection) -> None:
            if gone_counters:
                await connection.execute(delete(limit_fills).where(limit_fills.c.counter.in_(gone_counters)))
            for fill in new_fills:
                values = {name: getattr(fill, name) for name in limit_fills.c.keys()}  # noqa: SIM118 - columns
                values["keys"] = orjson.dumps(fill.keys).decode()
                statement = insert_for(connection.dialect.name, limit_fills).values(values)
                await connection.execute(statement.on_conflict_do_update(index_elements=["counter"], set_=values))

        if new_fills or gone_counters:
            await self._database.write(work)

    async def put_state(self, fill: LimitFill, state: FillState, since_s: int) -> None:
        """Store the state of a fill, unless its limit is gone or is filled anew."""
        is_same = limit_fills.c.counter == fill.counter, limit_fills.c.created_s == fill.created_s
        await self._database.change(limit_fills.update().where(*is_same).values(state=state, since_s=since_s))

    async def find_before(self, since_s: int) -> int:
        """Return a sequence before all requests that were settled since ``since_s``, in Unix seconds.

        Rows are mostly stored in the order of settlement, but a node that was away for days stores older ones.
        """
        sequence = requests.c.sequence
        (ends,) = await self._database.read(select(func.min(sequence).label("first"), func.max(sequence).label("last")))
        if ends.first is None:
            return 0
        for start in range(int(ends.first), int(ends.last) + 1, _ROWS_PER_LOOK):
            is_in_range = sequence.between(start, start + _ROWS_PER_LOOK - 1)
            query = select(sequence).where(is_in_range, requests.c.settled_ms >= since_s * 1000)
            rows = await self._database.read_long(query.order_by(sequence).limit(1))
            if rows:
                return max(0, int(rows[0].sequence) - _MARGIN_ROWS)
        return int(ends.last)

    async def find_retired_s(self) -> int:
        """Return from when on all settled requests are still stored, in Unix seconds; 0 if none was deleted."""
        ((until_ms,),) = await self._database.read(select(func.max(retired.c.until_ms)))
        return 0 if until_ms is None or until_ms < 0 else int(until_ms) // 1000 + 1

    async def count(self, fill: LimitFill, max_rows: int, find_charge: FindCharge) -> FillStep | None:
        """Count the next requests, at most ``max_rows``, in one commit.

        Return None if the limit is gone, or its fill is done.
        """
        if isinstance(self._database, SqliteDatabase):
            return await self._database.transact(partial(_count_sqlite, fill, max_rows, find_charge))
        return await self._database.write(partial(_count, fill, max_rows, find_charge))


def _count_sqlite(
    fill: LimitFill, max_rows: int, find_charge: FindCharge, connection: sqlite3.Connection
) -> FillStep | None:
    started_s = time.perf_counter()
    cursor = connection.execute(_FIND_CURSOR, (fill.counter,)).fetchone()
    if cursor is None:
        return None
    number, last = connection.execute(_FIND_RANGE, (cursor[0], max_rows)).fetchone()
    rows = connection.execute(_LIST_ROWS, (cursor[0], last, fill.since_s * 1000)).fetchall() if number else []
    changes, sums = _find_changes(rows, find_charge)
    if changes:
        connection.executemany(_PUT_CHARGES, changes)
        ADD_SPENT.run_sqlite(connection, _build_additions(sums))
    if number:
        connection.execute(_PUT_CURSOR, (last, fill.counter))
    return FillStep(sums, number < max_rows, time.perf_counter() - started_s)


async def _count(
    fill: LimitFill, max_rows: int, find_charge: FindCharge, connection: AsyncConnection
) -> FillStep | None:
    started_s, is_sqlite = time.perf_counter(), connection.dialect.name == "sqlite"

    async def run(statement: str, values: Any) -> Any:
        return await connection.exec_driver_sql(statement if is_sqlite else statement.replace("?", "$"), values)

    cursor = (await run(_FIND_CURSOR, (fill.counter,))).first()
    if cursor is None:
        return None
    number, last = (await run(_FIND_RANGE, (cursor[0], max_rows))).one()
    rows = (await run(_LIST_ROWS, (cursor[0], last, fill.since_s * 1000))).all() if number else []
    changes, sums = _find_changes(rows, find_charge)
    if changes:
        await run(_PUT_CHARGES, changes)
        await ADD_SPENT.run(connection, _build_additions(sums))
    if number:
        await run(_PUT_CURSOR, (last, fill.counter))
    return FillStep(sums, number < max_rows, time.perf_counter() - started_s)


def _find_changes(
    rows: Iterable[Sequence[Any]], find_charge: FindCharge
) -> tuple[list[tuple[str, int]], dict[LimitCharge, int]]:
    """Return the new ``limit_charges`` and the sequence of each row that is charged, and the costs by charge."""
    changes, sums = [], defaultdict[LimitCharge, int](int)
    for values in rows:
        row = ChargedRow(*values)
        charge = find_charge(row)
        if charge is not None:
            text = build_charges([charge])
            changes.append((f"{row.limit_charges[:-1]},{text[1:]}" if row.limit_charges else text, row.sequence))
            sums[charge] += row.cost_nanos
    return changes, dict(sums)


def _build_additions(sums: Mapping[LimitCharge, int]) -> list[tuple[Any, ...]]:
    # All writers use the same order, so that no two of them deadlock in PostgreSQL.
    return [(*charge, nanos) for charge, nanos in sorted(sums.items())]


def _parse(row: Any) -> LimitFill:
    until_s = None if row.until_s is None else int(row.until_s)
    created_s, since_s, counted_until = int(row.created_s), int(row.since_s), int(row.counted_until)
    keys: tuple[str, ...] = tuple(orjson.loads(row.keys))
    return LimitFill(row.counter, keys, until_s, created_s, since_s, counted_until, row.state)
