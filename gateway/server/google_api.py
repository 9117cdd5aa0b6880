"""Google's Gemini API for clients, below ``/v1beta`` and ``/v1``, in front of the models of any provider."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.deferred import defer_function
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.model_info import ModelInfo
from gateway.domain.operation import Operation
from gateway.formats.model_lists import gemini as gemini_models
from gateway.server.array_response import ArrayStreamResponse
from gateway.server.context import CALLER, SERVICES
from gateway.server.handlers.inference import forward_inference
from gateway.server.middlewares import parse_request, quota, replay_response, settle_request, with_middlewares
from gateway.server.unserved_paths import MODEL_PATH, refuse_unserved

_MODEL_ROUTE = "/models/{model:.+}"
_UNSERVED_PATHS = (
    "/tunedModels{rest:.*}", "/files{rest:.*}", "/cachedContents{rest:.*}",
    "/operations{rest:.*}", "/batches{rest:.*}", "/fileSearchStores{rest:.*}", "/corpora{rest:.*}",
    "/interactions{rest:.*}", "/dynamic{rest:.*}", "/authTokens{rest:.*}", "/auth_tokens{rest:.*}",
)  # fmt: skip
"""Paths of Google's API that the gateway does not serve."""
_METHODS_BY_OPERATION: tuple[tuple[Operation, tuple[str, ...]], ...] = (
    ("generate_content", ("generateContent", "countTokens")),
    ("embed_contents", ("embedContent", "batchEmbedContents")),
)
"""The method names in model lists for each operation, as in Google's list."""


class ParseNamed(Protocol):
    """Parses a body for the model in the path."""

    def __call__(self, body: dict[str, Any], *, model: str) -> InferenceRequest: ...


_parse_generate = defer_function("formats.chat.gemini.request:parse_generate_inference")
_METHODS: tuple[tuple[str, Operation, ParseNamed], ...] = (
    ("generateContent", "generate_content", defer_function("formats.chat.gemini.request:parse_generate_inference")),
    (
        "streamGenerateContent",
        "generate_content",
        partial(defer_function("formats.chat.gemini.request:parse_generate_inference"), stream=True),
    ),
    ("countTokens", "count_content_tokens", defer_function("formats.chat.gemini.token_counts:parse_count_inference")),
    ("embedContent", "embed_contents", defer_function("formats.embeddings.gemini_clients:parse_embed_inference")),
    (
        "batchEmbedContents",
        "embed_contents",
        defer_function("formats.embeddings.gemini_clients:parse_batch_embed_inference"),
    ),
)


_METHOD_PATH = re.compile(r"/v1(?:beta)?/models/(?P<model>.+):(?P<method>[A-Za-z]+)")


def parse_method_path(path: str) -> tuple[str, Operation, ParseNamed] | None:
    """Return model, operation and parser of a path such as ``/v1beta/models/m:generateContent``; None for others."""
    match = _METHOD_PATH.fullmatch(path)
    if match is None:
        return None
    methods = [(operation, parse) for method, operation, parse in _METHODS if method == match["method"]]
    return (match["model"], *methods[0]) if methods else None


def add_google_routes(api: web.Application) -> None:
    """Register the routes of Google's API; their paths are below ``/v1beta``."""
    add_method_routes(api)
    api.router.add_get("/models", get_google_models)
    api.router.add_get(MODEL_PATH, get_google_model)
    for path in _UNSERVED_PATHS:
        api.router.add_route("*", path, refuse_unserved)


def add_method_routes(api: web.Application) -> None:
    """Register the methods of models, also below ``/v1``: no other API has ``POST`` routes below the models."""
    for method, operation, parse in _METHODS:
        settling_middleware = partial(settle_request, operation=operation)
        parsing_middleware = partial(parse_named_request, parse=parse)
        handler = with_middlewares(forward_content, [settling_middleware, parsing_middleware, replay_response, quota])
        api.router.add_post(f"{_MODEL_ROUTE}:{method}", handler)
    api.router.add_post(f"{_MODEL_ROUTE}:{{method:.+}}", refuse_unserved)


async def parse_named_request(request: web.Request, handler: Handler, parse: ParseNamed) -> web.StreamResponse:
    """Parse a body for the model in the path; return the answer of ``handler``."""
    return await parse_request(request, handler, partial(parse, model=request.match_info["model"]))


async def forward_content(request: web.Request) -> web.StreamResponse:
    """Forward a request. Without ``alt=sse``, the stream is sent as one JSON array."""
    query = request.query
    if "sse" in (query.get("alt"), query.get("$alt")):
        return await forward_inference(request)
    return await forward_inference(request, ArrayStreamResponse)


async def get_google_models(request: web.Request) -> web.Response:
    """``GET /v1beta/models``: the models that this key may use now, paginated and sorted by id."""
    query = request.query
    size = gemini_models.parse_page_size(query.get("pageSize"))
    after_id = gemini_models.parse_page_token(query.get("pageToken", ""))
    remaining_models = [model for model in _list_models(request) if model.id > after_id]
    page = remaining_models[:size]
    models = await _build_models(request, page)
    body = gemini_models.build_page(models, page[-1].id if len(remaining_models) > size else None)
    return web.Response(body=body, content_type="application/json")


def _list_models(request: web.Request) -> list[ModelInfo]:
    models = request.app[SERVICES].routing.router.list_models(request[CALLER])
    return sorted(models, key=lambda model: model.id)


async def _build_models(request: web.Request, models: Sequence[ModelInfo]) -> list[dict[str, Any]]:
    described_models = await request.app[SERVICES].routing.router.describe_models(request[CALLER], models)
    return [
        gemini_models.build_model(model.listed, model.description, _list_supported_methods(request, model.listed))
        for model in described_models
    ]


def _list_supported_methods(request: web.Request, model: ModelInfo) -> list[str]:
    router, caller = request.app[SERVICES].routing.router, request[CALLER]
    return [
        method
        for operation, methods in _METHODS_BY_OPERATION
        if router.list_options(caller, model.id, operation)
        for method in methods
    ]


async def get_google_model(request: web.Request) -> web.Response:
    """``GET /v1beta/models/{model}``: a model that this key may use. Raises ``ModelNotFound``."""
    model = request.app[SERVICES].routing.router.get_model(request[CALLER], request.match_info["model"])
    body = orjson.dumps((await _build_models(request, [model]))[0])
    return web.Response(body=body, content_type="application/json")
