"""The pages of requests: a list that is filtered and walked by cursor, and everything about one."""

import asyncio
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from gateway.server.console.page import ROOT, Data, Page, ask
from gateway.server.context import ACTOR

_LISTED = 50
_FILTERS = ("account", "key", "model", "channel", "status", "since", "until", "text")
_OF_OPERATORS = ("account", "channel")
"""What only an administrator may filter by."""


async def load_requests(request: web.Request) -> Data:
    """One page of the list, and what there is to choose from."""
    everyone = request[ACTOR].scope is None
    wanted = {
        name: request.query[name]
        for name in _FILTERS
        if request.query.get(name) and (everyone or name not in _OF_OPERATORS)
    }
    times = {name: wanted[name] for name in ("since", "until") if name in wanted}
    found, facets, keys = await asyncio.gather(
        ask(request, "/requests", limit=_LISTED, before=request.query.get("before"), **wanted),
        ask(request, "/requests/facets", **times),
        ask(request, "/keys"),
    )
    rows: list[dict[str, Any]] = found["data"]
    older = {**wanted, "before": found["next"]} if found["more"] else None  # among millions: also where none was found
    return {
        "rows": rows,
        "wanted": wanted,
        "facets": facets,
        "key_names": {
            key["id"]: f"{key['account']}/{key['name']}" if everyone else key["name"] for key in keys["data"]
        },
        "older": None if older is None else f"{ROOT}/requests?{urlencode(older)}",
        "newest": f"{ROOT}/requests?{urlencode(wanted)}" if "before" in request.query else None,
        "searched_to": found["searched_to"],
        "export": urlencode(wanted),
        "everyone": everyone,
    }


async def load_request(request: web.Request) -> Data:
    """One request."""
    row = await ask(request, "/requests/{id}")
    return {"row": row, "parts_of_time": part_time(row)}


def part_time(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Where its time went, as stretches of a bar from 0 to 1,000: attempts that failed, the wait, and the answer."""
    total = max(row["total_ms"], 1)
    stretches: list[tuple[str, str, float]] = []
    at = 0.0
    for attempt in row["attempts_made"][:-1]:
        stretches.append((f"{attempt['channel']}: {attempt['outcome']}", "bad", attempt["ms"]))
        at += attempt["ms"]
    first = row["timing"]["first_byte_ms"]
    if first is None:
        stretches.append(("no answer", "series-3", max(total - at, 0)))
    else:
        stretches.append(("until the first byte", "series-3", max(first - at, 0)))
        stretches.append(("the answer", "series-2", max(total - max(first, at), 0)))
    scale = 1000 / max(sum(ms for _, _, ms in stretches), 1)
    drawn, x = [], 0.0
    for name, kind, ms in stretches:
        drawn.append({"name": name, "kind": kind, "ms": ms, "x": round(x, 1), "width": round(ms * scale, 1)})
        x += ms * scale
    return drawn


REQUEST_PAGES = (
    Page("/requests", "requests.html", "Requests", load_requests),
    Page("/requests/{id}", "request.html", "Request", load_request),
)
