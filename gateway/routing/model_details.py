"""Asks model servers for what their lists of models leave out, in their own APIs.

- Ollama, ``POST /api/show`` for each model (github.com/ollama/ollama, docs/api.md; ``types/model/capability.go``):
  ``capabilities``, the model's own context length, and ``num_ctx`` of its Modelfile, which takes precedence
- the server of lmstudio.ai, ``GET /api/v0/models`` (lmstudio.ai/docs/developer/rest/endpoints): type and context length
- llama.cpp, ``GET /props`` (github.com/ggml-org/llama.cpp, tools/server/README.md): the context of a slot, and the
  modalities. Asked only of a server with a single model: with several, the question would load a model.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import attrs
import orjson

from gateway.domain.channel import Channel
from gateway.domain.http_request import HttpRequest
from gateway.domain.model_description import UNDESCRIBED, ModelDescription, sort_features, sort_modalities
from gateway.domain.model_info import ModelInfo
from gateway.errors import ProviderError
from gateway.formats.model_lists.listed_description import parse_description, parse_tokens
from gateway.providers.registry import PROVIDERS
from gateway.upstream.interface import HttpClient

MAX_MODELS = 200
"""Maximum number of models that are asked for one by one; of further models, only the name is known."""
_MAX_CONCURRENT = 4
_MAX_BYTES = 4 * 1024 * 1024
_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)

Ask = Callable[[str, bytes | None], Coroutine[Any, Any, Mapping[str, Any]]]
"""Asks for a path below the server's root, with a body for a POST. Returns the answer's object; empty without one."""


async def add_details(
    upstream: HttpClient, channel: Channel, key: str, models: Sequence[ModelInfo], *, timeout_s: float
) -> Sequence[ModelInfo]:
    """Return the models of a channel with what its server says of them.

    What the server does not answer is left out; all of it if the questions take longer than ``timeout_s``.
    """
    find = _DETAIL_FINDERS.get(channel.provider)
    if find is None:
        return models

    async def ask(path: str, body: bytes | None = None) -> Mapping[str, Any]:
        return await _ask(upstream, _build_request(channel, key, path, body))

    try:
        async with asyncio.timeout(timeout_s):
            descriptions = await find(ask, models)
    except TimeoutError:
        return models
    return [_add(model, descriptions.get(model.id)) for model in models]


def _add(model: ModelInfo, description: ModelDescription | None) -> ModelInfo:
    if description is None or description == UNDESCRIBED:
        return model
    return attrs.evolve(model, description=description.fill_from(model.description or UNDESCRIBED))


def _build_request(channel: Channel, key: str, path: str, body: bytes | None) -> HttpRequest:
    request = PROVIDERS[channel.provider].build_models_request(channel, key)
    url = channel.base_url.removesuffix("/v1") + path
    if body is None:
        return attrs.evolve(request, url=url)
    headers = request.headers | {"Content-Type": "application/json"}
    return attrs.evolve(request, method="POST", url=url, body=body, headers=headers)


async def _ask(upstream: HttpClient, request: HttpRequest) -> Mapping[str, Any]:
    try:
        response = await upstream.send(request)
        try:
            raw = await response.read(_MAX_BYTES)
        finally:
            response.close()
        value = orjson.loads(raw) if response.status == 200 else None  # noqa: PLR2004
    except (ProviderError, orjson.JSONDecodeError):
        return {}
    return value if isinstance(value, Mapping) else {}


async def _find_in_show(ask: Ask, models: Sequence[ModelInfo]) -> Mapping[str, ModelDescription]:
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def show(model: str) -> ModelDescription:
        async with slots:
            return parse_show_answer(await ask("/api/show", orjson.dumps({"model": model})))

    names = [model.id for model in models[:MAX_MODELS]]
    return dict(zip(names, await asyncio.gather(*map(show, names)), strict=True))


def parse_show_answer(answer: Mapping[str, Any]) -> ModelDescription:
    """Return what Ollama's ``/api/show`` says of a model."""
    facts = answer.get("model_info")
    architecture = facts.get("general.architecture") if isinstance(facts, Mapping) else None
    own_window = parse_tokens(facts.get(f"{architecture}.context_length")) if isinstance(facts, Mapping) else None
    parameters = answer.get("parameters")
    set_window = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    window = (parse_tokens(int(set_window[1])) if set_window else None) or own_window
    capabilities = answer.get("capabilities")
    if not isinstance(capabilities, list):
        return ModelDescription(context_window=window)
    if "completion" not in capabilities:
        return ModelDescription("embedding" if "embedding" in capabilities else None, window)
    # Ollama's own "format" holds every model to a schema (docs/api.md, "Structured outputs").
    features = {"tools": "tools" in capabilities, "structured_output": True, "reasoning": "thinking" in capabilities}
    return ModelDescription(
        "chat",
        window,
        None,
        sort_modalities(["text", *(["image"] if "vision" in capabilities else [])]),
        ("text",),
        sort_features(name for name, has_feature in features.items() if has_feature),
    )


async def _find_in_own_list(ask: Ask, _models: Sequence[ModelInfo]) -> Mapping[str, ModelDescription]:
    items = (await ask("/api/v0/models", None)).get("data")
    description_by_id = {
        item["id"]: parse_description(item)
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict) and isinstance(item.get("id"), str)
    }
    return {name: description for name, description in description_by_id.items() if description is not None}


async def _find_in_props(ask: Ask, models: Sequence[ModelInfo]) -> Mapping[str, ModelDescription]:
    if len(models) != 1:
        return {}
    return {models[0].id: parse_props(await ask("/props", None))}


def parse_props(answer: Mapping[str, Any]) -> ModelDescription:
    """Return what llama.cpp's ``/props`` says of the server's model."""
    settings, reported_modalities = answer.get("default_generation_settings"), answer.get("modalities")
    window = parse_tokens(settings.get("n_ctx")) if isinstance(settings, Mapping) else None
    if not isinstance(reported_modalities, Mapping):
        return ModelDescription(context_window=window)
    names = {
        "text": True,
        "image": reported_modalities.get("vision") is True,
        "audio": reported_modalities.get("audio") is True,
    }
    return ModelDescription(
        None, window, None, sort_modalities(name for name, has_modality in names.items() if has_modality)
    )


_DETAIL_FINDERS: Mapping[
    str, Callable[[Ask, Sequence[ModelInfo]], Coroutine[Any, Any, Mapping[str, ModelDescription]]]
] = {"ollama": _find_in_show, "lm_studio": _find_in_own_list, "llama_cpp": _find_in_props}
"""The functions that ask a server for details, by provider."""
