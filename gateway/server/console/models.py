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
from gateway.server.admin.models import ModelView
from gateway.server.console.connect import find_address
from gateway.server.console.dry_run import ask_dry_run
from gateway.server.console.lists import load_list
from gateway.server.console.page import Data, ask_admin_api
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
"""The operation of each kind of model; of any other kind it is a chat."""
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
"""A small request of each operation that takes JSON."""


async def load_models(request: web.Request) -> Data:
    """Load a page of the models and routes that the filters leave."""
    models = await load_list(request, "/models", ("price", "kind", "modality", "feature", "context"))
    return {"list": models, "kinds": KINDS, "modalities": MODALITIES, "features": FEATURES}


async def load_model(request: web.Request) -> Data:
    """Load a model or a route by the name that clients use. Only administrators see channels, routes and a dry run."""
    name = request.match_info["name"]
    models: Sequence[ModelView] = await ask_admin_api(request, "/models")
    model = next((model for model in models if model.id == name), None)
    operation = _OPERATIONS.get(model.kind, "chat") if model is not None and model.kind is not None else "chat"
    details: Data = {"route": None, "serving": (), "dry_run": None}
    if request[ACTOR].scope is None:
        details = await _load_routing(request, name, () if model is None else model.channels, operation)
    if model is None and details["route"] is None:
        raise NotFound(f"There is no model {name[:120]!r}")
    return {
        "name": name,
        "model": model,
        "models": {model.id: model for model in models},
        "curl": write_curl(find_address(request), operation, name),
        **details,
    }


async def _load_routing(request: web.Request, name: str, serving: Sequence[str], operation: Operation) -> Data:
    channels, routes, dry_run = await asyncio.gather(
        ask_admin_api(request, "/channels"), ask_admin_api(request, "/routes"), ask_dry_run(request, name, operation)
    )
    channels_by_name = {channel.name: channel for channel in channels}
    return {
        "route": next((route for route in routes if route.name == name and not route.overridden), None),
        "serving": [channels_by_name[channel] for channel in serving if channel in channels_by_name],
        "dry_run": dry_run,
    }


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
