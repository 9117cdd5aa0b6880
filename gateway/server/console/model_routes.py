"""The pages of routes: their list, and one with its steps, a dry run and the results of its models."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from gateway.domain.account_spec import build_time
from gateway.domain.route import BALANCE_STRATEGIES, CAUSES, DEFAULT_CAUSES
from gateway.errors import NotFound
from gateway.server.console.dry_run import ask_dry_run
from gateway.server.console.filters import write_number
from gateway.server.console.lists import load_list
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.periods import NAMED_PERIODS
from gateway.server.console.route_results import compare_results, find_answered_share, is_worse
from gateway.server.context import SERVICES

_EDITED_FIELDS = frozenset({"models", "channels", "on", "if", "balance", "wait_s", "shadow"})
"""The fields of a step that the form shows. The form keeps other fields unchanged."""
_RESULT_DAYS: Mapping[str, int] = {"24h": 1, "7d": 7}
_DEFAULT_PERIOD = "24h"
_DAY_S = 86_400
_UNFOLDED_FIELDS = frozenset({"models", "channels", "on"})
"""The fields of a step that the form always shows; other fields are folded away."""


async def load_routes(request: web.Request) -> Data:
    """Load a page of the routes, and the choices of the form for a new one."""
    routes, models = await asyncio.gather(load_list(request, "/routes"), ask_admin_api(request, "/models"))

    return {"list": routes, **_list_choices(models)}


async def load_route(request: web.Request) -> Data:
    """Load a route with its steps as a form shows them, a dry run, and results of its models. Raises ``NotFound``."""
    name, period = request.match_info["name"], request.query.get("span", "")
    period = period if period in _RESULT_DAYS else _DEFAULT_PERIOD
    route, models, dry_run, comparisons = await asyncio.gather(
        ask_admin_api(request, "/routes/{name}"),
        ask_admin_api(request, "/models"),
        ask_dry_run(request, name),
        ask_admin_api(request, "/routes/{name}/shadow", since=_find_since(request, period)),
    )
    if dry_run.explanation.steps is None:
        raise NotFound(f"There is no route {name[:120]!r}")
    steps = [_build_row(step) for step in route.step]
    ordinary, copies = compare_results(route, comparisons)
    return {
        "route": route,
        "steps": steps,
        "dry_run": dry_run,
        "results": ordinary,
        "copies": copies,
        "answered_share": find_answered_share,
        "is_worse": is_worse,
        "spans": {name: NAMED_PERIODS[name] for name in _RESULT_DAYS},
        "chosen": period,
        **_list_choices(models),
    }


def _find_since(request: web.Request, period: str) -> str:
    return build_time(int(request.app[SERVICES].clock()) - _RESULT_DAYS[period] * _DAY_S)


def _list_choices(models: Sequence[Any]) -> Data:
    names = sorted(model.id for model in models if not model.route)
    channel_names = sorted({channel for model in models for channel in model.channels})
    return {
        "causes": CAUSES,
        "balances": BALANCE_STRATEGIES,
        "model_names": names,
        "channel_names": channel_names,
        "empty": _EMPTY_ROW,
    }


def _build_row(step: Mapping[str, Any]) -> Data:
    condition, shadow = step.get("if", {}), step.get("shadow", {})
    return {
        "models": [_build_share(share) for share in step["models"]],
        "channels": [_build_share(name) for name in step.get("channels", ())],
        "on": step.get("on", DEFAULT_CAUSES),
        "condition": condition,
        "balance": step.get("balance"),
        "wait_s": write_number(step.get("wait_s")),
        "shadow": {
            "models": [_build_share(name) for name in shadow.get("models", ())],
            "share": write_number(shadow.get("share")),
            "max_running": write_number(shadow.get("max_running")),
        },
        "more": not step.keys() <= _UNFOLDED_FIELDS,
        "others": orjson.dumps({name: value for name, value in step.items() if name not in _EDITED_FIELDS}).decode(),
    }


def _build_share(share: str | Mapping[str, Any]) -> Data:
    """Return the name and weight of an entry in a step's list of models or channels. A plain name has the weight 1."""
    return (
        {"name": share, "weight": 1} if isinstance(share, str) else {"name": share["model"], "weight": share["weight"]}
    )


_EMPTY_ROW = _build_row({"models": ("",)})
"""The row of a new step."""
