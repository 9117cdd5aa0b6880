"""Admin API: everything that the charts of one page show, from stored sums."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Annotated, Literal

import attrs

from gateway.answer_fields import OMITTED, Count, FieldSchema, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.failures import FailureLine
from gateway.domain.member import Forbidden
from gateway.domain.speed import Histogram, Speed, find_percentile, make_speed
from gateway.domain.traffic import DAY_HOURS, HOUR_MS, TimeRange, TrafficAxis, TrafficFilter, TrafficLine, add_lines
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import parse_account
from gateway.server.admin.requests import parse_channel
from gateway.server.admin.usage import FILTERS, OPERATOR_AXES, UsageSums, list_names, name_label
from gateway.server.openapi import schema as s
from gateway.server.query import parse_moment, parse_number
from gateway.storage.failures import FailureRepository
from gateway.storage.speed import SpeedLine, SpeedRepository
from gateway.storage.traffic_series import SeriesLine, list_series, sum_traffic

GROUPS: tuple[TrafficAxis, ...] = ("model", "key", "account", "channel", "status")
_STEPS: Mapping[str, int] = {"hour": 1, "day": DAY_HOURS}
_DAYS_SHOWN = 7
_HOURS_BY_HOUR = 72
"""Up to this length a period is shown by hour."""
_MAX_BUCKETS = 800
_MAX_SERIES = 5
_MAX_CAUSES = 5
_MAX_ROUNDS = 3
"""How many batches of new rows are summed before an answer. What is left is summed within a minute or two."""
_EMPTY_LINE = TrafficLine("", 0, 0, 0, 0, 0, 0, 0, 0)


@frozen
class Percentiles:
    """Values that 50, 95 and 99 % of the requests do not exceed. They differ from the exact ones by 5 % at most."""

    p50: float
    p95: float
    p99: float


@frozen(kw_only=True)
class SpeedView:
    """How fast completed requests were; null without any.

    ``requests`` is how many were measured. ``latency_ms`` is of all of them, ``first_byte_ms`` and ``tokens_per_s`` are
    of streams: the wait for the first byte, and the output after that.
    """

    requests: Count
    latency_ms: Percentiles | None
    first_byte_ms: Percentiles | None
    tokens_per_s: Percentiles | None


@frozen(kw_only=True)
class ChartBucket(UsageSums):
    """The sums of one hour or day, from ``start`` on."""

    start: Moment
    speed: SpeedView | None


@frozen(kw_only=True)
class ChartSeries:
    """The part of a model, key, account, channel or status. ``values`` are dollars for each bucket.

    ``value`` is what selects these requests in ``GET /requests``. It is null for all others together.
    """

    name: str
    value: str | None
    total: UsageSums
    values: Sequence[float]


@frozen(kw_only=True)
class ChartCause:
    """Failures of one outcome and error code, for each bucket. ``outcome`` is null for all other causes together."""

    outcome: str | None
    code: str | None
    requests: Count
    values: Sequence[int]


@frozen(kw_only=True)
class Charts:
    """What charts of one period show.

    ``before`` sums the period of the same length that ended when this one began, only up to the hour that this one has
    reached. ``speed`` is null for a selection that has no histograms. ``speed_since`` is since when durations are
    known. ``speed_until_now`` is false while newer requests wait to be summed.
    """

    object: Literal["charts"] = "charts"
    since: Moment
    until: Moment
    step: Annotated[str, FieldSchema(s.one_of(*_STEPS))]
    group: Annotated[str, FieldSchema(s.one_of(*GROUPS))]
    total: UsageSums
    before: UsageSums
    before_since: Moment
    before_until: Moment
    buckets: Sequence[ChartBucket]
    series: Sequence[ChartSeries]
    causes: Sequence[ChartCause]
    speed: SpeedView | None
    speed_since: Moment | None = attrs.field(default=None, metadata=OMITTED)
    speed_until_now: bool


@admin_operation(
    query=(
        *FILTERS,
        Query("step", f"Sums by hour or day. The default is hour up to {_HOURS_BY_HOUR} hours.", s.one_of(*_STEPS)),
        Query("group", "What spending is split by; model by default.", s.one_of(*GROUPS)),
    )
)
async def get_charts(request: AdminRequest) -> Charts:
    """Return everything that the charts of a page show, for one selection of requests.

    `buckets` are the hours or days of the period: their sums, and how fast their completed requests were. `series` are
    the dollars of those models (or keys, accounts, channels, statuses) that cost most, and of all others. `causes` are
    the most frequent failures by outcome and code. The period is widened to whole hours or days; without times, it is
    the last seven days. Percentiles exist for all requests, and by one of key, model and channel. Only administrators
    may group by account or channel.
    """
    await request.services.billing.flusher.store_waiting()
    group, period = _parse_group(request), _parse_period(request)
    traffic_filter = await _parse_filter(request, period)
    database = request.services.storage.database
    speeds = SpeedRepository(database)
    is_summed = await _sum_new_rows(speeds)
    before_filter = _build_before_filter(traffic_filter, int(request.services.clock() * 1000) // HOUR_MS + 1)
    lines = await list_series(database, group, period, traffic_filter)
    before = await sum_traffic(database, before_filter)
    failures = await FailureRepository(database).list_failures([period], traffic_filter)
    speed = await speeds.list_speed([period], traffic_filter)
    since_ms = await speeds.find_since_ms()
    names = await list_names(request, group) if group in {"key", "account"} else None
    hours = range(period.since, period.until, period.span)
    return Charts(
        since=_format_hour(period.since),
        until=_format_hour(period.until),
        step="hour" if period.span == 1 else "day",
        group=group,
        total=build_view(UsageSums, reduce(add_lines, (line.traffic for line in lines), _EMPTY_LINE)),
        before=build_view(UsageSums, before),
        before_since=_format_hour(before_filter.since),
        before_until=_format_hour(before_filter.until),
        buckets=_build_buckets(hours, lines, speed),
        series=_build_series(hours, lines, names),
        causes=_build_causes(hours, failures),
        speed=None if speed is None else _view_speed(_add_speed(speed)),
        speed_since=None if since_ms is None else build_time(since_ms // 1000),
        speed_until_now=is_summed,
    )


async def _parse_filter(request: AdminRequest, period: TimeRange) -> TrafficFilter:
    return TrafficFilter(
        period.since,
        period.until,
        account_id=await parse_account(request),
        key_id=parse_number(request.query, "key"),
        model=request.query.get("model"),
        channel=parse_channel(request),
    )


def _build_before_filter(traffic_filter: TrafficFilter, now_hour: int) -> TrafficFilter:
    """Return the filter for the period before, up to the hour that this period has reached."""
    length = traffic_filter.until - traffic_filter.since
    reached = max(min(traffic_filter.until, now_hour), traffic_filter.since + 1)
    since, until = max(traffic_filter.since - length, 0), max(reached - length, 0)
    return attrs.evolve(traffic_filter, since=since, until=until)


def _parse_group(request: AdminRequest) -> TrafficAxis:
    """Return what spending is split by. Raises ``InvalidRequest``, and ``Forbidden`` for what members may not see."""
    word = request.query.get("group", "model")
    group = next((group for group in GROUPS if group == word), None)
    if group is None:
        raise InvalidRequest(f"'group' must be one of {', '.join(GROUPS)}", param="group")
    if group in OPERATOR_AXES and request.actor.scope is not None:
        raise Forbidden(f"Only administrators see usage by {group}", param="group", should_retry=False)
    return group


def _parse_period(request: AdminRequest) -> TimeRange:
    """Return the period, widened to whole hours or days. Raises ``InvalidRequest``."""
    query, now_ms = request.query, int(request.services.clock() * 1000)
    until_ms = parse_moment(query, "until", is_end=True)
    until = now_ms // HOUR_MS + 1 if until_ms is None else -(-until_ms // HOUR_MS)
    since_ms = parse_moment(query, "since")
    since = (
        (until - 1) // DAY_HOURS * DAY_HOURS - (_DAYS_SHOWN - 1) * DAY_HOURS
        if since_ms is None
        else since_ms // HOUR_MS
    )
    since = max(since, 0)
    if since >= until:
        raise InvalidRequest("'since' must be before 'until'", param="since")
    word = query.get("step", "hour" if until - since <= _HOURS_BY_HOUR else "day")
    if word not in _STEPS:
        raise InvalidRequest(f"'step' must be one of {', '.join(_STEPS)}", param="step")
    span = _STEPS[word]
    since, until = since // span * span, -(-until // span) * span
    if until - since > _MAX_BUCKETS * span:
        raise InvalidRequest(f"By {word} no more than {_MAX_BUCKETS} can be told", param="since")
    return TimeRange(span, since, until)


async def _sum_new_rows(speeds: SpeedRepository) -> bool:
    """Sum the durations of requests that were stored meanwhile; return whether these are all."""
    for _ in range(_MAX_ROUNDS):
        if not await speeds.add_new_rows():
            await speeds.add_old_rows()
            return True
    return False


def _build_buckets(
    hours: Sequence[int], lines: Sequence[SeriesLine], speed_lines: Sequence[SpeedLine] | None
) -> list[ChartBucket]:
    sums = dict.fromkeys(hours, _EMPTY_LINE)
    for line in lines:
        sums[line.hour] = add_lines(sums[line.hour], line.traffic)
    speeds: dict[int, Speed] = {}
    for speed_line in speed_lines or ():
        speeds.setdefault(speed_line.hour, make_speed()).add(speed_line.speed)
    return [
        build_view(
            ChartBucket, line, start=_format_hour(hour), speed=_view_speed(speeds[hour]) if hour in speeds else None
        )
        for hour, line in sums.items()
    ]


def _build_series(
    hours: Sequence[int], lines: Sequence[SeriesLine], names: Mapping[str, str] | None
) -> list[ChartSeries]:
    """Return the series that cost most, the highest first, and one of all others if they have any requests."""
    totals: dict[str, TrafficLine] = {}
    for line in lines:
        label = line.traffic.label
        totals[label] = add_lines(totals.get(label, attrs.evolve(_EMPTY_LINE, label=label)), line.traffic)
    ranked = sorted(totals.values(), key=lambda total: (-total.cost_nanos, -total.requests, total.label))
    top = [total for total in ranked if total.label][:_MAX_SERIES]
    top_labels = {total.label for total in top}
    nanos: Counter[tuple[str, int]] = Counter()
    for line in lines:
        nanos[line.traffic.label if line.traffic.label in top_labels else "", line.hour] += line.traffic.cost_nanos
    others = [total for total in ranked if total.label not in top_labels]
    series = [
        ChartSeries(
            name=total.label if names is None else name_label(total.label, names),
            value=total.label,
            total=build_view(UsageSums, total),
            values=[nanos[total.label, hour] / 1e9 for hour in hours],
        )
        for total in top
    ]
    if others:
        total = build_view(UsageSums, reduce(add_lines, others, _EMPTY_LINE))
        series.append(ChartSeries(name="", value=None, total=total, values=[nanos["", hour] / 1e9 for hour in hours]))
    return series


def _build_causes(hours: Sequence[int], failures: Sequence[FailureLine]) -> list[ChartCause]:
    totals: Counter[tuple[str, str]] = Counter()
    for line in failures:
        totals[line.outcome, line.code] += line.requests
    ranked = sorted(totals, key=lambda cause: (-totals[cause], cause))
    shown_causes = set(ranked[:_MAX_CAUSES])
    counts: Counter[tuple[tuple[str, str] | None, int]] = Counter()
    for line in failures:
        cause = (line.outcome, line.code)
        counts[cause if cause in shown_causes else None, line.hour] += line.requests
    causes = [
        ChartCause(
            outcome=outcome,
            code=code or None,
            requests=totals[outcome, code],
            values=[counts[(outcome, code), hour] for hour in hours],
        )
        for outcome, code in ranked[:_MAX_CAUSES]
    ]
    others = [counts[None, hour] for hour in hours]
    if any(others):
        causes.append(ChartCause(outcome=None, code=None, requests=sum(others), values=others))
    return causes


def _add_speed(lines: Sequence[SpeedLine]) -> Speed:
    total = make_speed()
    for line in lines:
        total.add(line.speed)
    return total


def _view_speed(speed: Speed) -> SpeedView | None:
    if not speed.requests:
        return None
    return SpeedView(
        requests=speed.requests,
        latency_ms=_find_percentiles(speed.latency),
        first_byte_ms=_find_percentiles(speed.first_byte),
        tokens_per_s=_find_percentiles(speed.output_rate),
    )


def _find_percentiles(histogram: Histogram) -> Percentiles | None:
    values = [find_percentile(histogram, percent) for percent in (50, 95, 99)]
    numbers = [round(value, 1) for value in values if value is not None]
    return Percentiles(*numbers) if numbers else None


def _format_hour(hour: int) -> str:
    return build_time(hour * HOUR_MS // 1000)
