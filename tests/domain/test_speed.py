"""Histograms of durations: how far a percentile is from the exact one, and whose requests a cell sums."""

import math
import random

import pytest

from gateway.domain.speed import (
    MAX_BUCKET,
    MAX_ERROR,
    SpeedKey,
    TimedRow,
    find_bucket,
    find_middle,
    find_percentile,
    parse_histogram,
    sum_speed,
    write_histogram,
)
from gateway.domain.traffic import HOUR_MS

ROW = TimedRow(
    settled_ms=49 * HOUR_MS + 5, account_id=3, key_id=7, model="m", channel="up", stream=True, total_ms=1_500,
    first_byte_ms=500, completion_tokens=80,
)  # fmt: skip


def find_exact(values: list[int], percent: int) -> int:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


@pytest.mark.parametrize("spread", [0.2, 1.0, 2.5])
def test_a_percentile_of_added_histograms_is_within_the_error_of_the_exact_one(spread: float) -> None:
    rng = random.Random(7)  # noqa: S311 - durations
    values = [max(int(rng.lognormvariate(7, spread)), 1) for _ in range(4_000)]
    parts = [sum_speed(ROW._replace(total_ms=value) for value in values[start::40]) for start in range(40)]
    total = parts[0][SpeedKey(24, 48, "all", "", 0)]
    for part in parts[1:]:
        total.add(part[SpeedKey(24, 48, "all", "", 0)])
    assert total.requests == len(values)
    for percent in (1, 50, 95, 99, 100):
        exact = find_exact(values, percent)
        assert find_percentile(total.latency, percent) == pytest.approx(exact, rel=MAX_ERROR + 1e-6)


def test_every_value_is_in_a_bucket_around_it() -> None:
    for value in (1, 2, 9, 10, 11, 99, 1_000, 86_400_000):
        assert find_middle(find_bucket(value)) == pytest.approx(value, rel=MAX_ERROR + 1e-6)
    assert find_middle(find_bucket(0)) == 0
    assert find_bucket(10**15) == MAX_BUCKET
    assert find_percentile({}, 50) is None


def test_a_histogram_is_what_was_written() -> None:
    histogram = {find_bucket(0): 2, 40: 1, 3: 9}
    assert parse_histogram(write_histogram(histogram)) == histogram


def test_a_row_is_in_the_cells_of_all_its_account_its_key_its_model_and_its_channel() -> None:
    cells = sum_speed([ROW, ROW])
    owners = [
        ("all", "", 0), ("all", "", 3), ("channel", "up", 0), ("key", "7", 3), ("model", "m", 0), ("model", "m", 3)
    ]  # fmt: skip
    assert sorted(cells) == [SpeedKey(span, hour, *owner) for span, hour in ((1, 49), (24, 48)) for owner in owners]  # type: ignore[arg-type]
    for cell in cells.values():
        assert (cell.latency, cell.first_byte) == ({find_bucket(1_500): 2}, {find_bucket(500): 2})
        assert cell.output_rate == {find_bucket(80): 2}


@pytest.mark.parametrize(
    "row",
    [
        ROW._replace(stream=False),
        ROW._replace(first_byte_ms=None),
        ROW._replace(completion_tokens=0),
        ROW._replace(first_byte_ms=1_500),
        ROW._replace(channel=None),
    ],
)
def test_what_a_row_does_not_tell_is_not_counted(row: TimedRow) -> None:
    cells = sum_speed([row])
    (cell,) = [cell for key, cell in cells.items() if key == SpeedKey(1, 49, "all", "", 0)]
    assert cell.requests == 1
    is_stream = row.stream and row.first_byte_ms is not None
    assert cell.first_byte.total() == is_stream
    assert cell.output_rate.total() == (is_stream and row.completion_tokens > 0 and row.first_byte_ms != row.total_ms)
    assert ("channel" in {key.kind for key in cells}) == bool(row.channel)
