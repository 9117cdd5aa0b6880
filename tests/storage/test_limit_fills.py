"""Stored requests are counted for a new limit once, on both databases, whatever changes them meanwhile."""

from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select, update

from gateway.billing.limit_filler import RowMatcher
from gateway.domain.limit import Limit, LimitCharge, build_charges, parse_charges
from gateway.domain.limit_window import DAY_S, parse_window
from gateway.domain.request_log import RequestRecord
from gateway.storage.database import Database
from gateway.storage.forgotten_users import ForgottenUserRepository
from gateway.storage.ledger import LedgerRepository
from gateway.storage.ledger_rows import reverse_rows
from gateway.storage.limit_counters import LimitCounters
from gateway.storage.limit_fills import BEFORE_UPGRADE, LimitFill, LimitFillRepository
from gateway.storage.retention import RetentionRepository
from gateway.storage.schema import metadata, requests
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.request_records import charge

DAY = 20_400 * DAY_S
EACH_USER = Limit("each user", "user", window=parse_window("day"))
EACH_KEY = Limit("each \"key\" [of 'app']", "key", keys=("app",), window=parse_window("rolling:24h"))


def ask(number: int, **values: Any) -> RequestRecord:
    fields = {
        "end_user": ("", "ann", 'b"o\\b')[number % 3],
        "settled_ms": (DAY + number * 60) * 1000,
        "key_name": ("app", "other")[number % 2],
        "limit_charges": "",
    }
    return attrs.evolve(charge(number, number), **{**fields, **values})


def find_window(limit: Limit, _account_id: int, at_s: float) -> tuple[int, int]:
    return limit.window.find(at_s, limit.build_zone())


