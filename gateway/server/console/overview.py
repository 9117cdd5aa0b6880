"""The first page: spending and requests over time, and the balance."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from gateway.frozen import frozen
from gateway.server.admin.accounts import AccountView
from gateway.server.admin.forecasts import ForecastReport, ForecastView
from gateway.server.admin.usage import UsageLine
from gateway.server.console.charts import Series, draw_chart
from gateway.server.console.filters import format_count, format_usd
from gateway.server.console.health_of_requests import SAMPLE_ROWS, count_errors, measure_speed
from gateway.server.console.language import LANGUAGE, gettext
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.routes import mark
from gateway.server.context import ACTOR, SERVICES

_MAX_MODELS = 6
_MAX_STACKED = 5
"""Number of models, the most expensive, with their own color in the spending chart."""
_MAX_REQUESTS = 6
_MAX_FORECASTS = 10
"""Number of limits, the most used, of which those are shown that will be reached."""


@frozen
class Span:
    """A period of hours or days that ends now.

    ``name`` is its English name, ``axis`` is what the usage report sums by ("hour" or "day"), and ``bar_count`` is the
    number of bars in a chart.
    """

    name: str
    axis: str
    bar_count: int


SPANS: Mapping[str, Span] = {
    "24h": Span(mark("Last 24 hours"), "hour", 24),
    "7d": Span(mark("Last 7 days"), "day", 7),
    "30d": Span(mark("Last 30 days"), "day", 30),
    "90d": Span(mark("Last 90 days"), "day", 90),
}
_TITLES: Mapping[str, tuple[str, str]] = {
    "hour": (mark("Spent per hour (UTC)"), mark("Requests per hour (UTC)")),
    "day": (mark("Spent per day (UTC)"), mark("Requests per day (UTC)")),
}
"""The titles of the two charts."""
_ROUNDING_ERROR = 1e-9
"""Tolerance for sums of floats, in dollars."""
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


async def load_overview(request: web.Request) -> Data:
    """Load the usage of the account. Administrators see all accounts, or the selected one."""
    span_name = request.query.get("span", "7d")
    span = SPANS.get(span_name, SPANS["7d"])
    sees_all_accounts = request[ACTOR].scope is None
    account = request.query.get("account") if sees_all_accounts else None
    starts = list_bucket_starts(span, request.app[SERVICES].clock())
    query: dict[str, Any] = {"since": _format_since(span, starts[0]), "account": account}
    times, models, keys, channels, users, sample, latest, session, accounts, account_views = await asyncio.gather(
        ask_admin_api(request, "/usage", by=span.axis, **query),
        ask_admin_api(request, "/usage", by="model", **query),
        ask_admin_api(request, "/usage", by="key", **query),
        _load_channel_usage(request, query, sees_all_accounts=sees_all_accounts),
        ask_admin_api(request, "/usage", by="user", limit=_MAX_MODELS, **query),
        ask_admin_api(request, "/requests", limit=SAMPLE_ROWS, **query),
        ask_admin_api(request, "/requests", limit=_MAX_REQUESTS, account=account),
        ask_admin_api(request, "/account"),
        _list_accounts(request, sees_all_accounts=sees_all_accounts),
        ask_admin_api(request, "/models"),
    )
    stacks = await _load_stacks(request, span, models.data, query)
    return {
        "spans": SPANS,
        "chosen": span_name if span_name in SPANS else "7d",
        "accounts": accounts,
        "chosen_account": account,
        "shown": next((view for view in accounts if view.name == account), session),
        "total": times.total,
        **draw_charts(span, starts, times.data, stacks, partial(gettext, request[LANGUAGE])),
        "models": models.data[:_MAX_MODELS],
        "keys": keys.data[:_MAX_MODELS],
        "channels": channels[:_MAX_MODELS],
        "users": users,
        "export": _build_export_query(query),
        "speed": measure_speed(sample.data),
        "errors": count_errors(sample.data),
        "latest": latest.data,
        "forecasts": await _load_forecasts(request, account),
        "unpriced": {model.id for model in account_views if model.price is None},
    }


def _format_since(span: Span, start: datetime) -> str:
    return start.strftime("%Y-%m-%dT%H:%M:%SZ" if span.axis == "hour" else "%Y-%m-%d")


def _build_export_query(query: Mapping[str, Any]) -> str:
    return urlencode({"by": "user", **{name: value for name, value in query.items() if value is not None}})


async def _load_forecasts(request: web.Request, account: str | None) -> list[ForecastView]:
    """Return the limits that will be reached, of the most used ones."""
    report: ForecastReport = await ask_admin_api(request, "/usage/forecast", account=account, limit=_MAX_FORECASTS)
    return [line for line in report.data if line.reached_at is not None]


async def _list_accounts(request: web.Request, *, sees_all_accounts: bool) -> list[AccountView]:
    account_views: list[AccountView] = await ask_admin_api(request, "/accounts") if sees_all_accounts else []
    return account_views


async def _load_stacks(
    request: web.Request, span: Span, lines: Sequence[UsageLine], query: Mapping[str, Any]
) -> dict[str, Sequence[UsageLine]]:
    """Return the usage over time of the models that cost most, of which ``lines`` are the first."""
    top_models = [line.model for line in lines[:_MAX_STACKED] if line.model is not None and line.cost_usd]
    lines_by_model = await asyncio.gather(
        *(ask_admin_api(request, "/usage", by=span.axis, model=model, **query) for model in top_models)
    )
    return {model: usage.data for model, usage in zip(top_models, lines_by_model, strict=True)}


async def _load_channel_usage(
    request: web.Request, query: Mapping[str, Any], *, sees_all_accounts: bool
) -> Sequence[UsageLine]:
    """Return the usage by channel. Members do not see channels."""
    lines: Sequence[UsageLine] = (
        (await ask_admin_api(request, "/usage", by="channel", **query)).data if sees_all_accounts else ()
    )
    return lines


def list_bucket_starts(span: Span, now_s: float) -> list[datetime]:
    """Return the starts of the period's hours or days in order; the last interval is still running."""
    now = datetime.fromtimestamp(now_s, UTC)
    start = now.replace(minute=0, second=0, microsecond=0)
    if span.axis == "day":
        start = start.replace(hour=0)
    step = _HOUR if span.axis == "hour" else _DAY
    return [start - step * steps_back for steps_back in reversed(range(span.bar_count))]


