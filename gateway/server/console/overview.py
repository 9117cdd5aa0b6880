"""The first page: spending and requests over time, and the balance."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs
from aiohttp import web

from gateway.server.console.charts import Series, draw
from gateway.server.console.filters import format_count, format_usd
from gateway.server.console.health_of_requests import SAMPLE, count_errors, measure_speed
from gateway.server.console.language import LANGUAGE, gettext, mark
from gateway.server.console.page import Data, Page, ask
from gateway.server.context import ACTOR, SERVICES

_TOP = 6
_LATEST = 6


@attrs.frozen
class Span:
    """A period up to now, in hours or days. ``name`` is in English."""

    name: str
    by: str
    places: int


SPANS: Mapping[str, Span] = MappingProxyType(
    {
        "24h": Span(mark("Last 24 hours"), "hour", 24),
        "7d": Span(mark("Last 7 days"), "day", 7),
        "30d": Span(mark("Last 30 days"), "day", 30),
        "90d": Span(mark("Last 90 days"), "day", 90),
    },
)
_TITLES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "hour": (mark("Spent per hour (UTC)"), mark("Requests per hour (UTC)")),
        "day": (mark("Spent per day (UTC)"), mark("Requests per day (UTC)")),
    },
)
"""The titles of the two charts."""
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


async def load_overview(request: web.Request) -> Data:
    """Load the usage of the account; for an administrator of all accounts or the chosen one."""
    chosen = request.query.get("span", "7d")
    span = SPANS.get(chosen, SPANS["7d"])
    everyone = request[ACTOR].scope is None
    account = request.query.get("account") if everyone else None
    places = list_places(span, request.app[SERVICES].clock())
    since = places[0].strftime("%Y-%m-%dT%H:%M:%SZ" if span.by == "hour" else "%Y-%m-%d")
    of: dict[str, Any] = {"since": since, "account": account}
    times, models, keys, sample, latest, own, accounts, listed = await asyncio.gather(
        ask(request, "/usage", by=span.by, **of),
        ask(request, "/usage", by="model", **of),
        ask(request, "/usage", by="key", **of),
        ask(request, "/requests", limit=SAMPLE, **of),
        ask(request, "/requests", limit=_LATEST, account=account),
        ask(request, "/account"),
        _list_accounts(request, everyone=everyone),
        ask(request, "/models"),
    )
    shown = next((one for one in accounts if one["name"] == account), own)
    return {
        "spans": SPANS,
        "chosen": chosen if chosen in SPANS else "7d",
        "accounts": accounts,
        "chosen_account": account,
        "shown": shown,
        "total": times["total"],
        **draw_charts(span, places, times["data"], partial(gettext, request[LANGUAGE])),
        "models": models["data"][:_TOP],
        "keys": keys["data"][:_TOP],
        "speed": measure_speed(sample["data"]),
        "errors": count_errors(sample["data"]),
        "latest": latest["data"],
        "unpriced": {model["id"] for model in listed["data"] if model["price"] is None},
    }


async def _list_accounts(request: web.Request, *, everyone: bool) -> list[Data]:
    listed: list[Data] = (await ask(request, "/accounts"))["data"] if everyone else []
    return listed


def list_places(span: Span, now_s: float) -> list[datetime]:
    """Return the starts of the period's hours or days in order; the last one is not over."""
    now = datetime.fromtimestamp(now_s, UTC)
    start = now.replace(minute=0, second=0, microsecond=0)
    if span.by == "day":
        start = start.replace(hour=0)
    step = _HOUR if span.by == "hour" else _DAY
    return [start - step * back for back in reversed(range(span.places))]


def draw_charts(
    span: Span, places: Sequence[datetime], lines: Sequence[Mapping[str, Any]], translate: Callable[[str], str]
) -> Data:
    """Draw spending and requests over time from lines of the admin API's usage."""
    form, words = ("%Y-%m-%dT%H:%M:%SZ", "%H:%M") if span.by == "hour" else ("%Y-%m-%d", "%m-%d")
    found = {line[span.by]: line for line in lines}
    by_place = [found.get(place.strftime(form), {}) for place in places]
    named = [place.strftime(words) for place in places]
    failed = [line.get("failed", 0) for line in by_place]
    answered = [line.get("requests", 0) - line.get("failed", 0) for line in by_place]
    spent = [line.get("cost_usd", 0.0) for line in by_place]
    spent_title, calls_title = _TITLES[span.by]
    return {
        "spend": draw(translate(spent_title), named, [Series(translate(mark("Spent")), "series-1", spent)], format_usd),
        "calls": draw(
            translate(calls_title),
            named,
            [
                Series(translate(mark("Answered")), "series-2", answered),
                Series(translate(mark("Failed")), "bad", failed),
            ],
            format_count,
            whole=True,
        ),
    }


OVERVIEW_PAGES = (
    Page("", "overview.html", mark("Overview"), load_overview, part="overview"),
    Page("/", "overview.html", mark("Overview"), load_overview, part="overview"),
)
