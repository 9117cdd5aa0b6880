"""The ledger in the database: whole commits, plain entries, and the same answers as the one in memory."""

import sqlite3
import sys
from types import FrameType
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.balance import UtcDay
from gateway.domain.ledger import LedgerEntry, UsageFilter
from gateway.domain.request_log import RequestFilter, RequestRecord
from gateway.errors import Conflict, StoreUnavailable
from gateway.storage.database import Database
from gateway.storage.schema import entries, requests, usage_days, usage_hours
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.ledger_balances import AXES, TODAY, day_at, read_ids, read_spending, read_totals
from tests.support.ledger_model import LedgerModel
from tests.support.request_records import NOON_MS, charge, read_ms, refuse
from tests.support.stores import open_stores


async def test_the_database_stores_a_batch_whole_or_not_at_all(database: Database) -> None:
    stores = open_stores(database)
    await stores.ledger.post([charge(1, 10)])
    async with database._writer.begin() as connection:  # type: ignore[attr-defined]
        await connection.run_sync(usage_days.drop)
    with pytest.raises(StoreUnavailable):
        await stores.ledger.post([charge(2, 20)])
    assert await read_ids(stores.requests) == ["req_1"]
    assert [entry.amount_nanos for entry in await database.read(entries.select())] == [10]


async def test_the_latest_entry_of_accounts_is_found_after_a_moment(database: Database) -> None:
    ledger = open_stores(database).ledger
    await ledger.post([charge(1, 10, key=11, at_ms=NOON_MS + 500), charge(2, 20, key=21, at_ms=NOON_MS + 60_000)])
    await ledger.add_credit(LedgerEntry(0, NOON_MS + 7_999, "top_up", 3, None, 5))
    noon_s = NOON_MS // 1000
    for account_ids, since_s, expected_s in (
        ([1], noon_s, noon_s + 1), ([1], noon_s + 1, None), ([1, 3], noon_s, noon_s + 8), ([3], noon_s + 8, None),
        ([4, *range(1_000, 2_000), 2], noon_s, noon_s + 61), ([4], 0, None),
    ):  # fmt: skip
        assert await ledger.find_latest_s(account_ids, since_s) == expected_s


