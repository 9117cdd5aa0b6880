"""The charts of usage that many pages have: of all requests, or those of one key, model, channel, account, user or tag.

A page's loader returns ``await load_charts(request, key=…)`` among its data as ``charts``, and its template has

    {% from "usage_charts.html" import charts_of %}  …  {{ charts_of(parts, charts) }}

The period and what spending is split by are in the page's address: ``span``, or ``since`` and ``until``, and ``group``.
Every number is a link to the requests that it sums.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.server.admin.answer import build_view
from gateway.server.admin.charts import GROUPS, MINUTE_STEPS, ChartCause, Charts, ChartSeries, Percentiles, SpeedView
from gateway.server.admin.requests import NO_CODE
from gateway.server.admin.usage import OPERATOR_AXES, UsageLine, UsageReport, UsageSums, is_deleted
from gateway.server.console.charts import Chart, ChartContent, FormatValue, Series, draw_bars, draw_lines
from gateway.server.console.filters import format_count, format_duration, format_rate, format_usd
from gateway.server.console.labels import format_label
from gateway.server.console.language import LANGUAGE, gettext
from gateway.server.console.page import ask_admin_api
from gateway.server.console.periods import NAMED_PERIODS, STEPS, NamedPeriod
from gateway.server.console.routes import ROOT, mark
from gateway.server.context import ACTOR, SERVICES
from gateway.server.query import parse_moment

DEFAULT_SPAN = "7d"
MAX_DAYS = 92
_DAY_MS = 86_400_000
_GROUP_NAMES: Mapping[str, str] = {
    "model": mark("by model"),
    "key": mark("by key"),
    "account": mark("by account"),
    "channel": mark("by channel"),
    "status": mark("by status"),
}
_SUBJECT_GROUPS = ("key", "account")
"""What the days of end users and tags are split by."""
_PERCENTILES = (("p50", mark("Median"), "series-2"), ("p95", "p95", "series-3"), ("p99", "p99", "series-4"))


@frozen
class ChartPeriod:
    """The period of a page: one of ``NAMED_PERIODS`` that ends now, or from ``since`` up to ``until``.

    ``widened_to`` is the step by which a named period is shown if that has to be longer than the period's own step;
    else empty. A widened period begins earlier.
    """

    span: str
    since: str
    until: str = ""
    widened_to: str = ""

    @property
    def link(self) -> dict[str, str]:
        """The parameters of the request list that mean the same period."""
        has_name = self.span and not self.widened_to
        return {"last": self.span} if has_name else {"since": self.since, "until": self.until}


@frozen
class ChartRow:
    """One bucket: its name, the link to its requests, and the written values of all charts, in their order."""

    label: str
    href: str
    texts: Sequence[str]


@frozen
class Change:
    """How a number differs from that of the period before: a written percentage or multiple, and what it was."""

    text: str
    before: str
    href: str


@frozen
class PageCharts:
    """What the template ``usage_charts.html`` shows."""

    filters: Mapping[str, str]
    period: ChartPeriod
    group: str
    groups: Mapping[str, str]
    answer: Charts
    charts: Sequence[Chart]
    rows: Sequence[ChartRow]
    changes: Mapping[str, Change]
    speed_since: str | None

    @property
    def spans(self) -> Mapping[str, NamedPeriod]:
        """The periods to choose from."""
        return NAMED_PERIODS

    def link(self, **filters: str) -> str:
        """Return the link to the requests of the period that also match ``filters``."""
        return write_link({**self.filters, **self.period.link, **filters})


async def load_charts(request: web.Request, **filters: Any) -> PageCharts:
    """Load the charts of the requests that ``filters`` select: key, model, channel, account, end_user or tag.

    The period, and what spending is split by, are those of the address. Raises the errors of ``GET /usage/charts``.
    """
    chosen = {name: str(value) for name, value in filters.items() if value not in {None, ""}}
    period = _choose_period(request.query, request.app[SERVICES].clock())
    groups = _list_groups(chosen, sees_all_accounts=request[ACTOR].scope is None)
    group = request.query.get("group", "")
    group = group if group in groups else next(iter(groups))
    answer: Charts = await ask_admin_api(
        request, "/usage/charts", **chosen, since=period.since, until=period.until, group=group
    )
    period = _widen_period(period, answer)
    drawing = _Drawing(request[LANGUAGE], answer, {**chosen, **period.link})
    charts = drawing.draw()
    return PageCharts(
        filters=chosen,
        period=period,
        group=group,
        groups=groups,
        answer=answer,
        charts=charts,
        rows=drawing.list_rows(charts, chosen),
        changes=_compare(answer, chosen),
        speed_since=_find_speed_since(answer),
    )


async def list_lines(
    request: web.Request, charts: PageCharts, axis: str, query: Mapping[str, Any]
) -> Sequence[UsageLine]:
    """Return the usage by model, key, account or channel in the period of ``charts``, the most expensive first.

    For a period in minutes, these are only the lines of a chart, because usage is summed by whole hours.
    """
    if charts.answer.step not in MINUTE_STEPS:
        report: UsageReport = await ask_admin_api(request, "/usage", by=axis, **query)
        return report.data
    answer: Charts = await ask_admin_api(request, "/usage/charts", group=axis, **query)
    return [_build_line(axis, series) for series in answer.series if series.value is not None]


def _build_line(axis: str, series: ChartSeries) -> UsageLine:
    labels: dict[str, Any] = {axis: series.name}
    if axis in {"key", "account"}:
        labels[f"{axis}_id"] = int(series.value or 0)
    return build_view(UsageLine, series.total, **labels)


def write_link(query: Mapping[str, str]) -> str:
    """Return the link to the requests that a query selects."""
    return f"{ROOT}/requests?{urlencode(query, safe=':')}"


def _list_groups(chosen: Mapping[str, str], *, sees_all_accounts: bool) -> dict[str, str]:
    """Return what spending may be split by, except what ``chosen`` fixes and, for members, what they do not see."""
    is_of_subject = "end_user" in chosen or "tag" in chosen
    return {
        group: _GROUP_NAMES[group]
        for group in (_SUBJECT_GROUPS if is_of_subject else GROUPS)
        if group not in chosen
        and (sees_all_accounts or group not in OPERATOR_AXES)
        and not (group == "account" and "key" in chosen)
    }


def _choose_period(query: Mapping[str, str], now_s: float) -> ChartPeriod:
    """Return the period in the address, at most its last ``MAX_DAYS`` days; the default period if none is valid."""
    if query.get("span") in NAMED_PERIODS:
        return ChartPeriod(query["span"], _format_start(NAMED_PERIODS[query["span"]], now_s))
    try:
        since_ms, until_ms = parse_moment(query, "since"), parse_moment(query, "until", is_end=True)
    except InvalidRequest:
        since_ms = until_ms = None
    if since_ms is not None and until_ms is not None and since_ms < until_ms:
        since_ms = max(since_ms, until_ms - MAX_DAYS * _DAY_MS)
        return ChartPeriod("", _format_time(since_ms), _format_time(until_ms))
    return ChartPeriod(DEFAULT_SPAN, _format_start(NAMED_PERIODS[DEFAULT_SPAN], now_s))


def _widen_period(period: ChartPeriod, answer: Charts) -> ChartPeriod:
    """Return ``period`` as ``answer`` has it: in whole minutes, hours or days, which may begin earlier."""
    if period.span and (answer.since, answer.step) == (period.since, NAMED_PERIODS[period.span].step):
        return period
    return ChartPeriod(period.span, answer.since, answer.until, answer.step if period.span else "")


def _format_start(period: NamedPeriod, now_s: float) -> str:
    return period.list_starts(now_s)[0].strftime("%Y-%m-%dT%H:%M:%SZ")


def _format_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse_time(moment: str) -> datetime:
    return datetime.fromisoformat(moment)


class _Drawing:
    """Draws the charts of an answer; ``link_query`` selects its requests in the request list."""

    def __init__(self, language: str, answer: Charts, link_query: Mapping[str, str]) -> None:
        self._translate = partial(gettext, language)
        self._language = language
        self._answer = answer
        self._link_query = link_query
        self._starts = [_parse_time(bucket.start) for bucket in answer.buckets]
        is_long = len(self._starts) > 1 and self._starts[-1] - self._starts[0] >= timedelta(days=1)
        label_format = "%m-%d" if answer.step == "day" else "%m-%d %H:%M" if is_long else "%H:%M"
        self._labels = [start.strftime(label_format) for start in self._starts]

    def draw(self) -> list[Chart]:
        """Return the charts. Those of spending, durations and causes are left out if they have nothing to show."""
        charts = [self._draw_spending()] if self._list_costly_series() else []
        charts += [self._draw_requests(), self._draw_tokens()]
        speed = self._answer.speed
        if speed is not None:
            title, first_byte = self._translate(mark("Duration")), self._translate(mark("Time to first token"))
            charts.append(self._draw_speed("latency_ms", title, format_duration, speed))
            if speed.first_byte_ms is not None:
                charts.append(self._draw_speed("first_byte_ms", first_byte, format_duration, speed))
            if speed.tokens_per_s is not None:
                output = self._translate(mark("Output, tokens per second"))
                charts.append(self._draw_speed("tokens_per_s", output, format_rate, speed))
        if self._answer.causes:
            charts.append(self._draw_causes())
        return charts

    def list_rows(self, charts: Sequence[Chart], filters: Mapping[str, str]) -> list[ChartRow]:
        """Return the buckets with what all charts say of them."""
        length = STEPS[self._answer.step]
        columns = [texts for chart in charts for texts in chart.texts]
        return [
            ChartRow(
                label,
                write_link({**filters, **self._write_times(start, start + length)}),
                [texts[index] for texts in columns],
            )
            for index, (label, start) in enumerate(zip(self._labels, self._starts, strict=True))
        ]

    def _write_times(self, start: datetime, end: datetime) -> dict[str, str]:
        if self._answer.step == "day":
            return {"since": f"{start:%Y-%m-%d}", "until": f"{start:%Y-%m-%d}"}
        return {"since": f"{start:%Y-%m-%dT%H:%M:%SZ}", "until": f"{end:%Y-%m-%dT%H:%M:%SZ}"}

    def _link(self, **filters: str) -> str:
        return write_link({**self._link_query, **filters})

    def _draw_spending(self) -> Chart:
        series = [
            Series(
                self._name(line),
                f"series-{number}",
                line.values,
                format_usd(line.total.cost_usd),
                self._link_series(line),
            )
            for number, line in enumerate(self._list_costly_series(), 1)
        ]
        return draw_bars(ChartContent("spend", self._translate(mark("Spent")), self._labels, series, format_usd))

    def _link_series(self, line: ChartSeries) -> str:
        """Return the link to the requests of a series; empty for the others together, and for a deleted account."""
        filters = None if line.value is None else _filter_by(self._answer.group, line)
        return "" if filters is None else self._link(**filters)

    def _list_costly_series(self) -> list[ChartSeries]:
        return [line for line in self._answer.series if line.total.cost_nanos]

    def _name(self, line: ChartSeries) -> str:
        return self._translate(mark("Others")) if line.value is None else line.name

    def _draw_requests(self) -> Chart:
        buckets, total = self._answer.buckets, self._answer.total
        answered, failed = self._translate(mark("Answered")), self._translate(mark("Failed"))
        series = [
            Series(
                answered,
                "series-2",
                [bucket.requests - bucket.failed for bucket in buckets],
                format_count(total.requests - total.failed),
                self._link(status="ok"),
            ),
            Series(
                failed,
                "bad",
                [bucket.failed for bucket in buckets],
                format_count(total.failed),
                self._link(status="error"),
            ),
        ]
        title = self._translate(mark("Requests"))
        return draw_bars(ChartContent("requests", title, self._labels, series, format_count, whole_numbers=True))

    def _draw_tokens(self) -> Chart:
        buckets, total, href = self._answer.buckets, self._answer.total, self._link()
        parts: list[tuple[str, str, Callable[[UsageSums], int]]] = [
            (mark("Input"), "series-1", lambda line: line.prompt_tokens - line.cached_tokens),
            (mark("Cached input"), "series-5", lambda line: line.cached_tokens),
            (mark("Output"), "series-3", lambda line: line.completion_tokens),
        ]
        series = [
            Series(self._translate(name), kind, list(map(read, buckets)), format_count(read(total)), href)
            for name, kind, read in parts
        ]
        title = self._translate(mark("Tokens"))
        return draw_bars(ChartContent("tokens", title, self._labels, series, format_count, whole_numbers=True))

    def _draw_speed(self, measure: str, title: str, format_value: FormatValue, speed: SpeedView) -> Chart:
        values: list[Percentiles | None] = [
            None if bucket.speed is None else getattr(bucket.speed, measure) for bucket in self._answer.buckets
        ]
        total = getattr(speed, measure)
        href = self._link(outcome="completed")
        series = [
            Series(
                self._translate(label),
                kind,
                [None if value is None else getattr(value, name) for value in values],
                format_value(None if total is None else getattr(total, name)),
                href,
            )
            for name, label, kind in _PERCENTILES
        ]
        return draw_lines(ChartContent(measure, title, self._labels, series, format_value))

    def _draw_causes(self) -> Chart:
        kinds = ["bad", "series-3", "series-4", "series-1", "series-5", "series-6"]
        series = [
            Series(
                self._name_cause(cause),
                kind,
                cause.values,
                format_count(cause.requests),
                "" if cause.outcome is None else self._link(outcome=cause.outcome, error_code=cause.code or NO_CODE),
            )
            for kind, cause in zip(kinds, self._answer.causes, strict=False)
        ]
        title = self._translate(mark("Errors"))
        return draw_bars(ChartContent("errors", title, self._labels, series, format_count, whole_numbers=True))

    def _name_cause(self, cause: ChartCause) -> str:
        if cause.outcome is None:
            return self._translate(mark("Others"))
        outcome = format_label(self._language, cause.outcome)
        return f"{cause.code} ({outcome})" if cause.code else outcome


def _filter_by(group: str, line: ChartSeries) -> dict[str, str] | None:
    """Return the filter of the request list that selects a series; None for an account that is deleted.

    The filter takes accounts by name, and keys by id.
    """
    if group == "account" and is_deleted(line.value, line.name):
        return None
    return {group: line.name if group == "account" else line.value or ""}


def _compare(answer: Charts, filters: Mapping[str, str]) -> dict[str, Change]:
    """Return how the sums of the period differ from those of the period before, where these are above 0."""
    href = write_link({**filters, "since": answer.before_since, "until": answer.before_until})
    amounts: dict[str, tuple[float | None, float | None, FormatValue]] = {
        "spent": (answer.total.cost_usd, answer.before.cost_usd, format_usd),
        "requests": (answer.total.requests, answer.before.requests, format_count),
        "failed": (answer.total.failed, answer.before.failed, format_count),
        "tokens": (sum_tokens(answer.total), sum_tokens(answer.before), format_count),
        "saved": (answer.total.saved_usd, answer.before.saved_usd, format_usd),
    }
    return {
        name: Change(format_change(now / before - 1), format_value(before), href)
        for name, (now, before, format_value) in amounts.items()
        if now is not None and before is not None and before > 0
    }


def sum_tokens(sums: UsageSums) -> int:
    """Return the tokens of prompts and answers together."""
    return sums.prompt_tokens + sums.completion_tokens


def format_change(ratio: float) -> str:
    """Format a change: ``+12 %``, ``-3 %``, from ten times on as a multiple."""
    return f"\N{MULTIPLICATION SIGN}{1 + ratio:.0f}" if ratio >= 9 else f"{100 * ratio:+.0f} %"  # noqa: PLR2004 - ten times


def _find_speed_since(answer: Charts) -> str | None:
    """Return since when durations are known, if the period has earlier requests; else None."""
    if answer.speed is None and not answer.total.requests:
        return None
    since = answer.speed_since
    if since is None:
        return None
    is_earlier = [bucket.requests > bucket.failed and bucket.start < since for bucket in answer.buckets[:-1]]
    unknown = [early and bucket.speed is None for early, bucket in zip(is_earlier, answer.buckets, strict=False)]
    return since if any(unknown) else None
