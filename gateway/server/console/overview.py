"""The first page: spending and requests over time, and the balance."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from aiohttp import web

from gateway.frozen import frozen
from gateway.server.admin.accounts import AccountView
from gateway.server.admin.usage import UsageLine
from gateway.server.console.charts import Series, draw
from gateway.server.console.filters import format_count, format_usd
from gateway.server.console.health_of_requests import SAMPLE, count_errors, measure_speed
from gateway.server.console.language import LANGUAGE, gettext
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.routes import mark
from gateway.server.context import ACTOR, SERVICES

_TOP = 6
_STACKED = 5
"""Number of models, the most expensive, with their own color in the spending chart."""
_LATEST = 6


@frozen
class Span:
    """A period of hours or days that ends now. ``name``: in English."""

    name: str
    by: str
    places: int


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
_ROUNDING = 1e-9
"""Tolerance for sums of floats, in dollars."""
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


async def load_overview(request: web.Request) -> Data:
    """Load the usage of the account. Administrators see all accounts, or the selected one."""
    chosen = request.query.get("span", "7d")
    span = SPANS.get(chosen, SPANS["7d"])
    everyone = request[ACTOR].scope is None
    account = request.query.get("account") if everyone else None
    places = list_places(span, request.app[SERVICES].clock())
    since = places[0].strftime("%Y-%m-%dT%H:%M:%SZ" if span.by == "hour" else "%Y-%m-%d")
    of: dict[str, Any] = {"since": since, "account": account}
    times, models, keys, sample, latest, own, accounts, listed = await asyncio.gather(
        ask_admin_api(request, "/usage", by=span.by, **of),
        ask_admin_api(request, "/usage", by="model", **of),
        ask_admin_api(request, "/usage", by="key", **of),
        ask_admin_api(request, "/requests", limit=SAMPLE, **of),
        ask_admin_api(request, "/requests", limit=_LATEST, account=account),
        ask_admin_api(request, "/account"),
        _list_accounts(request, everyone=everyone),
        ask_admin_api(request, "/models"),
    )
    top = [line.model for line in models.data[:_STACKED] if line.cost_usd]
    of_models = await asyncio.gather(
        *(ask_admin_api(request, "/usage", by=span.by, model=model, **of) for model in top)
    )
    stacks = {model: usage.data for model, usage in zip(top, of_models, strict=True)}
    shown = next((one for one in accounts if one.name == account), own)
    return {
        "spans": SPANS,
        "chosen": chosen if chosen in SPANS else "7d",
        "accounts": accounts,
        "chosen_account": account,
        "shown": shown,
        "total": times.total,
        **draw_charts(span, places, times.data, stacks, partial(gettext, request[LANGUAGE])),
        "models": models.data[:_TOP],
        "keys": keys.data[:_TOP],
        "speed": measure_speed(sample.data),
        "errors": count_errors(sample.data),
        "latest": latest.data,
        "unpriced": {model.id for model in listed if model.price is None},
    }


async def _list_accounts(request: web.Request, *, everyone: bool) -> list[AccountView]:
    listed: list[AccountView] = await ask_admin_api(request, "/accounts") if everyone else []
    return listed


def list_places(span: Span, now_s: float) -> list[datetime]:
    """Return the starts of the period's hours or days in order; the last interval is still running."""
    now = datetime.fromtimestamp(now_s, UTC)
    start = now.replace(minute=0, second=0, microsecond=0)
    if span.by == "day":
        start = start.replace(hour=0)
    step = _HOUR if span.by == "hour" else _DAY
    return [start - step * back for back in reversed(range(span.places))]


def draw_charts(
    span: Span,
    places: Sequence[datetime],
    lines: Sequence[UsageLine],
    of_models: Mapping[str, Sequence[UsageLine]],
    translate: Callable[[str], str],
) -> Data:
    """Draw spending by model and requests over time.

    ``places``: the starts of the period's hours or days. ``of_models``: the usage of the models with their own series;
    the others share one.
    """
    form, words = ("%Y-%m-%dT%H:%M:%SZ", "%H:%M") if span.by == "hour" else ("%Y-%m-%d", "%m-%d")
    moments, named = [place.strftime(form) for place in places], [place.strftime(words) for place in places]

    def read(lines: Sequence[UsageLine], name: str) -> list[float]:
        found = {getattr(line, span.by): getattr(line, name) for line in lines}
        return [found.get(moment, 0) for moment in moments]

    spent = {model: read(usage, "cost_usd") for model, usage in of_models.items()}
    failed = read(lines, "failed")
    answered = [requests - bad for requests, bad in zip(read(lines, "requests"), failed, strict=True)]
    requests = [
        Series(translate(mark("Answered")), "series-2", answered),
        Series(translate(mark("Failed")), "bad", failed),
    ]
    spent_title, requests_title = _TITLES[span.by]
    stacks = stack_spending(read(lines, "cost_usd"), spent, translate)
    return {
        "spend": draw(translate(spent_title), named, stacks, format_usd),
        "calls": draw(translate(requests_title), named, requests, format_count, whole=True),
    }


def stack_spending(
    total: Sequence[float], spent: Mapping[str, Sequence[float]], translate: Callable[[str], str]
) -> list[Series]:
    """Return a series in dollars for each model of ``spent``, and one for the remainder of ``total``, if any."""
    series = [Series(model, f"series-{at}", values) for at, (model, values) in enumerate(spent.items(), 1)]
    rest = [max(whole - sum(parts), 0.0) for whole, *parts in zip(total, *spent.values(), strict=True)]
    if not series or max(rest, default=0.0) > _ROUNDING:
        name = mark("Other models") if series else mark("Spent")
        series.append(Series(translate(name), f"series-{1 + len(series)}", rest))
    return series
