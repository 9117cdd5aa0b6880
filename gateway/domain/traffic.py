"""Traffic: all requests summed by hour and by day, refused ones too. Charts and facets are made of it.

Sums are written with the rows that they sum, and outlive them. Hours are numbers since 1970, in UTC.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Literal

import attrs

from gateway.domain.request_log import RequestRecord, Verdict, went_wrong

HOUR_MS = 3_600_000
DAY_HOURS = 24
SPANS = (1, DAY_HOURS)
"""How many hours a sum is of."""
MOST_FACETS = 100
"""Values of each kind."""

TrafficAxis = Literal["day", "hour", "model", "key", "account", "status", "channel"]

Place = tuple[int, int, int, int, str, str, int]
"""What is summed together: span, first hour, account, key, model, channel, status."""
Sums = tuple[int, ...]
"""In the order of ``SUMS``."""
SUMS = ("requests", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos", "total_ms")

_NOT_A_MODEL = frozenset({"model_not_found", "model_not_allowed"})
_place_of = attrgetter("account_id", "key_id", "model", "channel", "status", "ending", "error_code", "attempts")
_amounts_of = attrgetter(*SUMS[2:])


@attrs.frozen
class TrafficFilter:
    """Which hours, ``until`` not included, and what of them; None does not restrict.

    ``verdict`` is for facets: tokens and costs are not told apart by it.
    """

    since: int
    until: int
    account_id: int | None = None
    key_id: int | None = None
    model: str | None = None
    channel: str | None = None
    status: int | None = None
    verdict: Verdict | None = None

    def matches(self, place: Place) -> bool:
        """Whether a sum is wanted, apart from when it is of."""
        _, _, account_id, key_id, model, channel, status = place
        return (
            self.account_id in {None, account_id}
            and self.key_id in {None, key_id}
            and self.model in {None, model}
            and self.channel in {None, channel}
            and self.status in {None, status}
        )


@attrs.frozen
class TrafficLine:
    """The traffic of one hour, day, model, key, account, status or channel.

    ``label`` is that: a number of hours or days, an id, a name. ``failed`` of the ``requests`` went wrong.
    """

    label: str
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_nanos: int
    total_ms: int


@attrs.frozen
class Facet:
    """A value that requests have, and how many do."""

    value: str
    requests: int


@attrs.frozen
class Facets:
    """What there is to choose from, the most frequent first; at most ``MOST_FACETS`` of each kind.

    Each kind is counted as if nothing had been chosen of it yet. ``since`` and ``until`` are the hours that were
    counted: where there are very many sums, only the newest of them.
    """

    since: int
    until: int
    models: Sequence[Facet] = ()
    keys: Sequence[Facet] = ()
    statuses: Sequence[Facet] = ()
    channels: Sequence[Facet] = ()


@attrs.frozen
class TimeRange:
    """Sums of a ``span``, from an hour until another."""

    span: int
    since: int
    until: int


def cover(since: int, until: int) -> list[TimeRange]:
    """What makes up all hours ``since`` ``until``: whole days, and single hours before and after them."""
    first, last = -(-since // DAY_HOURS) * DAY_HOURS, until // DAY_HOURS * DAY_HOURS
    if first >= last:
        stretches = [TimeRange(1, since, until)]
    else:
        stretches = [TimeRange(DAY_HOURS, first, last), TimeRange(1, since, first), TimeRange(1, last, until)]
    return [one for one in stretches if one.since < one.until]


def sum_up(rows: Iterable[RequestRecord]) -> Mapping[Place, Sums]:
    """What rows add to the sums, in one order: so two writers of a database never wait for each other.

    A name that no channel knows is no model: callers could fill the sums with their inventions.
    """
    alike: defaultdict[tuple[int, object], list[RequestRecord]] = defaultdict(list)
    for row in rows:
        alike[row.settled_ms // HOUR_MS, _place_of(row)].append(row)
    found: dict[Place, Sums] = {}
    for (hour, _), group in alike.items():
        one = group[0]
        model = "" if one.attempts == 0 and one.error_code in _NOT_A_MODEL else one.model
        sums = (len(group), len(group) if went_wrong(one) else 0, *add_columns(group, _amounts_of))
        for span in SPANS:
            place = (span, hour // span * span, one.account_id, one.key_id, model, one.channel or "", one.status)
            found[place] = add(found[place], sums) if place in found else sums
    return dict(sorted(found.items()))


def add_columns(rows: Iterable[RequestRecord], amounts_of: Callable[[RequestRecord], tuple[int, ...]]) -> Sums:
    """The sum of each amount over all rows."""
    return tuple(map(sum, zip(*map(amounts_of, rows), strict=True)))


def add(one: Sums, other: Sequence[int]) -> Sums:
    """Both together."""
    return tuple(map(int.__add__, one, other))
