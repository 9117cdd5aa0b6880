"""The pages of the request log."""

import asyncio
import re
from typing import get_args
from urllib.parse import urlencode

from aiohttp import web

from gateway.domain.operation import OPERATIONS
from gateway.domain.request_log import Outcome
from gateway.server.admin.requests import RequestDetails
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.routes import ROOT, mark
from gateway.server.context import ACTOR

_LISTED = 50
_FILTERS = ("account", "key", "model", "channel", "outcome", "status", "unpriced", "since", "until", "text")
_OF_OPERATORS = ("account", "channel")
"""Filters that only administrators may use."""
_ZONE = re.compile(r"[+-]\d\d:?\d\d\Z", re.ASCII)


async def load_requests(request: web.Request) -> Data:
    """Load a page of the request list, and the values to filter by."""
    everyone = request[ACTOR].scope is None
    wanted = {
        name: request.query[name]
        for name in _FILTERS
        if request.query.get(name) and (everyone or name not in _OF_OPERATORS)
    }
    times = {name: wanted[name] for name in ("since", "until") if name in wanted}
    found, facets, keys = await asyncio.gather(
        ask_admin_api(request, "/requests", limit=_LISTED, before=request.query.get("before"), **wanted),
        ask_admin_api(request, "/requests/facets", **times),
        ask_admin_api(request, "/keys"),
    )
    older = {**wanted, "before": found.next} if found.more else None  # a page may be empty without being the last
    return {
        "rows": found.data,
        "wanted": wanted,
        "since": complete_time(wanted.get("since", ""), "00:00:00"),
        "until": complete_time(wanted.get("until", ""), "23:59:59"),
        "operations": OPERATIONS,
        "outcomes": get_args(Outcome),
        "facets": facets,
        "key_names": {key.id: f"{key.account}/{key.name}" if everyone else key.name for key in keys},
        "older": None if older is None else f"{ROOT}/requests?{urlencode(older)}",
        "newest": f"{ROOT}/requests?{urlencode(wanted)}" if "before" in request.query else None,
        "searched_to": found.searched_to,
        "export": urlencode(wanted),
        "everyone": everyone,
    }


async def load_request(request: web.Request) -> Data:
    """Load a request."""
    row = await ask_admin_api(request, "/requests/{id}")
    return {"row": row, "parts_of_time": build_time_segments(row), "operations": OPERATIONS}


def complete_time(given: str, clock: str) -> str:
    """Return a filter's time with a time zone, by default UTC. A day without a time gets the time ``clock``."""
    if len(given) == len("2027-01-31"):
        return f"{given}T{clock}Z"
    return f"{given}Z" if given[-1:].isdigit() and not _ZONE.search(given) else given


def build_time_segments(row: RequestDetails) -> list[Data]:
    """Return a request's failed attempts, wait and answer as segments of a time bar from 0 to 1,000."""
    total = max(row.total_ms, 1)
    stretches: list[tuple[str, str, float]] = []
    at = 0.0
    for attempt in row.attempts_made[:-1]:
        stretches.append((f"{attempt.channel or attempt.model}: {attempt.error_code}", "bad", attempt.ms))
        at += attempt.ms
    first = row.timing.first_byte_ms
    if first is None:
        stretches.append((mark("no answer"), "series-3", max(total - at, 0)))
    else:
        stretches.append((mark("until first byte"), "series-3", max(first - at, 0)))
        stretches.append((mark("answer"), "series-2", max(total - max(first, at), 0)))
    scale = 1000 / max(sum(ms for _, _, ms in stretches), 1)
    drawn, x = [], 0.0
    for name, kind, ms in stretches:
        drawn.append({"name": name, "kind": kind, "ms": ms, "x": round(x, 1), "width": round(ms * scale, 1)})
        x += ms * scale
    return drawn