def draw_charts(
    span: Span,
    starts: Sequence[datetime],
    lines: Sequence[UsageLine],
    lines_by_model: Mapping[str, Sequence[UsageLine]],
    translate: Callable[[str], str],
) -> Data:
    """Draw spending by model and requests over time.

    ``starts`` are the beginnings of the period's hours or days. ``lines_by_model`` has the usage of every model that
    gets a series of its own; all other models share one.
    """
    time_format, label_format = ("%Y-%m-%dT%H:%M:%SZ", "%H:%M") if span.axis == "hour" else ("%Y-%m-%d", "%m-%d")
    moments, names = (
        [start.strftime(time_format) for start in starts],
        [start.strftime(label_format) for start in starts],
    )

    def read_values(lines: Sequence[UsageLine], name: str) -> list[float]:
        values = {getattr(line, span.axis): getattr(line, name) for line in lines}
        return [values.get(moment, 0) for moment in moments]

    costs = {model: read_values(usage, "cost_usd") for model, usage in lines_by_model.items()}
    failures = read_values(lines, "failed")
    successes = [
        requests - failed_count for requests, failed_count in zip(read_values(lines, "requests"), failures, strict=True)
    ]
    requests = [
        Series(translate(mark("Answered")), "series-2", successes),
        Series(translate(mark("Failed")), "bad", failures),
    ]
    spent_title, requests_title = _TITLES[span.axis]
    stacks = stack_spending(read_values(lines, "cost_usd"), costs, translate)
    return {
        "spend": draw_chart(translate(spent_title), names, stacks, format_usd),
        "calls": draw_chart(translate(requests_title), names, requests, format_count, whole_numbers=True),
    }


def stack_spending(
    total: Sequence[float], costs: Mapping[str, Sequence[float]], translate: Callable[[str], str]
) -> list[Series]:
    """Return a series in dollars for each model of ``costs``, and one for the remainder of ``total``, if any."""
    series = [Series(model, f"series-{number}", values) for number, (model, values) in enumerate(costs.items(), 1)]
    other_costs = [
        max(total_cost - sum(model_costs), 0.0) for total_cost, *model_costs in zip(total, *costs.values(), strict=True)
    ]
    if not series or max(other_costs, default=0.0) > _ROUNDING_ERROR:
        name = mark("Other models") if series else mark("Spent")
        series.append(Series(translate(name), f"series-{1 + len(series)}", other_costs))
    return series
