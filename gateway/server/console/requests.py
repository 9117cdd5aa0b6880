"""The pages of the request log."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args
from urllib.parse import quote, urlencode

from aiohttp import web

from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.request_log import Outcome
from gateway.server.admin.accounts import KeyView
from gateway.server.admin.requests import RequestDetails, RequestView
from gateway.server.admin.usage import FacetsView, KeyFacet
from gateway.server.console.connect import find_address
from gateway.server.console.fallback import FALLBACK_OPERATIONS
from gateway.server.console.form_choices import ModelKind
from gateway.server.console.models import SAMPLES
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.request_columns import COOKIE, choose_columns, list_columns
from gateway.server.console.request_sums import PERIOD_NAMES, find_since, load_sums
from gateway.server.console.routes import ROOT, mark
from gateway.server.context import ACTOR, SERVICES
from gateway.server.query import parse_moment

_PAGE_SIZE = 50
_FACET_PERIOD = "7d"
"""The period whose requests supply the values in the form if no period, or a long one, is chosen."""
_LONG_PERIODS = ("30d", "90d")
_MAX_FACETS = 30
_CHOICES = ("key", "model", "channel")
"""Filters with a list of the values that occur. A chosen value that does not occur is in the list, too."""
_TEXTS = ("end_user", "session", "tag", "route", "served_model", "error_code")
"""Filters for which the form has a text field."""
_FILTERS = (*_CHOICES, *_TEXTS, "account", "outcome", "status", "unpriced", "since", "until", "text")
_OPERATOR_FILTERS = ("account", "channel", "served_model")
"""Filters that only administrators may use."""
_FOLDED_FILTERS = frozenset({*_TEXTS, "outcome", "channel", "unpriced", "since", "until"})
"""Filters that the form folds away unless one of them is set."""
_PLAYGROUND_MODES: Mapping[Operation, ModelKind] = {
    "images": "images",
    "image_edits": "images",
    "videos": "video",
    "speech": "speech",
    "transcriptions": "transcription",
}
"""The playground's mode for an operation that is no conversation."""
_ZONE_PATTERN = re.compile(r"[+-]\d\d:?\d\d\Z", re.ASCII)


async def load_requests(request: web.Request) -> Data:
    """Load a page of the request list, the values to filter by, and the sums of all that the filters match."""
    sees_all_accounts = request[ACTOR].scope is None
    wanted = {
        name: request.query[name]
        for name in _FILTERS
        if request.query.get(name) and (sees_all_accounts or name not in _OPERATOR_FILTERS)
    }
    period = request.query.get("last", "")
    since = find_since(period, request.app[SERVICES].clock())
    period, filters = ("", wanted) if since is None else (period, {**wanted, "since": since})
    link_query = {**wanted, "last": period} if period else wanted
    page, choices, sums = await asyncio.gather(
        ask_admin_api(request, "/requests", limit=_PAGE_SIZE, before=request.query.get("before"), **filters),
        _load_choices(request, filters, is_long=period in _LONG_PERIODS),
        load_sums(request, filters),
    )
    columns = list_columns(sees_all_accounts=sees_all_accounts)
    older_query = {**link_query, "before": page.next} if page.more else None  # a page may be empty, but not the last
    return {
        **choices,
        "page_of_rows": page,
        "wanted": wanted,
        "period": period,
        "unfolded": bool(_FOLDED_FILTERS & wanted.keys()),
        "since": complete_time(wanted.get("since", ""), "00:00:00"),
        "until": complete_time(wanted.get("until", ""), "23:59:59"),
        "operations": OPERATIONS,
        "find_speed": compute_tokens_per_s,
        "columns": columns,
        "shown_columns": choose_columns(request.cookies.get(COOKIE, ""), columns),
        "column_cookie": COOKIE,
        "sums": sums,
        "failed_link": _write_link({**link_query, "status": "error"}),
        "older": None if older_query is None else _write_link(older_query),
        "newest": _write_link(link_query) if "before" in request.query else None,
        "export": urlencode(filters),
        "everyone": sees_all_accounts,
    }


