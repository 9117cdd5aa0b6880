"""Traffic: all requests, including refused ones, summed by hour and day, for charts and facets.

Sums are written in the transaction of their rows, and outlive the rows. Hours are UTC, as numbers since 1970.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Literal

from gateway.answer_fields import Count
from gateway.domain.request_log import RequestRecord, Verdict, has_failed
from gateway.frozen import frozen

HOUR_MS = 3_600_000
DAY_HOURS = 24
SPANS = (1, DAY_HOURS)
"""The lengths of the periods that are summed, in hours."""
MAX_FACETS = 100
"""The maximum number of facets of each kind, such as models or keys."""

TrafficAxis = Literal["day", "hour", "model", "key", "account", "status", "channel"]

TrafficKey = tuple[int, int, int, int, str, str, int]
"""The key of a sum: span, first hour, account, key, model, channel, status."""
Sums = tuple[int, ...]
"""The amounts of a sum, in the order of ``SUMMED_FIELDS``."""
SUMMED_FIELDS = (
    "requests", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos", "total_ms",
    "saved_nanos",
)  # fmt: skip

UNKNOWN_MODEL_CODES = frozenset({"model_not_found", "model_not_allowed", "model_not_priced"})
_get_group_key = attrgetter("account_id", "key_id", "model", "channel", "status", "outcome", "error_code", "attempts")
_get_sums, _get_amounts = attrgetter(*SUMMED_FIELDS), attrgetter(*SUMMED_FIELDS[2:])


@frozen
class TrafficFilter:
    """A filter by hours (UTC, since 1970; ``until`` excluded) and other properties. Only facets use ``verdict``."""

    since: int
    until: int
    account_id: int | None = None
    key_id: int | None = None
    model: str | None = None
    channel: str | None = None
    status: int | None = None
    verdict: Verdict | None = None

    def matches(self, traffic_key: TrafficKey) -> bool:
        """Return whether a sum matches the filter, ignoring its time."""
        _, _, account_id, key_id, model, channel, status = traffic_key
        return (
            self.account_id in {None, account_id}
            and self.key_id in {None, key_id}
            and self.model in {None, model}
            and self.channel in {None, channel}
            and self.status in {None, status}
        )


@frozen
class TrafficLine:
    """The traffic of one hour, day, model, key, account, status or channel, which ``label`` identifies."""

    label: str
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_nanos: int
    total_ms: int
    saved_nanos: int


def add_lines(line: TrafficLine, other_line: TrafficLine, sign: Literal[1, -1] = 1) -> TrafficLine:
    """Return ``line`` with the amounts of the other added, or subtracted with the sign -1."""
    amounts = zip(_get_sums(line), _get_sums(other_line), strict=True)
    return TrafficLine(line.label, *(amount + sign * other for amount, other in amounts))


@frozen
class KeyCost:
    """What one key has spent in one hour (UTC, as a number since 1970)."""

    hour: int
    account_id: int
    key_id: int
    cost_nanos: int


@frozen
class Facet:
    """A value to filter by, and the number of requests that have it."""

    value: str
    requests: Count


@frozen
class Facets:
    """Values to filter by, the most frequent first; at most ``MAX_FACETS`` of each kind.

    Each kind is counted as if no value of that kind were chosen. ``since`` and ``until`` are the counted hours: only
    the newest ones if there are very many sums.
    """

    since: int
    until: int
    models: Sequence[Facet] = ()
    keys: Sequence[Facet] = ()
    statuses: Sequence[Facet] = ()
    channels: Sequence[Facet] = ()


@frozen
class TimeRange:
    """The hours from ``since`` to ``until`` (exclusive), in sums that cover ``span`` hours each."""

    span: int
    since: int
    until: int


def split_hours(since: int, until: int) -> list[TimeRange]:
    """Split the hours from ``since`` to ``until`` into whole days, and single hours before and after them."""
    first, last = -(-since // DAY_HOURS) * DAY_HOURS, until // DAY_HOURS * DAY_HOURS
    if first >= last:
        ranges = [TimeRange(1, since, until)]
    else:
        ranges = [TimeRange(DAY_HOURS, first, last), TimeRange(1, since, first), TimeRange(1, last, until)]
    return [time_range for time_range in ranges if time_range.since < time_range.until]


def sum_rows(rows: Iterable[RequestRecord]) -> Mapping[TrafficKey, Sums]:
    """Return the amounts to add to the sums, in a fixed order against deadlocks. See ``find_summed_model``."""
    similar_rows: defaultdict[tuple[int, object], list[RequestRecord]] = defaultdict(list)
    for row in rows:
        similar_rows[row.settled_ms // HOUR_MS, _get_group_key(row)].append(row)
    sums_by_key: dict[TrafficKey, Sums] = {}
    for (hour, _), group in similar_rows.items():
        first_row = group[0]
        model = find_summed_model(first_row)
        sums = (len(group), len(group) if has_failed(first_row) else 0, *add_columns(group, _get_amounts))
        for span in SPANS:
            traffic_key = (
                span,
                hour // span * span,
                first_row.account_id,
                first_row.key_id,
                model,
                first_row.channel or "",
                first_row.status,
            )
            sums_by_key[traffic_key] = add_sums(sums_by_key[traffic_key], sums) if traffic_key in sums_by_key else sums
    return dict(sorted(sums_by_key.items()))


def find_summed_model(row: RequestRecord) -> str:
    """Return the model in whose sums a row counts; empty for the many names that the gateway does not serve."""
    return "" if row.attempts == 0 and row.error_code in UNKNOWN_MODEL_CODES else row.model


def add_columns(rows: Iterable[RequestRecord], amounts_of: Callable[[RequestRecord], tuple[int, ...]]) -> Sums:
    """Return the sum of each amount over all rows."""
    return tuple(map(sum, zip(*map(amounts_of, rows), strict=True)))


def add_sums(sums: Sums, increments: Sequence[int]) -> Sums:
    """Return ``sums`` with ``increments`` added."""
    return tuple(map(int.__add__, sums, increments))


def negate(sums: Sequence[int]) -> Sums:
    """Return the amounts that undo ``sums``."""
    return tuple(map(int.__neg__, sums))
