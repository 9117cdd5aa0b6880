"""The pages of routes: their list, and one with its steps and a dry run."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from gateway.domain.route import BALANCE_STRATEGIES, CAUSES, DEFAULT_CAUSES
from gateway.errors import NotFound
from gateway.server.console.dry_run import ask_dry_run
from gateway.server.console.filters import write_number
from gateway.server.console.lists import load_list
from gateway.server.console.page import Data, ask_admin_api

_EDITED_FIELDS = frozenset({"models", "channels", "on", "if", "balance", "wait_s", "shadow"})
"""The fields of a step that the form shows. It keeps any other one unchanged."""


async def load_routes(request: web.Request) -> Data:
    """Load a page of the routes, each step as one line of text."""
    routes, models = await asyncio.gather(load_list(request, "/routes"), ask_admin_api(request, "/models"))

    return {"list": routes, **_list_choices(models)}


async def load_route(request: web.Request) -> Data:
    """Load a route with its steps as a form shows them, and the dry run of a request that the query describes."""
    name = request.match_info["name"]
    route, models, dry_run = await asyncio.gather(
        ask_admin_api(request, "/routes/{name}"), ask_admin_api(request, "/models"), ask_dry_run(request, name)
    )
    if dry_run.explanation.steps is None:
        raise NotFound(f"There is no route {name[:120]!r}")
    steps = [_build_row(step) for step in route.step]
    return {"route": route, "steps": steps, "dry_run": dry_run, **_list_choices(models)}


def _list_choices(models: Sequence[Any]) -> Data:
    names = sorted(model.id for model in models if not model.route)
    return {"causes": CAUSES, "balances": BALANCE_STRATEGIES, "model_names": names, "empty": _EMPTY_ROW}


def _build_row(step: Mapping[str, Any]) -> Data:
    condition, shadow = step.get("if", {}), step.get("shadow", {})
    return {
        "models": _write_models(step),
        "channels": _write_names(step.get("channels", ())),
        "on": step.get("on", DEFAULT_CAUSES),
        "condition": condition,
        "balance": step.get("balance"),
        "wait_s": write_number(step.get("wait_s")),
        "shadow": {
            "models": _write_names(shadow.get("models", ())),
            "share": write_number(shadow.get("share")),
            "max_running": write_number(shadow.get("max_running")),
        },
        "more": step.keys() > {"models"},
        "others": orjson.dumps({name: value for name, value in step.items() if name not in _EDITED_FIELDS}).decode(),
    }


def _write_models(step: Mapping[str, Any]) -> str:
    return ", ".join(
        _write_name(share) if isinstance(share, str) else f"{_write_name(share['model'])}*{share['weight']}"
        for share in step["models"]
    )


def _write_names(names: Iterable[str]) -> str:
    return ", ".join(map(_write_name, names))


def _write_name(name: str) -> str:
    """Quote a name with a comma, quotation mark or outer space, which ``routes.js`` would read as something else."""
    is_plain = name == name.strip() and not any(mark in name for mark in ',"')
    return name if is_plain else orjson.dumps(name).decode()


_EMPTY_ROW = _build_row({"models": ()})
"""The row of a new step."""
