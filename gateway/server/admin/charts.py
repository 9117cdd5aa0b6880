"""Admin API: everything that the charts of one page show, from stored sums, else from the rows of the request log."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Annotated, Literal

import attrs

from gateway.answer_fields import OMITTED, Count, FieldSchema, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.attribution import find_tag_problem
from gateway.domain.member import Forbidden
from gateway.domain.request_log import RequestFilter
from gateway.domain.speed import Histogram, Speed, find_percentile, make_speed
from gateway.domain.subject_usage import SubjectFilter
from gateway.domain.traffic import DAY_HOURS, HOUR_MS, TimeRange, TrafficFilter, TrafficLine, add_lines
from gateway.errors import InvalidRequest, StoreUnavailable
from gateway.frozen import frozen
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import parse_account
from gateway.server.admin.requests import parse_channel
from gateway.server.admin.usage import FILTERS, OPERATOR_AXES, UsageSums, list_names, name_label
from gateway.server.openapi import schema as s
from gateway.server.query import parse_moment, parse_number
from gateway.storage.database import Database
from gateway.storage.speed import SpeedRepository
from gateway.storage.subject_series import list_subject_series
from gateway.storage.subject_usage import SubjectUsageRepository
from gateway.storage.traffic_minutes import MINUTE_MS, RowSeriesReader
from gateway.storage.traffic_series import EMPTY_LINE, TrafficSeries, open_series_reader
from gateway.storage.usage_splits import SplitAxis

GROUPS: tuple[SplitAxis, ...] = ("model", "key", "account", "channel", "status")
_STEPS: Mapping[str, int] = {
    "minute": MINUTE_MS,
    "5minutes": 5 * MINUTE_MS,
    "hour": HOUR_MS,
    "day": DAY_HOURS * HOUR_MS,
}
MINUTE_STEPS = ("minute", "5minutes")
"""The steps that are summed from the rows, because no sums of them are stored."""
_MINUTES_BY_MINUTE, _MINUTES_BY_FIVE = 90, 360
"""The longest periods, in minutes, whose default step is 1 or 5 minutes, if their requests are stored."""
_DAYS_SHOWN = 7
_HOURS_BY_HOUR = 72
"""The longest period, in hours, whose default step is an hour."""
_MAX_BUCKETS = 800
_MAX_SERIES = 5
_MAX_CAUSES = 5
_MAX_ROUNDS = 3
"""How many batches of new rows are summed before an answer. What is left is summed within a minute or two."""


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
    """The sums of one step, from ``start`` on."""

    start: Moment
    speed: SpeedView | None


@frozen(kw_only=True)
class ChartSeries:
    """The requests of one model, key, account, channel or status. ``values`` are dollars for each bucket.

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

    ``before`` sums the period of the same length that ended when this one began. If this one is not over, ``before``
    ends as many steps after its own beginning as have passed of this one. ``speed`` is null for a selection that has
    no histograms. ``speed_since`` is since when durations are known. ``speed_until_now`` is false while newer requests
    wait to be summed.
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


