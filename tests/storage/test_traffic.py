"""What every driver promises of traffic: sums of hours and days, along every axis, and what there is to choose from."""

from typing import Any

import attrs
import pytest

from gateway.billing.forecaster import SpendingForecaster
from gateway.domain.balance import DAY_S
from gateway.domain.forecast import Forecast, LimitUse
from gateway.domain.request_log import RequestRecord
from gateway.domain.traffic import HOUR_MS, MAX_FACETS, Facet, TrafficAxis, TrafficFilter
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.traffic import TrafficRepository
from tests.support.request_records import charge, read_ms, refuse
from tests.support.stores import Stores

MIDNIGHT_MS = read_ms("2026-03-15 00:00")
TODAY = MIDNIGHT_MS // HOUR_MS
ALWAYS = TrafficFilter(0, 10**6)


def at(hour: int, name: object, cost: int = 0, *, key: int = 11, **values: Any) -> RequestRecord:
    """A row of 100 + 10 tokens, settled so many hours after the midnight with which the fifteenth of March begins."""
    row = charge(name, cost, at_ms=MIDNIGHT_MS + hour * HOUR_MS + 1, key=key)
    return attrs.evolve(row, **{"channel": "up", "total_ms": 5, **values})


HISTORY = [
    at(-1, 1, 7, model="a"),
    at(0, 2, 5, model="a", saved_nanos=2**53 + 1),
    at(0, 3, 5, model="b", key=21, saved_nanos=-3),
    at(1, 4, 1, model="b", channel="other"),
    at(23, 5, 2, model="a", status=502, outcome="failed"),
    refuse(at(23, 6, model="a")),
    attrs.evolve(refuse(at(24, 7, model="nonsense", key=21)), error_code="model_not_found"),
    at(47, 8, 9, model="c", key=21, outcome="client_closed"),
]


@pytest.fixture
async def used(stores: Stores) -> Stores:
    for row in HISTORY:
        await stores.ledger.post([row])
    return stores


