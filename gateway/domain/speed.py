"""How long requests take: histograms that can be added up, which gives the percentiles of any period.

A bucket is a tenth wider than the one before. The value shown for a bucket is its geometric middle: a percentile
differs from the exact one by at most ``MAX_ERROR``, however many histograms were added up. ``MAX_BUCKET`` is reached
after 50 days; longer durations count as 50 days.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import orjson

from gateway.domain.traffic import HOUR_MS, SPANS
from gateway.frozen import frozen

GROWTH = 1.1
MAX_ERROR = math.sqrt(GROWTH) - 1
"""The largest relative error of a percentile: 4.9 %."""
MAX_BUCKET = 233
_ZERO_BUCKET = -1
_LOG_GROWTH = math.log(GROWTH)

CellKind = Literal["all", "key", "model", "channel"]

Histogram = Counter[int]
"""How many values there are, by the number of their bucket."""


def find_bucket(value: float) -> int:
    """Return the number of the bucket of a value; values below 1 have a bucket of their own."""
    if value < 1:
        return _ZERO_BUCKET
    return min(int(math.log(value) / _LOG_GROWTH + 1e-9), MAX_BUCKET)


def find_middle(bucket: int) -> float:
    """Return the value that is shown for a bucket."""
    return 0.0 if bucket == _ZERO_BUCKET else GROWTH ** (bucket + 0.5)


def find_percentile(histogram: Mapping[int, int], percent: int) -> float | None:
    """Return the smallest value that ``percent`` of the values do not exceed; None without values."""
    total = sum(histogram.values())
    if not total:
        return None
    rank, seen = -(-total * percent // 100), 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= rank:
            return find_middle(bucket)
    return None


def write_histogram(histogram: Mapping[int, int]) -> str:
    """Write a histogram as JSON: ``[bucket, count, bucket, count, …]``."""
    return orjson.dumps([number for bucket in sorted(histogram) for number in (bucket, histogram[bucket])]).decode()


def parse_histogram(text: str) -> Histogram:
    """Parse the result of ``write_histogram``."""
    numbers = orjson.loads(text)
    return Counter(dict(zip(numbers[::2], numbers[1::2], strict=True)))


class SpeedKey(NamedTuple):
    """The key of a cell: its hours, and whose requests it sums.

    Attributes:
        span, hour: the number of hours, and the first one, counted in UTC since 1970.
        name: the key's id, the model or the channel; empty for "all".
        account_id: only the requests of this account; 0: of all accounts. A key has one account.
    """

    span: int
    hour: int
    kind: CellKind
    name: str
    account_id: int


@frozen
class Speed:
    """Histograms of completed requests.

    Attributes:
        latency: durations in milliseconds.
        first_byte: milliseconds from the arrival of a stream's request to its first byte.
        output_rate: tokens per second of a stream, after its first byte.
    """

    latency: Histogram
    first_byte: Histogram
    output_rate: Histogram

    def add(self, other: "Speed") -> None:
        """Add the other histograms to these."""
        self.latency.update(other.latency)
        self.first_byte.update(other.first_byte)
        self.output_rate.update(other.output_rate)

    @property
    def requests(self) -> int:
        """The number of requests that were measured."""
        return self.latency.total()


def make_speed() -> Speed:
    """Return empty histograms."""
    return Speed(Counter(), Counter(), Counter())


class TimedRow(NamedTuple):
    """What a completed request says about speed. The names are those of its columns."""

    settled_ms: int
    account_id: int
    key_id: int
    model: str
    channel: str | None
    stream: bool
    total_ms: int
    first_byte_ms: int | None
    completion_tokens: int


def sum_speed(rows: Iterable[TimedRow]) -> dict[SpeedKey, Speed]:
    """Return the histograms of completed requests of each hour and day: of all, and by account, key, model, channel."""
    counts: Counter[tuple[int, int, int, str, str | None, int, int | None, int | None]] = Counter()
    for row in rows:
        first_byte, output_rate = _measure_stream(row)
        owner = (row.settled_ms // HOUR_MS, row.account_id, row.key_id, row.model, row.channel)
        counts[(*owner, find_bucket(row.total_ms), first_byte, output_rate)] += 1
    cells: defaultdict[SpeedKey, Speed] = defaultdict(make_speed)
    for (hour, account_id, key_id, model, channel, latency, first_byte, output_rate), count in counts.items():
        scopes: list[tuple[CellKind, str, int]] = [
            ("all", "", 0), ("all", "", account_id), ("key", str(key_id), account_id),
            ("model", model, 0), ("model", model, account_id),
        ]  # fmt: skip
        if channel:
            scopes.append(("channel", channel, 0))
        for span in SPANS:
            for scope in scopes:
                cell = cells[SpeedKey(span, hour // span * span, *scope)]
                cell.latency[latency] += count
                if first_byte is not None:
                    cell.first_byte[first_byte] += count
                if output_rate is not None:
                    cell.output_rate[output_rate] += count
    return dict(cells)


def sum_times(rows: Iterable[TimedRow], unit_ms: int) -> dict[int, Speed]:
    """Return the histograms of completed requests for each period of ``unit_ms``, by its number since 1970."""
    speeds: defaultdict[int, Speed] = defaultdict(make_speed)
    for row in rows:
        speed = speeds[row.settled_ms // unit_ms]
        first_byte, output_rate = _measure_stream(row)
        speed.latency[find_bucket(row.total_ms)] += 1
        if first_byte is not None:
            speed.first_byte[first_byte] += 1
        if output_rate is not None:
            speed.output_rate[output_rate] += 1
    return dict(speeds)


def _measure_stream(row: TimedRow) -> tuple[int | None, int | None]:
    """Return the buckets of a stream's wait for its first byte and of its tokens per second; None if unknown."""
    if not row.stream or row.first_byte_ms is None:
        return None, None
    answer_ms = row.total_ms - row.first_byte_ms
    has_rate = row.completion_tokens > 0 and answer_ms > 0
    rate = find_bucket(row.completion_tokens * 1000 / answer_ms) if has_rate else None
    return find_bucket(row.first_byte_ms), rate
