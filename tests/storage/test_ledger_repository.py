"""What every driver of the ledger promises: one suite, run over each of them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from gateway.domain.balance import DAY_S, parse_day
from gateway.domain.ledger import LedgerEntry, UsageAxis, UsageFilter, UsageLine
from gateway.domain.request_log import RequestFilter
from gateway.errors import Conflict
from gateway.storage.bulk import ROWS_PER_INSERT
from tests.support.ledger_balances import ALWAYS, AXES, TODAY, day_at, read_ids, read_spending, read_totals
from tests.support.request_records import NOON_MS, ROW, charge, make_rows, read_ms, refuse
from tests.support.stores import Stores

DAY_MS = DAY_S * 1000
CREDIT = LedgerEntry(0, NOON_MS, "top_up", 1, None, 5_000, None, "invoice-1", "paid by card")


def labels(lines: Sequence[UsageLine]) -> list[str]:
    return [line.label for line in lines]


async def test_a_new_ledger_is_empty(stores: Stores) -> None:
    assert await read_spending(stores.ledger, TODAY) == {}
    assert await read_totals(stores.ledger) == set()
    assert list(await stores.ledger.list_credits(1, None, 10)) == []
    for axis in AXES:
        assert list(await stores.ledger.list_usage(axis, ALWAYS)) == []


async def test_a_row_is_charged_to_its_key_counted_on_its_day_and_kept_whole(stores: Stores) -> None:
    await stores.ledger.post([ROW])
    day = parse_day(ROW.settled_ms / 1000)
    cost = ROW.cost_nanos
    assert await read_spending(stores.ledger, day) == {(3, 5): (cost, cost, cost, 0, 0, 0)}
    line = UsageLine("", 1, ROW.prompt_tokens, ROW.completion_tokens, ROW.cached_tokens, cost)
    wanted: dict[UsageAxis, str] = {"day": str(day.number), "model": "m", "key": "5", "account": "3"}
    for axis, label in wanted.items():
        assert list(await stores.ledger.list_usage(axis, ALWAYS)) == [attrs.evolve(line, label=label)]
    assert await read_totals(stores.ledger) == {(3, 5, cost, cost, cost)}
    (stored,) = await stores.requests.list_requests(RequestFilter(), 10)
    assert stored.row == ROW


async def test_amounts_that_no_float_holds_are_added_up_to_the_last_nano(stores: Stores) -> None:
    costs = (2**60 + 1, 2**53 + 1, 3)
    await stores.ledger.post([charge(0, costs[0]), charge(1, costs[1])])
    await stores.ledger.post([charge(2, costs[2])])
    total = sum(costs)
    assert await read_spending(stores.ledger, TODAY) == {(1, 11): (total, total, total, 0, 0, 0)}
    assert await read_totals(stores.ledger) == {(1, 11, total, total, total)}
    assert [line.cost_nanos for line in await stores.ledger.list_usage("key", ALWAYS)] == [total]


async def test_a_row_that_is_there_is_charged_no_second_time(stores: Stores) -> None:
    """Alone, among new ones, twice in a batch, and whatever it says now."""
    await stores.ledger.post([charge(1, 10), charge(2, 20)])
    await stores.ledger.post([charge(1, 10)])
    await stores.ledger.post([charge(2, 999), charge(3, 30), charge(1, 10), charge(4, 40), charge(3, 30)])
    assert await read_spending(stores.ledger, TODAY) == {(1, 11): (100, 100, 100, 0, 0, 0)}
    assert await read_totals(stores.ledger) == {(1, 11, 100, 100, 100)}
    (line,) = await stores.ledger.list_usage("model", ALWAYS)
    assert line == UsageLine("m", 4, 400, 40, 4, 100)
    assert sorted(await read_ids(stores.requests)) == ["req_1", "req_2", "req_3", "req_4"]


async def test_batches_around_the_size_of_a_statement_are_stored_in_order_or_not_at_all(stores: Stores) -> None:
    sizes = (1, ROWS_PER_INSERT - 1, ROWS_PER_INSERT, ROWS_PER_INSERT + 1, 2 * ROWS_PER_INSERT + 3)
    posted: list[str] = []
    for size in sizes:
        names = [f"{size}_{number}" for number in range(size)]
        await stores.ledger.post([charge(name, 10) for name in names])
        posted += [f"req_{name}" for name in names]
        assert await read_ids(stores.requests) == posted
        assert await read_totals(stores.ledger) == {(1, 11, *[10 * len(posted)] * 3)}


@pytest.mark.parametrize("size", [3, ROWS_PER_INSERT + 2])
async def test_values_that_some_rows_lack_are_stored_as_they_are(stores: Stores, size: int) -> None:
    """A column that no row of a batch has is written as NULL into the statement: batches lack none, one and several."""
    lacks: tuple[dict[str, Any], ...] = ({"channel": None}, {"first_byte_ms": None}, {"error_code": "overloaded"}, {})
    rows = [
        charge(f"{batch}_{number}", 10) if number % 2 else attrs.evolve(charge(f"{batch}_{number}", 10), **lack)
        for batch, lack in enumerate(lacks)
        for number in range(size)
    ]
    for start in range(0, len(rows), size):
        await stores.ledger.post(rows[start : start + size])
    page = await stores.requests.list_requests(RequestFilter(), len(rows))
    assert {stored.row.id: stored.row for stored in page} == {row.id: row for row in rows}


async def test_of_two_rows_of_one_id_in_a_batch_the_first_counts(stores: Stores) -> None:
    await stores.ledger.post([charge(1, 10), charge(2, 20), charge(1, 99)])
    assert await read_spending(stores.ledger, TODAY) == {(1, 11): (30, 30, 30, 0, 0, 0)}
    assert await read_totals(stores.ledger) == {(1, 11, 30, 30, 30)}
    assert await read_ids(stores.requests) == ["req_1", "req_2"]


async def test_a_refused_call_leaves_a_row_and_is_no_usage(stores: Stores) -> None:
    await stores.ledger.post([refuse(charge(1, 0)), charge(2, 20), refuse(charge(3, 0, model="other"))])
    assert await read_ids(stores.requests) == ["req_1", "req_2", "req_3"]
    assert [line.requests for line in await stores.ledger.list_usage("key", ALWAYS)] == [1]
    assert labels(await stores.ledger.list_usage("model", ALWAYS)) == ["m"]


async def test_refused_calls_alone_are_stored(stores: Stores) -> None:
    await stores.ledger.post([refuse(charge(1, 0)), refuse(charge(2, 0))])
    assert await read_ids(stores.requests) == ["req_1", "req_2"]
    assert await read_spending(stores.ledger, TODAY) == {}
    assert list(await stores.ledger.list_usage("day", ALWAYS)) == []


async def test_a_call_that_cost_nothing_is_usage_and_no_charge(stores: Stores) -> None:
    await stores.ledger.post([charge(1, 0)])
    assert list(await stores.ledger.list_usage("key", ALWAYS)) == [UsageLine("11", 1, 100, 10, 1, 0)]
    assert await read_spending(stores.ledger, TODAY) == {}
    assert await read_totals(stores.ledger) == set()


async def test_batches_side_by_side_are_added_up(stores: Stores) -> None:
    await asyncio.gather(
        *(stores.ledger.post([charge(f"{batch}.{number}", 1) for number in range(20)]) for batch in range(10))
    )
    assert await read_totals(stores.ledger) == {(1, 11, 200, 200, 200)}


async def test_a_large_batch_is_stored_whole(stores: Stores) -> None:
    """The most that a crash can leave is stored in one go, also where half of it is there already."""
    rows = [charge(number, 1, key=11 + number % 3) for number in range(5_000)]
    await stores.ledger.post(rows[::2])
    await stores.ledger.post(rows)
    assert sum(total[2] for total in await read_totals(stores.ledger)) == 5_000


async def test_a_credit_is_stored_with_its_place_and_listed_newest_first(stores: Stores) -> None:
    first, added = await stores.ledger.add_credit(CREDIT)
    assert added
    assert first == attrs.evolve(CREDIT, sequence=first.sequence)
    bare = LedgerEntry(0, NOON_MS - 5, "set", 1, None, -7)
    second, added = await stores.ledger.add_credit(bare)
    assert added
    assert second == attrs.evolve(bare, sequence=second.sequence)
    assert 0 < first.sequence < second.sequence
    assert list(await stores.ledger.list_credits(1, None, 10)) == [second, first]
    assert list(await stores.ledger.list_credits(1, None, 1)) == [second]
    assert await read_spending(stores.ledger, TODAY) == {(1, None): (0, 0, 0, 4_993, 4_993, 4_993)}
    assert await read_totals(stores.ledger) == set()


async def test_a_balance_has_its_own_credits_only_and_no_charge_among_them(stores: Stores) -> None:
    await stores.ledger.post([charge(1, 10, key=11)])
    mine, _ = await stores.ledger.add_credit(attrs.evolve(CREDIT, key_id=11))
    shared, _ = await stores.ledger.add_credit(CREDIT)
    other, _ = await stores.ledger.add_credit(attrs.evolve(CREDIT, account_id=2))
    balances: list[tuple[int, int | None]] = [(1, 11), (1, None), (2, None), (1, 12), (2, 11)]
    lists = [list(await stores.ledger.list_credits(*balance, 10)) for balance in balances]
    assert lists == [[mine], [shared], [other], [], []]
    assert await read_spending(stores.ledger, TODAY) == {
        (1, 11): (10, 10, 10, 5_000, 5_000, 5_000),
        (1, None): (0, 0, 0, 5_000, 5_000, 5_000),
        (2, None): (0, 0, 0, 5_000, 5_000, 5_000),
    }


async def test_the_same_credit_again_is_the_one_that_is_there(stores: Stores) -> None:
    known, _ = await stores.ledger.add_credit(CREDIT)
    later = attrs.evolve(CREDIT, at_ms=NOON_MS + 10**9, note="again")
    assert await stores.ledger.add_credit(later) == (known, False)
    assert list(await stores.ledger.list_credits(1, None, 10)) == [known]


async def test_a_balance_set_again_under_its_reference_is_the_one_that_is_there_whatever_the_difference(
    stores: Stores,
) -> None:
    known, _ = await stores.ledger.add_credit(attrs.evolve(CREDIT, kind="set"))
    assert await stores.ledger.add_credit(attrs.evolve(CREDIT, kind="set", amount_nanos=-3)) == (known, False)
    assert await read_spending(stores.ledger, TODAY) == {(1, None): (0, 0, 0, 5_000, 5_000, 5_000)}


@pytest.mark.parametrize("other", [{"amount_nanos": 4_999}, {"kind": "set"}, {"kind": "set", "amount_nanos": 1}])
async def test_another_credit_under_a_reference_that_is_there_is_refused(stores: Stores, other: dict[str, Any]) -> None:
    known, _ = await stores.ledger.add_credit(CREDIT)
    with pytest.raises(Conflict, match="invoice-1") as caught:
        await stores.ledger.add_credit(attrs.evolve(CREDIT, **other))
    assert caught.value.param == "reference"
    assert list(await stores.ledger.list_credits(1, None, 10)) == [known]


async def test_a_reference_is_of_one_balance(stores: Stores) -> None:
    balances: list[tuple[int, int | None]] = [(1, None), (1, 11), (1, 12), (2, None), (2, 21)]
    for amount, (account_id, key_id) in enumerate(balances, 1):
        credit = attrs.evolve(CREDIT, account_id=account_id, key_id=key_id, amount_nanos=amount)
        assert (await stores.ledger.add_credit(credit))[1]
    amounts = [[entry.amount_nanos for entry in await stores.ledger.list_credits(*balance, 10)] for balance in balances]
    assert amounts == [[1], [2], [3], [4], [5]]


async def test_credits_without_a_reference_are_never_the_same(stores: Stores) -> None:
    for _ in range(2):
        assert (await stores.ledger.add_credit(attrs.evolve(CREDIT, reference=None)))[1]
    assert len(await stores.ledger.list_credits(1, None, 10)) == 2


async def test_of_credits_at_once_under_one_reference_one_is_stored(stores: Stores) -> None:
    answers = await asyncio.gather(*(stores.ledger.add_credit(CREDIT) for _ in range(10)))
    assert [added for _, added in answers].count(True) == 1
    assert len({entry for entry, _ in answers}) == 1
    assert len(await stores.ledger.list_credits(1, None, 10)) == 1


MOMENTS = [
    ("2026-02-28 23:59:59.999", "2026-03-01 12:00", (1, 0, 0)),
    ("2026-03-01 00:00:00.000", "2026-03-01 12:00", (1, 1, 1)),
    ("2026-03-01 23:59:59.999", "2026-03-01 12:00", (1, 1, 1)),
    ("2026-03-02 00:00:00.000", "2026-03-01 12:00", (1, 1, 0)),
    ("2026-03-31 23:59:59.999", "2026-03-01 12:00", (1, 1, 0)),
    ("2026-04-01 00:00:00.000", "2026-03-01 12:00", (1, 0, 0)),
    ("2025-12-31 23:59:59.999", "2026-01-01 00:00", (1, 0, 0)),
    ("2025-12-31 23:59:59.999", "2025-12-31 00:00", (1, 1, 1)),
    ("2025-12-01 00:00:00.000", "2025-12-31 23:59", (1, 1, 0)),
    ("2028-02-29 00:00:00.001", "2028-02-29 23:59", (1, 1, 1)),
    ("2028-02-29 23:59:59.999", "2028-03-01 00:00", (1, 0, 0)),
]
"""When something was charged or credited, when one asks, and whether it counts ever, this month, today."""


@pytest.mark.parametrize(("at", "asked", "counts"), MOMENTS)
async def test_days_and_months_end_at_midnight_in_utc(
    stores: Stores, at: str, asked: str, counts: tuple[int, int, int]
) -> None:
    await stores.ledger.post([charge(1, 7, at_ms=read_ms(at))])
    await stores.ledger.add_credit(attrs.evolve(CREDIT, key_id=11, at_ms=read_ms(at), amount_nanos=9))
    found = await read_spending(stores.ledger, day_at(asked))
    assert found == {(1, 11): (*(7 * count for count in counts), *(9 * count for count in counts))}


async def test_a_clock_that_was_moved_finds_the_sums_of_the_day_it_shows(stores: Stores) -> None:
    """Forward into a new month, and back again: nothing was forgotten, and what lies ahead is not of today."""
    yesterday, tomorrow = NOON_MS - DAY_MS, read_ms("2026-04-02 08:00")
    await stores.ledger.post([charge(1, 1), charge(2, 10, at_ms=yesterday), charge(3, 100, at_ms=tomorrow)])
    spent = [
        (await read_spending(stores.ledger, parse_day(now_ms / 1000)))[1, 11][:3]
        for now_ms in (yesterday, NOON_MS, tomorrow, NOON_MS)
    ]
    assert spent == [(111, 11, 10), (111, 11, 1), (111, 100, 100), (111, 11, 1)]


async def test_a_call_is_spent_on_the_day_it_was_settled(stores: Stores) -> None:
    midnight = read_ms("2026-03-15 00:00")
    await stores.ledger.post([attrs.evolve(charge(1, 5, at_ms=midnight), started_ms=midnight - 60_000)])
    assert labels(await stores.ledger.list_usage("day", ALWAYS)) == [str(midnight // DAY_MS)]
    assert (await read_spending(stores.ledger, TODAY))[1, 11] == (5, 5, 5, 0, 0, 0)


HISTORY = [
    charge(1, 5, key=11, model="a"),
    charge(2, 7, key=12, model="a"),
    charge(3, 1, key=21, model="b", at_ms=NOON_MS - DAY_MS),
    charge(4, 2, key=21, model="a", at_ms=NOON_MS + DAY_MS),
    charge(5, 9, key=21, model="b"),
]
YESTERDAY, NOW, TOMORROW = (TODAY.number + shift for shift in (-1, 0, 1))


@pytest.mark.parametrize(
    ("axis", "wanted", "expected"),
    [
        ("day", ALWAYS, {YESTERDAY: 1, NOW: 21, TOMORROW: 2}),
        ("model", ALWAYS, {"a": 14, "b": 10}),
        ("key", ALWAYS, {21: 12, 12: 7, 11: 5}),
        ("account", ALWAYS, {2: 12, 1: 12}),
        ("key", UsageFilter(NOW, NOW), {21: 9, 12: 7, 11: 5}),
        ("key", UsageFilter(YESTERDAY, NOW), {21: 10, 12: 7, 11: 5}),
        ("day", UsageFilter(NOW, 10**6), {NOW: 21, TOMORROW: 2}),
        ("day", UsageFilter(0, YESTERDAY), {YESTERDAY: 1}),
        ("day", UsageFilter(TOMORROW, NOW), {}),
        ("day", attrs.evolve(ALWAYS, key_id=21), {YESTERDAY: 1, NOW: 9, TOMORROW: 2}),
        ("model", attrs.evolve(ALWAYS, account_id=1), {"a": 12}),
        ("model", attrs.evolve(ALWAYS, key_id=21), {"b": 10, "a": 2}),
        ("account", attrs.evolve(ALWAYS, model="a"), {1: 12, 2: 2}),
        ("account", attrs.evolve(ALWAYS, model="A"), {}),
        ("key", attrs.evolve(ALWAYS, key_id=0), {}),
        ("key", attrs.evolve(ALWAYS, account_id=1, key_id=21), {}),
        ("key", UsageFilter(NOW, TOMORROW, account_id=2, key_id=21, model="a"), {21: 2}),
    ],
)
async def test_usage_is_summed_along_every_axis_of_what_is_asked_for(
    stores: Stores, axis: UsageAxis, wanted: UsageFilter, expected: dict[object, int]
) -> None:
    await stores.ledger.post(HISTORY)
    lines = await stores.ledger.list_usage(axis, wanted)
    assert [(line.label, line.cost_nanos) for line in lines] == [(str(name), cost) for name, cost in expected.items()]
    for line in lines:
        assert (line.prompt_tokens, line.completion_tokens, line.cached_tokens) == (
            100 * line.requests,
            10 * line.requests,
            line.requests,
        )


async def test_what_costs_alike_is_listed_by_requests_and_then_by_name(stores: Stores) -> None:
    await stores.ledger.post(
        [
            *(charge(model, 4, key=10 + number, model=model) for number, model in enumerate(("z", "B", "a", "é"))),
            *(charge(f"two {number}", 2, key=9, model="two") for number in range(2)),
            charge("dear", 5, key=100, model="dear"),
        ]
    )
    assert labels(await stores.ledger.list_usage("model", ALWAYS)) == ["dear", "two", "B", "a", "z", "é"]
    assert labels(await stores.ledger.list_usage("key", ALWAYS)) == ["100", "9", "10", "11", "12", "13"]


async def test_the_totals_of_every_key_agree(stores: Stores) -> None:
    await stores.ledger.post([*HISTORY, charge(6, 0, key=22), refuse(charge(7, 0, key=23))])
    await stores.ledger.add_credit(attrs.evolve(CREDIT, key_id=11))
    assert await read_totals(stores.ledger) == {(1, 11, 5, 5, 5), (1, 12, 7, 7, 7), (2, 21, 12, 12, 12)}


async def test_what_one_connection_posts_the_others_read_at_once(stores: Stores) -> None:
    for number in range(5):
        await stores.ledger.post(make_rows(number, settled_ms=NOON_MS, cost_nanos=1))
        answers = await asyncio.gather(*(read_totals(stores.ledger) for _ in range(4)))
        assert answers == [{(3, 5, number + 1, number + 1, number + 1)}] * 4