CASES: list[tuple[TrafficAxis, TrafficFilter, dict[object, int]]] = [
    ("day", ALWAYS, {TODAY // 24 - 1: 1, TODAY // 24: 5, TODAY // 24 + 1: 2}),
    ("hour", ALWAYS, {TODAY - 1: 1, TODAY: 2, TODAY + 1: 1, TODAY + 23: 2, TODAY + 24: 1, TODAY + 47: 1}),
    ("model", ALWAYS, {"a": 4, "c": 1, "b": 2, "": 1}),
    ("key", ALWAYS, {11: 5, 21: 3}),
    ("account", ALWAYS, {1: 5, 2: 3}),
    ("status", ALWAYS, {200: 5, 502: 1, 403: 2}),
    ("channel", ALWAYS, {"up": 5, "other": 1, "": 2}),
    ("model", TrafficFilter(TODAY, TODAY + 24), {"a": 3, "b": 2}),
    ("model", TrafficFilter(TODAY - 1, TODAY + 1), {"a": 2, "b": 1}),
    ("model", TrafficFilter(TODAY + 1, TODAY + 48), {"c": 1, "a": 2, "b": 1, "": 1}),
    ("day", TrafficFilter(TODAY + 1, TODAY + 25), {TODAY // 24: 3, TODAY // 24 + 1: 1}),
    ("hour", TrafficFilter(TODAY, TODAY + 2), {TODAY: 2, TODAY + 1: 1}),
    ("hour", TrafficFilter(TODAY, TODAY), {}),
    ("day", TrafficFilter(TODAY, TODAY), {}),
    ("day", attrs.evolve(ALWAYS, key_id=21, model="b"), {TODAY // 24: 1}),
    ("model", attrs.evolve(ALWAYS, account_id=2), {"c": 1, "b": 1, "": 1}),
    ("key", attrs.evolve(ALWAYS, channel="other"), {11: 1}),
    ("hour", attrs.evolve(ALWAYS, status=502), {TODAY + 23: 1}),
    ("key", attrs.evolve(ALWAYS, model="A"), {}),
]


async def test_traffic_is_summed_along_every_axis_of_what_is_asked_for(used: Stores) -> None:
    for axis, wanted, expected in CASES:
        lines = await used.traffic.list_traffic(axis, wanted)
        found = [(line.label, line.requests) for line in lines]
        assert found == [(str(name), count) for name, count in expected.items()], (axis, wanted)


async def test_a_line_has_every_sum(used: Stores) -> None:
    (line,) = await used.traffic.list_traffic("day", TrafficFilter(TODAY, TODAY + 24))
    assert attrs.astuple(line)[1:] == (5, 2, 500, 50, 5, 13, 25, 2**53 - 2)


async def test_a_row_that_is_posted_again_is_summed_no_second_time(used: Stores) -> None:
    before = await used.traffic.list_traffic("hour", ALWAYS)
    await used.ledger.post([*HISTORY, *HISTORY[:2]])
    await used.ledger.post_again(HISTORY)
    assert await used.traffic.list_traffic("hour", ALWAYS) == before


async def test_sums_outlive_their_key_and_their_account(stores: Stores) -> None:
    """And apply to accounts that have none any more."""
    await stores.ledger.post([at(0, 1, 5, key=999)])
    assert [line.label for line in await stores.traffic.list_traffic("key", ALWAYS)] == ["999"]


def facets(*pairs: tuple[object, int]) -> list[Facet]:
    return [Facet(str(value), count) for value, count in pairs]


async def test_facets_are_the_values_that_there_are_the_most_frequent_first(used: Stores) -> None:
    found = await used.traffic.list_facets(ALWAYS)
    assert found.models == facets(("a", 4), ("b", 2), ("c", 1))
    assert found.keys == facets((11, 5), (21, 3))
    assert found.statuses == facets((200, 5), (403, 2), (502, 1))
    assert found.channels == facets(("up", 5), ("other", 1))
    assert (found.since, found.until) == (0, 10**6)


async def test_a_facet_counts_as_if_nothing_had_been_chosen_of_it(used: Stores) -> None:
    found = await used.traffic.list_facets(attrs.evolve(ALWAYS, key_id=21, model="b"))
    assert found.models == facets(("b", 1), ("c", 1))
    assert found.keys == facets((11, 1), (21, 1))
    assert found.statuses == facets((200, 1))
    found = await used.traffic.list_facets(attrs.evolve(ALWAYS, account_id=2, channel="up"))
    assert found.keys == facets((21, 2))
    assert found.channels == facets(("up", 2))


async def test_facets_count_failures_or_what_was_none(used: Stores) -> None:
    wrong = await used.traffic.list_facets(attrs.evolve(ALWAYS, verdict="error"))
    assert (wrong.models, wrong.keys) == (facets(("a", 2)), facets((11, 2), (21, 1)))
    assert wrong.statuses == facets((200, 5), (403, 2), (502, 1))
    well = await used.traffic.list_facets(attrs.evolve(ALWAYS, verdict="ok", status=200))
    assert (well.models, well.channels) == (facets(("a", 2), ("b", 2), ("c", 1)), facets(("up", 4), ("other", 1)))


async def test_of_the_time_that_is_asked_for_alone(used: Stores) -> None:
    found = await used.traffic.list_facets(TrafficFilter(TODAY - 1, TODAY + 2))
    assert found.models == facets(("a", 2), ("b", 2))
    assert list((await used.traffic.list_facets(TrafficFilter(TODAY, TODAY))).models) == []


async def test_there_are_never_very_many_facets(stores: Stores) -> None:
    await stores.ledger.post([at(0, number, model=f"m{number:03}") for number in range(MAX_FACETS + 5)])
    found = (await stores.traffic.list_facets(ALWAYS)).models
    assert [facet.value for facet in found] == [f"m{number:03}" for number in range(MAX_FACETS)]


async def test_where_there_are_too_many_sums_the_newest_days_are_counted_and_it_says_since_when(
    database: Database,
) -> None:
    ledger = LedgerRepository(database)
    await ledger.post([at(24 * day, f"{day}.{key}", key=key) for day in range(10) for key in (11, 12, 21)])
    wanted = TrafficFilter(TODAY - 1, TODAY + 24 * 9 + 5)
    cases = ((30, -1, 10), (27, -1, 10), (26, 24, 9), (6, 24 * 7, 3), (1, 24 * 8, 2), (0, 24 * 8, 2))
    for most, since, counted in cases:
        found = await TrafficRepository(database, most).list_facets(wanted)
        assert (found.since - TODAY, found.until) == (since, wanted.until), most
        assert [facet.requests for facet in found.keys] == [counted] * 3, most


async def test_what_is_spent_is_summed_for_the_hours_that_are_asked_for_only(used: Stores) -> None:
    hours = [TODAY - 1, TODAY, TODAY + 23, TODAY + 24]
    assert await used.traffic.sum_costs(1, hours, 1, None) == {TODAY - 1: 7, TODAY: 5, TODAY + 23: 2}
    assert await used.traffic.sum_costs(1, hours, 2, None) == {TODAY: 5}
    assert await used.traffic.sum_costs(1, hours, 1, 11) == {TODAY - 1: 7, TODAY: 5, TODAY + 23: 2}
    assert await used.traffic.sum_costs(1, hours, 1, 12) == {}
    assert await used.traffic.sum_costs(24, [TODAY - 24, TODAY, TODAY + 24], 1, None) == {TODAY - 24: 7, TODAY: 8}
    assert await used.traffic.sum_costs(24, [], 1, None) == {}


async def test_the_costs_of_each_key_are_listed_by_hour(used: Stores) -> None:
    costs = await used.traffic.list_key_costs([TODAY, TODAY + 1, TODAY + 24])
    assert sorted(map(attrs.astuple, costs)) == [(TODAY, 1, 11, 5), (TODAY, 2, 21, 5), (TODAY + 1, 1, 11, 1)]
    assert await used.traffic.list_key_costs([]) == []


async def test_the_most_used_limits_are_forecast_by_what_the_store_has(used: Stores) -> None:
    def use(account_id: int, key_id: int | None, spent_nanos: int) -> LimitUse:
        started_s = read_ms("2026-03-22 00:00") // 1000
        return LimitUse(f"{account_id}/{key_id}", 1_000, spent_nanos, started_s, started_s + DAY_S, account_id, key_id)

    forecaster = SpendingForecaster(used.traffic, lambda: read_ms("2026-03-22 06:00") / 1000)
    (last_week,) = await forecaster.forecast_limits([use(1, None, 100), use(2, None, 99)], 1)
    # What is left of a Sunday is its last hour, which cost 2.
    assert (last_week[0].name, last_week[1]) == ("1/None", Forecast("past_weeks", None, 102))
    forecasts = await forecaster.forecast_limits([use(1, 12, 150), use(2, 21, 400)], 2)
    assert [(limit_use.name, result.basis, result.reached_s is not None) for limit_use, result in forecasts] == [
        ("1/12", "this_window", False),
        ("2/21", "past_weeks", False),
    ]
