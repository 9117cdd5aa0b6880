"""The routes of the public API."""

import re
from functools import partial
from typing import Any, Protocol

import attrs
from aiohttp import web

from gateway import __version__
from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.errors import InvalidRequest
from gateway.formats.anthropic import models as anthropic_models
from gateway.formats.anthropic.request import parse_count_call, parse_messages_call
from gateway.formats.openai import models as openai_models
from gateway.formats.openai.chat import parse_chat_call
from gateway.formats.openai.completions import parse_completions_call
from gateway.formats.openai.embeddings import parse_embeddings_call
from gateway.formats.openai.images import parse_edits_call, parse_images_call
from gateway.formats.openai.moderations import parse_moderations_call
from gateway.formats.openai.responses import parse_responses_call
from gateway.formats.openai.speech import parse_speech_call
from gateway.formats.openai.transcriptions import parse_transcription_call, parse_translation_call
from gateway.formats.rerank import parse_rerank_call
from gateway.routing.model_catalog import build_etag
from gateway.server.client_ip import find_origin
from gateway.server.context import CALLER, ROOMS
from gateway.server.error_responses import VERSION_HEADER
from gateway.server.handlers.billing import get_subscription, get_usage
from gateway.server.handlers.inference import ReadCall, ReadForm, serve_call, serve_form
from gateway.server.handlers.videos import add_video_routes
from gateway.server.unserved_paths import add_unserved_routes

_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}\Z", re.ASCII)
_FEATURES = re.compile(r"[A-Za-z0-9._, -]{1,1024}\Z", re.ASCII)


class ReadMessages(Protocol):
    """Parses a body in the Anthropic API format."""

    def __call__(self, body: dict[str, Any], features: str | None = None) -> InferenceRequest:
        """Return the checked request. Raises ``InvalidRequest``."""
        ...


_JSON: tuple[tuple[str, Operation, ReadCall], ...] = (
    ("/chat/completions", "chat", parse_chat_call),
    ("/embeddings", "embeddings", parse_embeddings_call),
    ("/completions", "completions", parse_completions_call),
    ("/moderations", "moderations", parse_moderations_call),
    ("/rerank", "rerank", parse_rerank_call),
    ("/responses", "responses", parse_responses_call),
    ("/images/generations", "images", parse_images_call),
    ("/audio/speech", "speech", parse_speech_call),
)
_MESSAGES: tuple[tuple[str, Operation, ReadMessages], ...] = (
    ("/messages", "messages", parse_messages_call),
    ("/messages/count_tokens", "count_tokens", parse_count_call),
)
_FORMS: tuple[tuple[str, Operation, ReadForm], ...] = (
    ("/images/edits", "image_edits", parse_edits_call),
    ("/audio/transcriptions", "transcriptions", parse_transcription_call),
    ("/audio/translations", "translations", parse_translation_call),
)
"""Inference routes: the path below ``/v1``, the operation, and what parses the body."""


def add_api_routes(api: web.Application) -> None:
    """Register the routes of the public API; their paths are below ``/v1``."""
    for path, operation, parse_json in _JSON:
        api.router.add_post(path, partial(serve_call, operation=operation, read_call=parse_json))
    for path, operation, parse_messages in _MESSAGES:
        api.router.add_post(path, partial(serve_messages, operation=operation, read_call=parse_messages))
    for path, operation, parse_form in _FORMS:
        api.router.add_post(path, partial(serve_form, operation=operation, read_call=parse_form))
    add_video_routes(api)
    api.router.add_get("/models", get_models)
    api.router.add_get("/models/{model:.+}", get_model)
    api.router.add_get("/dashboard/billing/subscription", get_subscription)
    api.router.add_get("/dashboard/billing/usage", get_usage)
    add_unserved_routes(api)


async def serve_messages(request: web.Request, operation: Operation, read_call: ReadMessages) -> web.StreamResponse:
    """Serve a request in the Anthropic API format, whose headers are part of what is asked for."""
    return await serve_call(request, operation, partial(_parse_with_headers, request, read_call))


def _parse_with_headers(request: web.Request, read_call: ReadMessages, body: dict[str, Any]) -> InferenceRequest:
    """Parse a body with the two headers that belong to it; they are passed on with it."""
    features = ",".join(request.headers.getall("anthropic-beta", ()))
    if features and not _FEATURES.match(features):
        raise InvalidRequest("The header 'anthropic-beta' is not a list of features", param="anthropic-beta")
    version = request.headers.get(VERSION_HEADER)
    if version is not None and not _VERSION.match(version):
        raise InvalidRequest(f"The header '{VERSION_HEADER}' is not a date such as 2023-06-01", param=VERSION_HEADER)
    return attrs.evolve(read_call(body, features=features or None), version=version)


async def get_models(request: web.Request) -> web.Response:
    """``GET /v1/models``: the models that this key may use now, in the API format of the client."""
    models = request.app[ROOMS].router.list_models(request[CALLER])
    etag = build_etag(models)
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Vary": VERSION_HEADER}
    known = request.headers.get("If-None-Match", "")
    if known.strip() == "*" or etag in known:
        return web.Response(status=304, headers=headers)
    write = anthropic_models.build_models if VERSION_HEADER in request.headers else openai_models.build_models
    return web.Response(body=write(models), headers=headers, content_type="application/json")


async def get_model(request: web.Request) -> web.Response:
    """``GET /v1/models/{id}``: slashes in the id may be percent-encoded."""
    model = request.match_info["model"]
    if model != model.strip("/"):
        raise web.HTTPNotFound
    listed = request.app[ROOMS].router.get_model(request[CALLER], model)
    write = anthropic_models.build_model if VERSION_HEADER in request.headers else openai_models.build_model
    return web.Response(body=write(listed), content_type="application/json")


async def get_root(request: web.Request) -> web.Response:
    """``GET /``: the addresses of the gateway; a browser is redirected to the console."""
    if "text/html" in request.headers.get("Accept", ""):
        return web.Response(status=303, headers={"Location": "/console/", "Vary": "Accept"})
    address = find_origin(request)
    return web.json_response(
        {
            "name": "model-gateway",
            "version": __version__,
            "base_url": f"{address}/v1",
            "models": f"{address}/v1/models",
            "health": f"{address}/healthz",
            "console": f"{address}/console/",
            "docs": f"{address}/docs",
        },
    )
