"""What rows add to the sums of traffic, and which sums make up a stretch of time."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request_log import RequestRecord
from gateway.domain.traffic import DAY_HOURS, HOUR_MS, SUMMED_FIELDS, TrafficFilter, add_sums, split_hours, sum_rows
from tests.support.request_records import make_row, refuse

HOURS = st.integers(0, 500_000)


@given(HOURS, st.integers(0, 2_000))
def test_a_stretch_is_covered_once_by_whole_days_and_hours_at_its_ends(since: int, length: int) -> None:
    until = since + length
    stretches = split_hours(since, until)
    covered = [hour for one in stretches for hour in range(one.since, one.until)]
    assert sorted(covered) == list(range(since, until))
    for one in stretches:
        assert one.span == 1 or one.since % one.span == one.until % one.span == 0
    assert sum(one.until - one.since for one in stretches if one.span == 1) < 2 * DAY_HOURS


def row_at(hour: int, number: int = 0, **values: object) -> RequestRecord:
    return make_row(number, settled_ms=hour * HOUR_MS + number, **values)


def test_a_row_is_in_the_sums_of_its_hour_and_of_its_day() -> None:
    row = row_at(49, account_id=3, key_id=5, model="m", channel="up", status=200, cached_tokens=3, saved_nanos=-2)
    sums = (1, 0, row.prompt_tokens, row.completion_tokens, 3, row.cost_nanos, row.total_ms, -2)
    assert sum_rows([row]) == {(1, 49, 3, 5, "m", "up", 200): sums, (24, 48, 3, 5, "m", "up", 200): sums}
    assert len(sums) == len(SUMMED_FIELDS)


def test_what_differs_in_anything_is_summed_apart() -> None:
    differing: tuple[dict[str, object], ...] = (
        {}, {"account_id": 9}, {"key_id": 9}, {"model": "n"}, {"channel": "other"}, {"channel": None}, {"status": 500},
    )  # fmt: skip
    rows = [row_at(49, number, **values) for number, values in enumerate(differing)]
    assert [sums[0] for sums in sum_rows([*rows, *rows]).values()] == [2] * 14


def test_what_went_wrong_is_counted_and_who_left_is_not() -> None:
    outcomes = ("completed", "client_closed", "refused", "failed", "interrupted", "failed")
    rows = [row_at(1, number, outcome=outcome) for number, outcome in enumerate(outcomes)]
    assert {sums[:2] for sums in sum_rows(rows).values()} == {(6, 4)}


def test_a_name_that_no_channel_knows_is_no_model_and_that_of_a_refusal_is() -> None:
    """A caller who invents names must not fill the sums with them."""
    invented = [
        refuse(row_at(1, number, model=f"gpt-{number}", error_code=code))
        for number, code in enumerate(("model_not_found", "model_not_allowed"))
    ]
    limited = refuse(row_at(1, 3, model="m", error_code="rate_limit_exceeded"))
    denied = row_at(1, 4, model="theirs", error_code="model_not_found", channel="up", attempts=1)
    models = {traffic_key[4:6] for traffic_key in sum_rows([*invented, limited, denied])}
    assert models == {("", ""), ("m", ""), ("theirs", "up")}


@given(st.lists(st.builds(row_at, st.integers(0, 60), st.integers(0, 9), key_id=st.integers(1, 2)), max_size=20))
def test_the_sums_of_a_day_are_those_of_its_hours(rows: list[RequestRecord]) -> None:
    found = sum_rows(rows)
    assert list(found) == sorted(found)
    days: dict[tuple[Any, ...], Any] = {}
    for (span, hour, *rest), sums in found.items():
        if span == 1:
            place = (24, hour // 24 * 24, *rest)
            days[place] = add_sums(days.get(place, (0,) * len(SUMMED_FIELDS)), sums)
    assert days == {traffic_key: sums for traffic_key, sums in found.items() if traffic_key[0] == 24}
    assert sum(sums[0] for sums in days.values()) == len(rows)


def test_a_filter_chooses_by_what_it_names() -> None:
    place = (1, 49, 3, 5, "m", "up", 200)
    assert TrafficFilter(0, 1).matches(place)
    assert TrafficFilter(0, 1, 3, 5, "m", "up", 200).matches(place)
    for other in ((4,), (3, 6), (3, 5, "M"), (3, 5, "m", ""), (3, 5, "m", "up", 500)):
        assert not TrafficFilter(0, 1, *other).matches(place)
