"""The pages of routes: their list, and one with its steps and a dry run."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from gateway.domain.route import CAUSES, DEFAULT_CAUSES
from gateway.errors import NotFound
from gateway.server.console.page import Data, ask_admin_api

_TRAITS = ("images", "tools", "stream")
_OTHERS = ("balance", "shadow", "wait_s")
"""Fields of a step that the form keeps without showing them."""
_ASKED = ("key", "prompt_tokens", *_TRAITS)


async def load_routes(request: web.Request) -> Data:
    """Load all routes, each step as one line of text."""
    routes, models = await asyncio.gather(ask_admin_api(request, "/routes"), ask_admin_api(request, "/models"))
    shown = [(route, [_write_models(step) for step in route.step]) for route in routes]
    return {"routes": shown, **_list_choices(models)}


async def load_route(request: web.Request) -> Data:
    """Load a route with its steps as a form shows them, and the dry run of a request that the query describes."""
    name = request.match_info["name"]
    query = {field: request.query.get(field, "") for field in _ASKED}
    route, models, keys, found = await asyncio.gather(
        ask_admin_api(request, "/routes/{name}"),
        ask_admin_api(request, "/models"),
        ask_admin_api(request, "/keys"),
        ask_admin_api(request, "/explain", model=name, **query),
    )
    if found.steps is None:
        raise NotFound(f"There is no route {name[:120]!r}")
    steps = [_build_row(step) for step in route.step]
    return {"route": route, "steps": steps, "keys": keys, "found": found, "asked": query, **_list_choices(models)}


def _list_choices(models: Sequence[Any]) -> Data:
    names = sorted(model.id for model in models)
    return {"causes": CAUSES, "model_names": names, "traits": _TRAITS, "empty": _EMPTY}


def _build_row(step: Mapping[str, Any]) -> Data:
    condition = step.get("if", {})
    return {
        "models": _write_models(step),
        "channels": ", ".join(step.get("channels", ())),
        "on": step.get("on", DEFAULT_CAUSES),
        "condition": condition,
        "more": bool(condition) or "on" in step or "channels" in step,
        "others": orjson.dumps({name: step[name] for name in _OTHERS if name in step}).decode(),
    }


def _write_models(step: Mapping[str, Any]) -> str:
    return ", ".join(one if isinstance(one, str) else f"{one['model']}*{one['weight']}" for one in step["models"])


_EMPTY = _build_row({"models": ()})
"""The row of a new step."""
