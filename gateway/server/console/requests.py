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

_PAGE_SIZE = 50
_NAMES = ("route", "end_user", "session", "tag")
"""Filters that links of the console set; the form shows them only if they are set."""
_FILTERS = (*_NAMES, "account", "key", "model", "channel", "outcome", "status", "unpriced", "since", "until", "text")
_OPERATOR_FILTERS = ("account", "channel")
"""Filters that only administrators may use."""
_ZONE_PATTERN = re.compile(r"[+-]\d\d:?\d\d\Z", re.ASCII)


async def load_requests(request: web.Request) -> Data:
    """Load a page of the request list, and the values to filter by."""
    sees_all_accounts = request[ACTOR].scope is None
    filters = {
        name: request.query[name]
        for name in _FILTERS
        if request.query.get(name) and (sees_all_accounts or name not in _OPERATOR_FILTERS)
    }
    times = {name: filters[name] for name in ("since", "until") if name in filters}
    page, facets, keys = await asyncio.gather(
        ask_admin_api(request, "/requests", limit=_PAGE_SIZE, before=request.query.get("before"), **filters),
        ask_admin_api(request, "/requests/facets", **times),
        ask_admin_api(request, "/keys"),
    )
    older_query = {**filters, "before": page.next} if page.more else None  # a page may be empty without being the last
    return {
        "rows": page.data,
        "wanted": filters,
        "named": [name for name in _NAMES if name in filters],
        "since": complete_time(filters.get("since", ""), "00:00:00"),
        "until": complete_time(filters.get("until", ""), "23:59:59"),
        "operations": OPERATIONS,
        "outcomes": get_args(Outcome),
        "facets": facets,
        "key_names": {key.id: f"{key.account}/{key.name}" if sees_all_accounts else key.name for key in keys},
        "older": None if older_query is None else f"{ROOT}/requests?{urlencode(older_query)}",
        "newest": f"{ROOT}/requests?{urlencode(filters)}" if "before" in request.query else None,
        "searched_to": page.searched_to,
        "export": urlencode(filters),
        "everyone": sees_all_accounts,
    }


async def load_request(request: web.Request) -> Data:
    """Load a request."""
    row = await ask_admin_api(request, "/requests/{id}")
    return {"row": row, "parts_of_time": build_time_segments(row), "operations": OPERATIONS}


def complete_time(time_text: str, clock: str) -> str:
    """Return a filter's time with a time zone, by default UTC. A day without a time gets the time ``clock``."""
    if len(time_text) == len("2027-01-31"):
        return f"{time_text}T{clock}Z"
    return f"{time_text}Z" if time_text[-1:].isdigit() and not _ZONE_PATTERN.search(time_text) else time_text


def build_time_segments(row: RequestDetails) -> list[Data]:
    """Return a request's failed attempts, wait and answer as segments of a time bar from 0 to 1,000."""
    total_ms = max(row.total_ms, 1)
    segments: list[tuple[str, str, float]] = []
    position = 0.0
    for attempt in row.attempts_made[:-1]:
        segments.append((f"{attempt.channel or attempt.model}: {attempt.error_code}", "bad", attempt.ms))
        position += attempt.ms
    first_byte_ms = row.timing.first_byte_ms
    if first_byte_ms is None:
        segments.append((mark("no answer"), "series-3", max(total_ms - position, 0)))
    else:
        segments.append((mark("until first byte"), "series-3", max(first_byte_ms - position, 0)))
        segments.append((mark("answer"), "series-2", max(total_ms - max(first_byte_ms, position), 0)))
    scale = 1000 / max(sum(ms for _, _, ms in segments), 1)
    bars, x = [], 0.0
    for name, kind, ms in segments:
        bars.append({"name": name, "kind": kind, "ms": ms, "x": round(x, 1), "width": round(ms * scale, 1)})
        x += ms * scale
    return bars