class Fills:
    """Fills of both limits, each by its own steps."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.repository = LimitFillRepository(database)
        self.matchers = {limit.counter: RowMatcher(limit, DAY, find_window) for limit in (EACH_USER, EACH_KEY)}

    async def begin(self) -> None:
        await self.repository.put(
            [LimitFill(counter, since_s=DAY, created_s=DAY + DAY_S, state="filling") for counter in self.matchers]
        )

    async def count(self, counter: str, max_rows: int) -> bool:
        """Do a step as a process does that was just started; return whether all rows are counted."""
        fill = (await self.repository.list_fills())[counter]
        step = await self.repository.count(fill, max_rows, self.matchers[counter].find_charge)
        assert step is not None
        return step.ended

    async def check(self) -> dict[LimitCharge, int]:
        """The sums are those of the stored rows."""
        counters = LimitCounters(self.database)
        stored = {limit_charge: nanos for limit_charge, nanos in (await counters.list_all()).items() if nanos}
        assert stored == (await counters.recompute()).spent
        return stored


def sum_up(rows: list[RequestRecord], **names: str) -> dict[LimitCharge, int]:
    """What both limits count of ``rows``, with the new names of users."""
    sums: dict[LimitCharge, int] = {}
    for row in rows:
        charges = []
        if user := names.get(row.end_user, row.end_user):
            charges.append((EACH_USER.counter, f"{row.account_id}:{user}", DAY))
        if row.key_name == "app":
            charges.append((EACH_KEY.counter, str(row.key_id), row.settled_ms // 1000 // 1440 * 1440))
        for limit_charge in charges:
            sums[limit_charge] = sums.get(limit_charge, 0) + row.cost_nanos
    return {limit_charge: nanos for limit_charge, nanos in sums.items() if nanos}


async def test_requests_that_are_renamed_reversed_and_posted_meanwhile_count_once(database: Database) -> None:
    fills, ledger, users = Fills(database), LedgerRepository(database), ForgottenUserRepository(database)
    rows = [ask(number) for number in range(1, 40)]
    await ledger.post([ask(100, settled_ms=(DAY - 1) * 1000), *rows])
    await fills.begin()
    for counter in (EACH_USER.counter, EACH_KEY.counter, EACH_USER.counter):
        assert not await fills.count(counter, 7)
        await fills.check()
    assert await users.rename_rows("ann", "x", None, await users.find_last_row())
    await fills.check()
    own = [(EACH_USER.counter, "1:eve", DAY)]
    await ledger.post([ask(41, end_user="eve", key_name="other", limit_charges=build_charges(own))])
    gone = [row for row in rows if row.id in {rows[1].id, rows[30].id}]
    stored = [attrs.evolve(row, limit_charges=await find_charges(database, row.id)) for row in gone]
    assert [bool(row.limit_charges) for row in stored] == [True, False], "one was counted, one not yet"
    await database.write(lambda connection: reverse_rows(connection, stored, database.subjects))
    await fills.check()
    for counter in fills.matchers:
        while not await fills.count(counter, 7):
            await fills.check()
        assert await fills.count(counter, 7), "nothing is left, and nothing counts again"
    left = [row for row in rows if row not in gone]
    assert await fills.check() == sum_up(left, ann="x") | {own[0]: 41}


async def find_charges(database: Database, request_id: str) -> str:
    ((text,),) = await database.read(select(requests.c.limit_charges).where(requests.c.id == request_id))
    assert isinstance(text, str)
    parse_charges(text)
    return text


@SQLITE_ONLY
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(["user", "key", "retire"]), st.integers(1, 9)), max_size=30))
async def test_what_retention_deletes_meanwhile_is_counted_before_or_not(
    database: Database, steps: list[tuple[str, int]]
) -> None:
    await database.write(empty)
    fills, retention = Fills(database), RetentionRepository(database)
    rows = [ask(number) for number in range(1, 30)]
    await LedgerRepository(database).post(rows)
    await fills.begin()
    counted = {EACH_USER.counter: 0, EACH_KEY.counter: 0}
    expected: dict[LimitCharge, int] = {}
    deleted = 0
    for what, number in steps:
        if what == "retire":
            deleted = min(29, deleted + number)
            await retention.retire_requests((DAY + (deleted + 1) * 60) * 1000, 0, 100)
            continue
        counter = (EACH_USER if what == "user" else EACH_KEY).counter
        start = max(counted[counter], deleted)
        await fills.count(counter, number)
        counted[counter] = max(counted[counter], min(29, start + number))
        for limit_charge, nanos in sum_up(rows[start : counted[counter]]).items():
            if limit_charge[0] == counter:
                expected[limit_charge] = expected.get(limit_charge, 0) + nanos
    assert {item: nanos for item, nanos in (await LimitCounters(database).list_all()).items() if nanos} == expected
    since_s = await fills.repository.find_retired_s()
    assert since_s == (DAY + deleted * 60 + 1 if deleted else 0), "from then on every request is there"


async def empty(connection: Any) -> None:
    for name in ("requests", "retired", "limit_counters", "entries", "usage_days", "usage_hours", "limit_fills"):
        await connection.execute(delete(metadata.tables[name]))


async def test_a_limit_that_is_gone_is_not_filled_and_a_state_is_that_of_its_limit(database: Database) -> None:
    fills = LimitFillRepository(database)
    await LedgerRepository(database).post([ask(1), ask(2)])
    await fills.put([LimitFill("a", ("k",), 7, 5, 3, 0, "filling")], [BEFORE_UPGRADE])
    (fill,) = (await fills.list_fills()).values()
    assert fill == LimitFill("a", ("k",), 7, 5, 3, 0, "filling")
    await fills.put_state(attrs.evolve(fill, created_s=4), "done", 3)
    assert (await fills.list_fills())["a"].state == "filling", "it was for another one"
    await fills.put_state(fill, "following", 4)
    assert (await fills.list_fills())["a"] == attrs.evolve(fill, state="following", since_s=4)
    await fills.put([], ["a"])
    assert await fills.count(fill, 9, RowMatcher(EACH_USER, 0, find_window).find_charge) is None
    assert await LimitCounters(database).list_all() == {}


@pytest.mark.parametrize(("since_s", "expected"), [(0, 0), (DAY, 0), (DAY + DAY_S, 30_001 - 10_000)])
async def test_a_fill_begins_before_the_first_request_of_its_window(
    database: Database, since_s: int, expected: int
) -> None:
    """Requests that a node has stored days late are among newer ones."""
    fills, ledger = LimitFillRepository(database), LedgerRepository(database)
    assert await fills.find_before(since_s) == 0
    await ledger.post([ask(1)])

    async def skip(connection: Any) -> None:
        await connection.execute(update(requests).where(requests.c.sequence == 2).values(sequence=30_001))

    await ledger.post([ask(2, settled_ms=(DAY + DAY_S) * 1000)])
    await database.write(skip)
    assert await fills.find_before(since_s) == expected