async def _load_choices(request: web.Request, filters: Mapping[str, str], *, is_long: bool) -> Data:
    """Load the values that the filter form offers.

    ``is_counted`` says whether their counts are those of the list's period.
    """
    times = {name: filters[name] for name in ("since", "until") if name in filters}
    is_counted = "since" in times and not is_long
    if not is_counted:
        times = {"since": find_since(_FACET_PERIOD, request.app[SERVICES].clock()) or ""}
    facets: FacetsView = await ask_admin_api(request, "/requests/facets", **times)
    starts_ms = [parse_moment({"since": text}, "since") or 0 for text in (facets.since, times["since"])]
    return {
        "models": facets.models[:_MAX_FACETS],
        "channels": facets.channels[:_MAX_FACETS],
        "statuses": facets.statuses,
        "is_counted": is_counted and starts_ms[0] <= starts_ms[1],
        "key_names": await _list_key_names(request, facets.keys[:_MAX_FACETS], filters.get("key", "")),
        "periods": PERIOD_NAMES,
        "outcomes": get_args(Outcome),
    }


def _write_link(query: Mapping[str, str]) -> str:
    return f"{ROOT}/requests?{urlencode(query)}" if query else f"{ROOT}/requests"


async def _list_key_names(request: web.Request, facets: Iterable[KeyFacet], chosen_id: str) -> dict[str, str]:
    """Return the names of the keys to choose from, by id: the most used ones, and the chosen one."""
    names = {str(facet.value): facet.name for facet in facets}
    if chosen_id and chosen_id not in names:
        keys: Sequence[KeyView] = await ask_admin_api(request, "/keys")
        names[chosen_id] = next((f"{key.account}/{key.name}" for key in keys if str(key.id) == chosen_id), chosen_id)
    if request[ACTOR].scope is None:
        return names
    return {key_id: name.partition("/")[2] or name for key_id, name in names.items()}


async def load_request(request: web.Request) -> Data:
    """Load a request with the parts of its time, its speed, its address, and a small body for the same operation."""
    row = await ask_admin_api(request, "/requests/{id}")
    facts = OPERATIONS[row.operation]
    return {
        "row": row,
        "parts_of_time": build_time_segments(row),
        "tokens_per_s": compute_tokens_per_s(row),
        "operations": OPERATIONS,
        "playground_mode": _PLAYGROUND_MODES.get(row.operation, "chat" if facts.conversation else None),
        "url": f"{find_address(request)}{facts.path.replace('{model}', quote(row.model, safe=''))}",
        "sample": _build_sample(row),
        "fallback_operations": FALLBACK_OPERATIONS,
    }


def _build_sample(row: RequestDetails) -> Data | None:
    sample = next((sample for operation, sample in SAMPLES.items() if operation == row.operation), None)
    if sample is None:
        return None
    model = {} if row.operation == "generate_content" else {"model": row.model}  # which has it in its path
    stream = {"stream": True} if row.stream and model else {}
    return {**model, **sample, **stream}


def compute_tokens_per_s(row: RequestView) -> float | None:
    """Return the tokens of an answer per second after its first byte; None without tokens, or without such a time."""
    if row.first_byte_ms is None or not row.completion_tokens or row.total_ms <= row.first_byte_ms:
        return None
    return row.completion_tokens * 1000 / (row.total_ms - row.first_byte_ms)


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
    first_byte_ms = row.timing.first_byte_ms
    failures = row.attempts_made if first_byte_ms is None and row.error_code else row.attempts_made[:-1]
    for attempt in failures:
        name = attempt.channel or attempt.model
        segments.append((f"{name}: {attempt.error_code}" if name else attempt.error_code or "", "bad", attempt.ms))
        position += attempt.ms
    if first_byte_ms is None:
        word = mark("other work") if failures else mark("no answer")
        segments.append((word, "series-3", max(total_ms - position, 0)))
    else:
        segments.append((mark("until first byte"), "series-3", max(first_byte_ms - position, 0)))
        segments.append((mark("answer"), "series-2", max(total_ms - max(first_byte_ms, position), 0)))
    scale = 1000 / max(sum(ms for _, _, ms in segments), 1)
    bars, x = [], 0.0
    for name, kind, ms in segments:
        bars.append({"name": name, "kind": kind, "ms": ms, "x": round(x, 1), "width": round(ms * scale, 1)})
        x += ms * scale
    return bars