@frozen
class _Period:
    """A period and its steps. Time is counted since 1970 in units of ``unit_ms``: a minute, 5 minutes or an hour.

    ``starts`` has the first unit of each step. A day has 24 units.
    """

    step: str
    unit_ms: int
    starts: range

    def format(self, number: int) -> str:
        """Format the moment at which a unit begins."""
        return build_time(number * self.unit_ms // 1000)

    def find_before(self, now_ms: int) -> tuple[int, int]:
        """Return the start and end, in units, of the period before, cut to the length that has passed of this one."""
        since, until = self.starts.start, self.starts.stop
        reached = max(min(until, now_ms // self.unit_ms + 1), since + 1)
        return max(since - (until - since), 0), max(reached - (until - since), 0)


@frozen
class _Selection:
    """The requests that match ``traffic_filter``, and ``subject`` (an end user or a tag) unless that is None."""

    traffic_filter: TrafficFilter
    subject: SubjectFilter | None

    def open_reader(self, database: Database, unit_ms: int) -> RowSeriesReader:
        """Return the reader of the selected rows."""
        request_filter = RequestFilter()
        if self.subject is not None:
            (value,) = self.subject.values
            is_user = self.subject.kind == "user"
            request_filter = RequestFilter(
                end_user=value if is_user else None, tag=None if is_user else f"{self.subject.name}={value}"
            )
        return RowSeriesReader(database, self.traffic_filter, request_filter, unit_ms)


@frozen(kw_only=True)
class _Numbers:
    """What the charts of a period show. ``speeds`` is None if there are neither histograms nor rows for the selection.

    ``are_from_rows``: the speeds are measured from the rows, not from stored histograms.
    """

    series: TrafficSeries
    causes: TrafficSeries
    before: TrafficLine
    speeds: Mapping[int, Speed] | None
    are_from_rows: bool = False


@admin_operation(
    query=(
        *FILTERS,
        Query(
            "step",
            f"Sums by minute, 5 minutes, hour or day. The default is minute up to {_MINUTES_BY_MINUTE} minutes and "
            f"5minutes up to {_MINUTES_BY_FIVE // 60} hours, if all requests are stored and not very many, and hour up "
            f"to {_HOURS_BY_HOUR} hours.",
            s.one_of(*_STEPS),
        ),
        Query("group", "What spending is split by; model by default.", s.one_of(*GROUPS)),
        Query("end_user", "Only this end user."),
        Query("tag", "Only this tag: NAME=VALUE."),
    )
)
async def get_charts(request: AdminRequest) -> Charts:
    """Return everything that the charts of a page show, for one selection of requests.

    `buckets` are the steps of the period: their sums, and how fast their completed requests were.
    `series` are the dollars of those models (or keys, accounts, channels, statuses) that cost most, and of all others.
    `causes` are the most frequent failures by outcome and code. The period is widened to whole steps;
    without times, it is the last seven days. Percentiles exist for all requests, and by one of key, model and channel.
    By account and channel is for administrators.

    Of an `end_user` or a `tag`, days are summed for all models, channels and statuses together, and are split by key or
    account. Their durations and `causes` are summed from the requests, as minutes and hours are, if all of these are
    stored and not very many; else both are missing. What was `before` needs only the requests of one begun day.
    """
    await request.services.billing.flusher.store_waiting()
    group = _parse_group(request)
    database, now_ms = request.services.storage.database, int(request.services.clock() * 1000)
    selection = await _parse_selection(request)
    period = await _parse_period(request, selection)
    is_summed = await _sum_new_rows(speeds := SpeedRepository(database))
    numbers = await _find_reader(selection, period)(database, selection, period, group, now_ms)
    since_ms = await speeds.find_since_ms()
    names = await list_names(request, group) if group in {"key", "account"} else None
    before_since, before_until = period.find_before(now_ms)
    total = reduce(add_lines, numbers.series.buckets.values(), EMPTY_LINE)
    return Charts(
        since=period.format(period.starts.start),
        until=period.format(period.starts.stop),
        step=period.step,
        group=group,
        total=build_view(UsageSums, total),
        before=build_view(UsageSums, numbers.before),
        before_since=period.format(before_since),
        before_until=period.format(before_until),
        buckets=_build_buckets(period, numbers),
        series=_build_series(period, numbers.series, total, names),
        causes=_build_causes(period, numbers.causes),
        speed=None if numbers.speeds is None else _view_speed(_add_speeds(numbers.speeds.values())),
        speed_since=None if since_ms is None or numbers.are_from_rows else build_time(since_ms // 1000),
        speed_until_now=is_summed,
    )


_ReadNumbers = Callable[[Database, _Selection, _Period, SplitAxis, int], Awaitable[_Numbers]]


def _find_reader(selection: _Selection, period: _Period) -> _ReadNumbers:
    if period.step in MINUTE_STEPS or (selection.subject is not None and period.step == "hour"):
        return _read_rows
    return _read_hours if selection.subject is None else _read_subject_days


async def _read_rows(
    database: Database, selection: _Selection, period: _Period, group: SplitAxis, now_ms: int
) -> _Numbers:
    reader, before = selection.open_reader(database, period.unit_ms), range(*period.find_before(now_ms))
    return _Numbers(
        series=await reader.list_series(group, period.starts, _MAX_SERIES),
        causes=await reader.list_series("cause", period.starts, _MAX_CAUSES),
        before=await reader.sum_traffic(before) if await reader.has_rows(before) else EMPTY_LINE,
        speeds=await reader.list_speed(period.starts),
        are_from_rows=True,
    )


async def _read_subject_days(
    database: Database, selection: _Selection, period: _Period, group: SplitAxis, now_ms: int
) -> _Numbers:
    """Read the sums of an end user or tag by day. Raises ``InvalidRequest`` for a group or filter without such sums.

    Causes and durations come from the rows, which are read through the index of end users, or searched for those of a
    tag: stored histograms of 10,000 end users a day would take more room than all other sums together. If rows are gone
    or too many, there are no causes, and ``speeds`` is None.
    """
    subject, traffic_filter = selection.subject, selection.traffic_filter
    if group not in {"key", "account"} or subject is None:
        raise InvalidRequest("The days of an end user or tag are split by key or account", param="group")
    if traffic_filter.model is not None or traffic_filter.channel is not None:
        raise InvalidRequest("The days of an end user or tag are not summed by model or channel", param="model")
    days = attrs.evolve(
        subject,
        since=period.starts.start // DAY_HOURS,
        until=period.starts.stop // DAY_HOURS - 1,
        account_id=traffic_filter.account_id,
        key_id=traffic_filter.key_id,
    )
    axis: Literal["key", "account"] = "key" if group == "key" else "account"
    series = await list_subject_series(database, days, axis, _MAX_SERIES)
    before = await _sum_days_before(database, selection, days, period.find_before(now_ms))
    reader, numbers = selection.open_reader(database, DAY_HOURS * HOUR_MS), range(days.since, days.until + 1)
    if not await reader.has_rows(numbers):
        return _Numbers(series=series, causes=TrafficSeries({}, [], {}), before=before, speeds=None)
    causes = await reader.list_series("cause", numbers, _MAX_CAUSES)
    return _Numbers(
        series=series,
        causes=TrafficSeries(
            {day * DAY_HOURS: line for day, line in causes.buckets.items()},
            causes.top,
            {(cause, day * DAY_HOURS): count for (cause, day), count in causes.values.items()},
        ),
        before=before,
        speeds={day * DAY_HOURS: speed for day, speed in (await reader.list_speed(numbers)).items()},
        are_from_rows=True,
    )


async def _sum_days_before(
    database: Database, selection: _Selection, days: SubjectFilter, hours: tuple[int, int]
) -> TrafficLine:
    """Return the sums of an end user or tag from ``hours[0]`` to before ``hours[1]``.

    If the last day is incomplete and its rows are gone or too many, the sums are empty: a whole day is not compared
    with a part of one.
    """
    since, until = hours
    begun_hours = range(until // DAY_HOURS * DAY_HOURS, until)
    whole_days = attrs.evolve(days, since=since // DAY_HOURS, until=begun_hours.start // DAY_HOURS - 1)
    lines = await SubjectUsageRepository(database).list_days(whole_days) if since < begun_hours.start else []
    if begun_hours:
        reader = selection.open_reader(database, HOUR_MS)
        if not await reader.has_rows(begun_hours):
            return EMPTY_LINE
        lines.append(await reader.sum_traffic(begun_hours))
    return reduce(add_lines, lines, EMPTY_LINE)


async def _read_hours(
    database: Database, selection: _Selection, period: _Period, group: SplitAxis, now_ms: int
) -> _Numbers:
    traffic_filter = selection.traffic_filter
    reader = await open_series_reader(database, traffic_filter)
    hours = TimeRange(period.starts.step, period.starts.start, period.starts.stop)
    speed_lines = await SpeedRepository(database).list_speed([hours], traffic_filter)
    return _Numbers(
        series=await reader.list_series(group, hours, _MAX_SERIES),
        causes=await reader.list_series("cause", hours, _MAX_CAUSES),
        before=await reader.sum_traffic(*period.find_before(now_ms)),
        speeds=None if speed_lines is None else {line.hour: line.speed for line in speed_lines},
    )


async def _parse_selection(request: AdminRequest) -> _Selection:
    """Return the requests that the query selects. Raises ``InvalidRequest``, ``NotFound`` and ``Forbidden``."""
    query = request.query
    traffic_filter = TrafficFilter(
        0,
        0,
        account_id=await parse_account(request),
        key_id=parse_number(query, "key"),
        model=query.get("model"),
        channel=parse_channel(request),
    )
    return _Selection(traffic_filter, _parse_subject(query))


def _parse_subject(query: Mapping[str, str]) -> SubjectFilter | None:
    """Return the end user or tag in the query, with both days 0; None if it has neither. Raises ``InvalidRequest``."""
    end_user, tag = query.get("end_user"), query.get("tag")
    if end_user == "" or (end_user is not None and tag is not None):
        raise InvalidRequest("Give the name of an end user, or a tag", param="end_user")
    if end_user is not None:
        return SubjectFilter("user", "", 0, 0, values=(end_user,))
    if tag is None:
        return None
    name, _, value = tag.partition("=")
    problem = find_tag_problem(name, value)
    if problem is not None:
        raise InvalidRequest(f"'tag' {problem}", param="tag")
    return SubjectFilter("tag", name, 0, 0, values=(value,))


def _parse_group(request: AdminRequest) -> SplitAxis:
    """Return what spending is split by. Raises ``InvalidRequest``, and ``Forbidden`` if a member may not use it."""
    word = request.query.get("group", "model")
    group = next((group for group in GROUPS if group == word), None)
    if group is None:
        raise InvalidRequest(f"'group' must be one of {', '.join(GROUPS)}", param="group")
    if group in OPERATOR_AXES and request.actor.scope is not None:
        raise Forbidden(f"Only administrators see usage by {group}", param="group", should_retry=False)
    return group


async def _parse_period(request: AdminRequest, selection: _Selection) -> _Period:
    """Return the period, widened to whole steps. Raises ``InvalidRequest``.

    Without ``step`` in the query, the steps are the smallest ones that suit the length of the period. Steps that are
    summed from the requests can be used only if these are all stored and not too many.
    """
    database = request.services.storage.database
    since_ms, until_ms = _parse_times(request)
    word = request.query.get("step")
    if word is not None and word not in _STEPS:
        raise InvalidRequest(f"'step' must be one of {', '.join(_STEPS)}", param="step")
    minutes = {"minute": _MINUTES_BY_MINUTE, "5minutes": _MINUTES_BY_FIVE, "hour": _HOURS_BY_HOUR * 60}
    fitting_steps = [step for step, length in minutes.items() if until_ms - since_ms <= length * MINUTE_MS]
    for step in (*fitting_steps, "day") if word is None else (word,):
        period = _build_period(step, since_ms, until_ms)
        is_from_rows = step in MINUTE_STEPS or (step == "hour" and selection.subject is not None)
        if not is_from_rows or await selection.open_reader(database, period.unit_ms).has_rows(period.starts):
            return period
    raise InvalidRequest(f"By {word} no sums are stored, and the requests are gone, or too many", param="step")


def _parse_times(request: AdminRequest) -> tuple[int, int]:
    """Return the beginning of the period and the moment after it, in Unix milliseconds. Raises ``InvalidRequest``.

    Without times in the query, the period is the last ``_DAYS_SHOWN`` days.
    """
    query, day_ms = request.query, DAY_HOURS * HOUR_MS
    until_ms = parse_moment(query, "until", is_end=True)
    if until_ms is None:
        until_ms = int(request.services.clock() * 1000) + 1
    since_ms = parse_moment(query, "since")
    if since_ms is None:
        since_ms = max((until_ms - 1) // day_ms - (_DAYS_SHOWN - 1), 0) * day_ms
    if since_ms >= until_ms:
        raise InvalidRequest("'since' must be before 'until'", param="since")
    return since_ms, until_ms


def _build_period(step: str, since_ms: int, until_ms: int) -> _Period:
    """Return the period, widened to whole steps. Raises ``InvalidRequest`` if there are too many steps."""
    step_ms = _STEPS[step]
    first, end = since_ms // step_ms, -(-until_ms // step_ms)
    if end - first > _MAX_BUCKETS:
        raise InvalidRequest(f"By {step} no more than {_MAX_BUCKETS} can be told", param="since")
    unit_ms = min(step_ms, HOUR_MS)
    units = step_ms // unit_ms
    return _Period(step, unit_ms, range(first * units, end * units, units))


async def _sum_new_rows(speeds: SpeedRepository) -> bool:
    """Sum the durations of new requests, then of a portion of older ones.

    Return False if new ones are left, or if the store takes no writes.
    """
    try:
        for _ in range(_MAX_ROUNDS):
            if not await speeds.add_new_rows():
                await speeds.add_old_rows()
                return True
    except StoreUnavailable:  # for writes: the sums of the last run can be read
        return False
    return False


def _build_buckets(period: _Period, numbers: _Numbers) -> list[ChartBucket]:
    speeds = numbers.speeds or {}
    return [
        build_view(
            ChartBucket,
            numbers.series.buckets.get(start, EMPTY_LINE),
            start=period.format(start),
            speed=_view_speed(speeds[start]) if start in speeds else None,
        )
        for start in period.starts
    ]


def _build_series(
    period: _Period, series: TrafficSeries, total: TrafficLine, names: Mapping[str, str] | None
) -> list[ChartSeries]:
    """Return the series that cost most, the highest first, and one of all others if they have any requests."""
    views = [
        ChartSeries(
            name=line.label if names is None else name_label(line.label, names),
            value=line.label,
            total=build_view(UsageSums, line),
            values=[series.values.get((line.label, start), 0) / 1e9 for start in period.starts],
        )
        for line in series.top
    ]
    others = reduce(partial(add_lines, sign=-1), series.top, total)
    if others.requests:
        values = [
            series.buckets[start].cost_nanos - _sum_values(series, start) if start in series.buckets else 0
            for start in period.starts
        ]
        rest = [nanos / 1e9 for nanos in values]
        views.append(ChartSeries(name="", value=None, total=build_view(UsageSums, others), values=rest))
    return views


def _sum_values(series: TrafficSeries, start: int) -> int:
    return sum(series.values.get((line.label, start), 0) for line in series.top)


def _build_causes(period: _Period, series: TrafficSeries) -> list[ChartCause]:
    causes = []
    for line in series.top:
        outcome, _, code = line.label.partition("/")
        values = [series.values.get((line.label, start), 0) for start in period.starts]
        if line.requests:
            causes.append(ChartCause(outcome=outcome, code=code or None, requests=line.requests, values=values))
    others = [
        series.buckets[start].failed - _sum_values(series, start) if start in series.buckets else 0
        for start in period.starts
    ]
    if any(others):
        causes.append(ChartCause(outcome=None, code=None, requests=sum(others), values=others))
    return causes


def _add_speeds(speeds: Iterable[Speed]) -> Speed:
    total = make_speed()
    for speed in speeds:
        total.add(speed)
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
