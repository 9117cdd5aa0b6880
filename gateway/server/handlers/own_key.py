"""``/v1/key``: what a key can ask about itself: its limits, what is left of them, and what it has used.

A key sees its own figures. It learns whether limits of its account apply as well and, with ``show_account``, also what
is left of those.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs
import orjson
from aiohttp import web

from gateway.deferred import load
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.account_spec import build_time
from gateway.domain.balance import QuotaPeriod
from gateway.domain.ledger import UsageFilter, UsageLine
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.rate_limit import RateLimitWindow, SubjectUse
from gateway.errors import InvalidRequest
from gateway.server.context import CALLER, SERVICES, Services
from gateway.server.query import day_of_number, day_of_time, number_of_day, parse_date

if TYPE_CHECKING:  # only with a limit
    from gateway.billing.limit_filler import CountingStart
    from gateway.billing.limit_subjects import SubjectSpending
    from gateway.domain.limit import Limit

_DAYS_SHOWN = 30
_MAX_DAYS = 366
_Axis = Literal["day", "model", "user"]
_AXES: tuple[_Axis, ...] = get_args(_Axis)
_WINDOWS: Mapping[QuotaPeriod, str] = {"daily": "day", "monthly": "month", "lifetime": "lifetime"}
_NO_USE = UsageLine("", 0, 0, 0, 0, 0)
_Fields = dict[str, Any]


async def get_key(request: web.Request) -> web.Response:
    """``GET /v1/key``: the key's state, the models that it may use, its limits and what is left of them."""
    caller, services = request[CALLER], request.app[SERVICES]
    key, account = caller.key, caller.account
    return _respond(
        {
            "object": "key",
            "name": key.name,
            "key": key.masked,
            "status": key.status,
            "created_at": build_time(key.created_ms // 1000),
            "expires_at": None if key.expires_s is None else build_time(key.expires_s),
            "models": [model.id for model in services.routing.router.list_models(caller)],
            **await find_limits(services, caller, shows_account=key.shows_account),
            "account_limits": _name_account_limits(services, key, account),
            "keep_bodies": find_keep_rule(services, key),
        }
    )


async def find_limits(services: Services, caller: Caller, *, shows_account: bool) -> _Fields:
    """Return ``limits`` and ``rate_limits``: those of the key and, if shown, of its account, with what is left."""
    key, account = caller.key, caller.account
    await services.billing.accounting.refresh(key, account)
    uses = await services.billing.quota.list_use(caller)
    return {
        "limits": [
            *_list_limits(services, key),
            *(_list_limits(services, account) if shows_account else ()),
            *await _list_further_limits(services, key, shows_account=shows_account),
        ],
        "rate_limits": [
            fields for use in uses if use.subject.kind == "key" or shows_account for fields in _list_rates(use)
        ],
    }


def find_keep_rule(services: Services, key: ApiKey) -> str:
    """Return the rule for which requests of a key bodies are kept: its own, else the gateway's, else ``none``."""
    return key.keep_bodies or services.live_config.keep_bodies or "none"


async def get_usage(request: web.Request) -> web.Response:
    """``GET /v1/key/usage``: the key's requests, tokens and costs ``by`` day, model or user, or those of one ``user``.

    ``from`` and ``to`` (YYYY-MM-DD, UTC) are the first and the last day. Raises ``InvalidRequest`` for an invalid date,
    too long a period, an unknown axis, or one user by model.
    """
    caller, services, user = request[CALLER], request.app[SERVICES], request.query.get("user", "")
    axis = _parse_axis(request.query.get("by", "day"))
    usage_filter = _parse_days(request.query, caller, services.clock())
    await services.billing.flusher.store_waiting()
    lines: Sequence[UsageLine]
    rest: dict[str, UsageLine] = {}
    if axis == "user" or user:
        usage = await load("server.handlers.own_users:find_usage")(services, axis, user, usage_filter)
        lines, total, rest = usage.lines, usage.total, usage.rest
    else:
        lines = await services.billing.accounting.list_usage(axis, usage_filter)
        total = reduce(_add, lines, _NO_USE)
    if axis == "day":
        lines_by_day = {line.label: line for line in lines}
        days = map(str, range(usage_filter.since, usage_filter.until + 1))
        lines = [lines_by_day.get(day) or attrs.evolve(_NO_USE, label=day) for day in days]
    return _respond(
        {
            "object": "list",
            "by": axis,
            "from": day_of_number(usage_filter.since).isoformat(),
            "to": day_of_number(usage_filter.until).isoformat(),
            "data": [_build_labelled(axis, line) for line in lines],
            **{name: _build_sums(line) for name, line in rest.items()},
            "total": _build_sums(total),
        }
    )


def _list_limits(services: Services, owner: ApiKey | Account) -> list[_Fields]:
    """Return the quota of ``owner`` as a list; empty without a quota."""
    quota = owner.quota
    if quota.limit_nanos is None or not quota.capped:
        return []
    figures = services.billing.accounting.describe(owner)
    return [
        {
            "name": "quota",
            "of": "account" if isinstance(owner, Account) else "key",
            "window": _WINDOWS[quota.period],
            "limit_usd": quota.limit_nanos / NANOS_PER_USD,
            "credit_usd": figures["credit_usd"],
            "spent_usd": figures["spent_usd"],
            "reserved_usd": figures["held_usd"],
            "left_usd": figures["left_usd"],
            "resets_at": figures["resets_at"],
        }
    ]


async def _list_further_limits(services: Services, key: ApiKey, *, shows_account: bool) -> list[_Fields]:
    """Return the further limits that count the key: those for each key and, if shown, for each account and model."""
    shown_kinds = {"key", "account", "model"} if shows_account else {"key"}
    limits = [limit for limit in _list_limits_in_force(services, key) if limit.kind in shown_kinds]
    spending = services.billing.limits.spending
    if not limits or spending is None:
        return []
    await services.billing.flusher.store_waiting()
    counters = load("storage.limit_counters:LimitCounters")(services.storage.database)
    find_spending, now_s = load("billing.limit_subjects:find_spending"), services.clock()
    starts = await load("billing.limit_filler:list_counting_starts")(services.storage.database, spending, now_s, limits)
    return [
        _build_limit(limit, use, starts.get(limit.counter))
        for limit in limits
        for use in await find_spending(
            spending, limit, counters, now_s, [str(key.id if limit.kind == "key" else key.account_id)]
        )
    ]


def _build_limit(limit: "Limit", spending: "SubjectSpending", start: "CountingStart | None") -> _Fields:
    filling: _Fields = {}
    if start is not None and start.is_filling and start.since_s is not None:
        filling = {"counts_since": build_time(start.since_s), "filling": True}
    return {
        "name": limit.name,
        "of": limit.of,
        "window": limit.window.text,
        "limit_usd": spending.cap_nanos / NANOS_PER_USD,
        "credit_usd": 0.0,
        "spent_usd": spending.spent_nanos / NANOS_PER_USD,
        "reserved_usd": spending.held_nanos / NANOS_PER_USD,
        "left_usd": spending.left_nanos / NANOS_PER_USD,
        "resets_at": None if spending.resets_s is None else build_time(spending.resets_s),
        **filling,
    }


def _name_account_limits(services: Services, key: ApiKey, account: Account) -> Literal["none", "hidden", "shown"]:
    further_limits = _list_limits_in_force(services, key)
    if not (account.quota.capped or account.limits.any or any(limit.kind != "key" for limit in further_limits)):
        return "none"
    return "shown" if key.shows_account else "hidden"


def _list_limits_in_force(services: Services, key: ApiKey) -> "list[Limit]":
    spending, now_s = services.billing.limits.spending, services.clock()
    limits = () if spending is None else spending.limits
    return [
        limit for limit in limits if limit.raises is None and limit.counts_key(key.name) and not limit.has_ended(now_s)
    ]


def _list_rates(use: SubjectUse) -> Iterator[_Fields]:
    limits, owner = use.subject.limits, use.subject.kind
    for kind, window in (("rpm", use.requests), ("tpm", use.tokens)):
        if window is not None:
            yield _build_rate(owner, kind, window)
    if limits.max_concurrency is not None and use.running is not None:
        remaining = max(limits.max_concurrency - use.running, 0)
        yield {"of": owner, "kind": "max_concurrency", "limit": limits.max_concurrency, "remaining": remaining}


def _build_rate(owner: str, kind: str, window: RateLimitWindow) -> _Fields:
    return {
        "of": owner,
        "kind": kind,
        "limit": window.limit,
        "remaining": window.remaining,
        "reset_s": round(window.reset_s, 3),
    }


def _parse_axis(text: str) -> _Axis:
    for axis in _AXES:
        if text == axis:
            return axis
    raise InvalidRequest(f"'by' must be one of {', '.join(_AXES)}", param="by")


def _parse_days(query: Mapping[str, str], caller: Caller, now_s: float) -> UsageFilter:
    last_day = number_of_day(parse_date(query, "to") or day_of_time(now_s))
    first_date = parse_date(query, "from")
    first_day = number_of_day(first_date) if first_date else max(last_day - _DAYS_SHOWN + 1, 0)
    if first_day > last_day:
        raise InvalidRequest("'from' must not be after 'to'", param="from")
    if last_day - first_day >= _MAX_DAYS:
        raise InvalidRequest(f"'from' and 'to' must span at most {_MAX_DAYS} days", param="from")
    return UsageFilter(first_day, last_day, caller.account.id, caller.key.id)


def _build_labelled(axis: _Axis, line: UsageLine) -> _Fields:
    label = day_of_number(int(line.label)).isoformat() if axis == "day" else line.label
    return {axis: label, **_build_sums(line)}


def _build_sums(line: UsageLine) -> _Fields:
    return {
        "requests": line.requests,
        "prompt_tokens": line.prompt_tokens,
        "completion_tokens": line.completion_tokens,
        "cached_tokens": line.cached_tokens,
        "cost_usd": line.cost_nanos / NANOS_PER_USD,
    }


def _add(line: UsageLine, other_line: UsageLine) -> UsageLine:
    return UsageLine("", *map(int.__add__, attrs.astuple(line)[1:], attrs.astuple(other_line)[1:]))


def _respond(fields: _Fields) -> web.Response:
    headers = {"Cache-Control": "private, no-store"}
    return web.Response(body=orjson.dumps(fields), content_type="application/json", headers=headers)
