"""The pages of models: their list, and one with what the model is, how to call it, and a dry run."""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from gateway.domain.model_description import FEATURES, KINDS, MODALITIES, ModelKind
from gateway.domain.operation import OPERATIONS, Operation
from gateway.errors import NotFound
from gateway.server.admin.audit_log import AuditView
from gateway.server.admin.channel_view import ChannelView
from gateway.server.admin.handler import AdminRequest
from gateway.server.admin.model_routes import RouteAnswer
from gateway.server.admin.models import ModelView, describe_models
from gateway.server.admin.settings import ListedPrice, PriceAnswer
from gateway.server.console.connect import find_address
from gateway.server.console.dry_run import DryRun, ask_dry_run
from gateway.server.console.lists import load_list
from gateway.server.console.model_usage import list_served_channels, load_usage
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.usage_charts import load_charts
from gateway.server.context import ACTOR

_OPERATIONS: Mapping[ModelKind, Operation] = {
    "completion": "completions",
    "embedding": "embeddings",
    "rerank": "rerank",
    "moderation": "moderations",
    "image": "images",
    "video": "videos",
    "speech": "speech",
    "transcription": "transcriptions",
    "realtime": "realtime",
}
"""The operation of each kind of model; for other kinds it is ``chat``."""
_MAX_CHANGES = 200
"""How many of the newest price changes in the audit log are searched for the last change of a price."""
SAMPLES: Mapping[Operation, Mapping[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Hello"}]},
    "messages": {"max_tokens": 256, "messages": [{"role": "user", "content": "Hello"}]},
    "responses": {"input": "Hello"},
    "generate_content": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
    "completions": {"prompt": "Once upon a time"},
    "embeddings": {"input": "Hello"},
    "rerank": {"query": "weather", "documents": ["It rains.", "Two and two are four."]},
    "moderations": {"input": "Hello"},
    "images": {"prompt": "A lighthouse at night"},
    "videos": {"prompt": "A lighthouse at night"},
    "speech": {"input": "Hello", "voice": "alloy", "response_format": "wav"},
}
"""Small JSON bodies of requests, by operation. The model is not in them."""


async def load_models(request: web.Request) -> Data:
    """Load a page of the models and routes that the filters leave."""
    models = await load_list(request, "/models", ("price", "kind", "modality", "feature", "context"))
    return {"list": models, "kinds": KINDS, "modalities": MODALITIES, "features": FEATURES}


async def load_model(request: web.Request) -> Data:
    """Load a model or a route by the name that clients use. Only administrators see channels, routes and a dry run.

    A model that nothing serves any more has a page while it has requests in the period. Raises ``NotFound``.
    """
    name = request.match_info["name"]
    model = describe_models(AdminRequest(request, {}), {name}).get(name)
    operation = _OPERATIONS.get(model.kind, "chat") if model is not None and model.kind is not None else "chat"
    details: Data = {"route": None, "dry_run": None, "price_origin": None, "leading_routes": (), "aliases": ()}
    is_operator = request[ACTOR].scope is None
    if is_operator:
        details = await _load_routing(request, name, model, operation)
    charts = await load_charts(request, model=name)
    usage = await load_usage(request, name, charts)
    if model is None and details["route"] is None and not usage["total"].requests:
        raise NotFound(f"There is no model {name[:120]!r}")
    return {
        "name": name,
        "model": model,
        "models": describe_models(AdminRequest(request, {}), _list_models(details["route"])),
        "curl": write_curl(find_address(request), operation, name),
        "charts": charts,
        **details,
        **usage,
        "serving": list_served_channels(
            details["channels"], () if model is None else model.channels, usage, details["dry_run"].explanation
        )
        if is_operator
        else (),
    }


async def _load_routing(request: web.Request, name: str, model: ModelView | None, operation: Operation) -> Data:
    """Load the routes and aliases that lead to the model, its channels, a dry run, and the origin of its price.

    ``route`` is the route with the name ``name``, or None.
    """
    channels: Sequence[ChannelView]
    routes: Sequence[RouteAnswer]
    price_origin: Data | None
    dry_run: DryRun
    channels, routes, dry_run, price_origin = await asyncio.gather(
        ask_admin_api(request, "/channels", model=name),
        ask_admin_api(request, "/routes"),
        ask_dry_run(request, name, operation),
        _find_price_origin(request, None if model is None else model.price),
    )
    return {
        "route": next((route for route in routes if route.name == name and not route.overridden), None),
        "channels": {channel.name: channel for channel in channels},
        "dry_run": dry_run,
        "price_origin": price_origin,
        "leading_routes": [
            (route, numbers) for route in routes if not route.overridden and (numbers := _find_steps(route, name))
        ],
        "aliases": [
            (alias, channel.name)
            for channel in channels
            for alias, provider_name in channel.model_map.items()
            if provider_name == name and alias != name
        ],
    }


def _list_models(route: RouteAnswer | None) -> set[str]:
    shares = [share for step in (() if route is None else route.step) for share in step["models"]]
    return {share if isinstance(share, str) else share["model"] for share in shares}


def _find_steps(route: RouteAnswer, model: str) -> list[int]:
    return [
        number
        for number, step in enumerate(route.step, 1)
        if any(model == (share if isinstance(share, str) else share["model"]) for share in step["models"])
    ]


async def _find_price_origin(request: web.Request, price: PriceAnswer | None) -> Data | None:
    """Return the source of a model's price, the name or pattern that it is set for, and when it was set.

    None without a price. ``since`` is None unless the price was set in the console or by a command, and the audit log
    still says when.
    """
    if price is None:
        return None
    source = "shipped"
    for configured_source in ("console", "file"):  # the file's precedes the console's
        prices: Sequence[ListedPrice] = await ask_admin_api(request, "/prices", source=configured_source)
        if any(listed.in_force and _name_price(listed) == _name_price(price) for listed in prices):
            source = configured_source
    since = None
    if source == "console":
        changes: Sequence[AuditView] = await ask_admin_api(
            request, "/audit-trail", action="price.changed", limit=_MAX_CHANGES
        )
        subject = price.model if price.provider is None else f"{price.model} at {price.provider}"
        since = next((change.at for change in changes if change.subject == subject), None)
    return {"source": source, "model": price.model, "since": since}


def _name_price(price: PriceAnswer) -> tuple[str, str | None]:
    return price.model, price.provider


def write_curl(origin: str, operation: Operation, model: str) -> str:
    """Write a shell command that sends a small request to ``model``; empty if curl cannot send one."""
    url, key = f"{origin}{OPERATIONS[operation].path}", '-H "Authorization: Bearer $GATEWAY_KEY"'
    if operation == "transcriptions":
        return f"curl {url} \\\n  {key} \\\n  -F file=@speech.wav \\\n  --form-string {shlex.quote(f'model={model}')}"
    if operation not in SAMPLES:
        return ""
    body = {"model": model, **SAMPLES[operation], **({"stream": True} if operation == "chat" else {})}
    flags = {"chat": "-N ", "speech": "-o speech.wav "}.get(operation, "")
    json_type = '-H "Content-Type: application/json"'
    return f"curl {flags}{url} \\\n  {key} \\\n  {json_type} \\\n  -d {shlex.quote(orjson.dumps(body).decode())}"