@SQLITE_ONLY
async def test_a_commit_calls_the_thread_of_its_connection_once(database: Database) -> None:
    ledger = open_stores(database).ledger
    for name in ("new user", "known user"):
        await ledger.post([charge(name, 10)])
    calls: list[str] = []

    def note(frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.endswith("aiosqlite/core.py"):
            calls.append(code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        await ledger.post([charge(number, 10) for number in range(2, 30)])
    finally:
        sys.setprofile(before)
    assert calls.count("set_result") == 1, calls
    assert len(await read_ids(open_stores(database).requests)) == 30
    assert database.last_commit_ms is not None


async def test_the_database_has_an_entry_for_each_charge_and_none_for_nothing(database: Database) -> None:
    await open_stores(database).ledger.post([charge(1, 10), charge(2, 0), refuse(charge(3, 0)), charge(4, 40, key=21)])
    found = [tuple(row) for row in await database.read(entries.select().order_by(entries.c.sequence))]
    assert [row[1:] for row in found] == [
        (NOON_MS, "charge", 1, 11, 10, "req_1", None, None),
        (NOON_MS, "charge", 2, 21, 40, "req_4", None, None),
    ]


@SQLITE_ONLY
async def test_more_rows_than_a_statement_takes_values_are_looked_up_too(database: Database) -> None:
    """What a crash leaves may be more than the 32,766 values that SQLite takes as it comes; here it takes fewer."""
    async with database._writer.connect() as connection:  # type: ignore[attr-defined]
        raw = await connection.get_raw_connection()
        driver: Any = raw.driver_connection
        driver._conn.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
    rows = [charge(number, 1) for number in range(1_200)]
    ledger = open_stores(database).ledger
    await ledger.post(rows[::2])
    await ledger.post(rows)
    assert await read_totals(ledger) == {(1, 11, 1_200, 1_200, 1_200)}


async def test_totals_that_disagree_are_told_as_they_are(database: Database) -> None:
    """What somebody has changed by hand is seen from each side."""
    ledger = open_stores(database).ledger
    await ledger.post([charge(1, 10), charge(2, 20, key=12), charge(3, 30, key=21)])
    await database.change(delete(entries).where(entries.c.key_id == 11))
    await database.change(usage_days.update().where(usage_days.c.key_id == 12).values(cost_nanos=21))
    await database.change(delete(requests).where(requests.c.key_id == 21))
    assert await read_totals(ledger) == {(1, 11, 0, 10, 10), (1, 12, 20, 21, 20), (2, 21, 30, 30, 0)}


_MOMENTS = (
    "2026-02-28 23:59:59.999",
    "2026-03-01 00:00:00.000",
    "2026-03-14 23:59:59.999",
    "2026-03-15 00:00:00.000",
    "2026-03-16 00:00:00.000",
    "2026-03-31 23:59:59.999",
    "2026-04-01 00:00:00.000",
    "2025-12-31 23:59:59.999",
)
_TIMES = st.sampled_from([NOON_MS, *map(read_ms, _MOMENTS)])
_DAYS = st.sampled_from([TODAY, *map(day_at, _MOMENTS)])
_KEYS = st.sampled_from([11, 12, 21, 22])
_TOKENS = st.integers(0, 100_000_000)


@st.composite
def some_rows(draw: st.DrawFn) -> RequestRecord:
    row = charge(
        draw(st.integers(0, 12)), draw(st.just(0) | st.integers(0, 2**50)), at_ms=draw(_TIMES), key=draw(_KEYS)
    )
    row = attrs.evolve(
        row,
        model=draw(st.sampled_from(["a", "A", "é", "日本", "b"])),
        prompt_tokens=draw(_TOKENS),
        completion_tokens=draw(_TOKENS),
        cached_tokens=draw(_TOKENS),
    )
    return refuse(row) if draw(st.integers(0, 4)) == 0 else row


@st.composite
def some_credits(draw: st.DrawFn) -> LedgerEntry:
    key = draw(_KEYS)
    return LedgerEntry(
        0,
        draw(_TIMES),
        draw(st.sampled_from(["top_up", "set"])),
        key // 10,
        draw(st.sampled_from([key, None])),
        draw(st.sampled_from([1, 2]) | st.integers(-(2**60), 2**50)),
        reference=draw(st.sampled_from([None, "r1", "r2"])),
        note=draw(st.none() | st.text(max_size=5).filter(str.isprintable)),
    )


_FILTERS = st.builds(
    UsageFilter,
    since=st.sampled_from([0, TODAY.month_number, TODAY.number]),
    until=st.sampled_from([10**6, TODAY.number]),
    account_id=st.sampled_from([None, 1, 2]),
    key_id=st.sampled_from([None, 11, 21]),
    model=st.sampled_from([None, "a", "é"]),
)
_HISTORIES = st.lists(st.lists(some_rows(), max_size=8) | some_credits(), max_size=8)


async def empty(connection: AsyncConnection) -> None:
    for table in (requests, entries, usage_days, usage_hours):
        await connection.execute(delete(table))


async def tell(ledger: Any, step: list[RequestRecord] | LedgerEntry) -> object:
    """What it returns, without its numbers."""
    if isinstance(step, list):
        return await ledger.post(step)
    try:
        entry, added = await ledger.add_credit(step)
    except Conflict as conflict:
        return str(conflict)
    return attrs.evolve(entry, sequence=0), added


async def ask_all(ledger: Any, log: Any, day: UtcDay, wanted: UsageFilter) -> list[object]:
    """Everything that is summed, without its numbers."""
    balances = [(1, None), (2, None), (1, 11), (1, 12), (2, 21), (2, 22)]
    return [
        [stored.row for stored in await log.list_requests(RequestFilter(), 1000)],
        [[attrs.evolve(entry, sequence=0) for entry in await ledger.list_credits(*balance, 5)] for balance in balances],
        await read_spending(ledger, day),
        [list(await ledger.list_usage(axis, wanted)) for axis in AXES],
        await read_totals(ledger),
        await ledger.find_latest_s({1, 3}, day.start_s),
    ]


@pytest.mark.slow
@pytest.mark.timeout(400)  # a history that they disagree on is looked at again and again, until it is short
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example empties it
@given(history=_HISTORIES, day=_DAYS, wanted=_FILTERS)
async def test_every_history_comes_to_what_the_model_comes_to(
    database: Database, history: list[list[RequestRecord] | LedgerEntry], day: UtcDay, wanted: UsageFilter
) -> None:
    await database.write(empty)
    model, stores = LedgerModel(), open_stores(database)
    for step in history:
        assert await tell(model, step) == await tell(stores.ledger, step)
    assert await ask_all(model, model, day, wanted) == await ask_all(stores.ledger, stores.requests, day, wanted)
    assert all(total[2] == total[3] == total[4] for total in await read_totals(stores.ledger))
