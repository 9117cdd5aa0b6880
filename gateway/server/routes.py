"""The public paths, each with its door."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import attrs
from aiohttp import web

from gateway import __version__
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest
from gateway.formats.anthropic import models as anthropic_models
from gateway.formats.anthropic.request import parse_count_call, parse_messages_call
from gateway.formats.error_body import MESSAGES_PATH
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
from gateway.server.context import CALLER, ROOMS
from gateway.server.cors import CORS, CrossOrigin
from gateway.server.handlers.billing import get_subscription, get_usage
from gateway.server.handlers.inference import serve_call, serve_form
from gateway.server.handlers.videos import add_video_routes
from gateway.server.middlewares import VERSION_HEADER, find_origin
from gateway.server.unserved_paths import add_unserved_routes

_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}\Z", re.ASCII)
_FEATURES = re.compile(r"[A-Za-z0-9._, -]{1,1024}\Z", re.ASCII)


class ReadMessages(Protocol):
    """Reads a body in Anthropic's language."""

    def __call__(self, body: dict[str, Any], features: str | None = None) -> InferenceRequest:
        """The checked call. Raises ``InvalidRequest``."""
        ...


def add_routes(app: web.Application, cors_origins: Sequence[str] = ()) -> None:
    """The public API, and the page at the root for a newcomer's browser; pages of ``cors_origins`` may call it."""
    if cors_origins:
        app[CORS] = CrossOrigin(cors_origins)
    app.router.add_get("/", get_root)
    app.router.add_post("/v1/chat/completions", post_chat)
    app.router.add_post("/v1/embeddings", post_embeddings)
    app.router.add_post(MESSAGES_PATH, post_messages)
    app.router.add_post(f"{MESSAGES_PATH}/count_tokens", post_count_tokens)
    app.router.add_post("/v1/completions", post_completions)
    app.router.add_post("/v1/moderations", post_moderations)
    app.router.add_post("/v1/rerank", post_rerank)
    app.router.add_post("/v1/responses", post_responses)
    app.router.add_post("/v1/images/generations", post_images)
    app.router.add_post("/v1/images/edits", post_edits)
    app.router.add_post("/v1/audio/transcriptions", post_transcriptions)
    app.router.add_post("/v1/audio/translations", post_translations)
    app.router.add_post("/v1/audio/speech", post_speech)
    add_video_routes(app)
    app.router.add_get("/v1/models", get_models)
    app.router.add_get("/v1/models/{model:.+}", get_model)
    app.router.add_get("/v1/dashboard/billing/subscription", get_subscription)
    app.router.add_get("/v1/dashboard/billing/usage", get_usage)
    add_unserved_routes(app)


async def post_chat(request: web.Request) -> web.StreamResponse:
    """``POST /v1/chat/completions``."""
    return await serve_call(request, "chat", parse_chat_call)


async def post_embeddings(request: web.Request) -> web.StreamResponse:
    """``POST /v1/embeddings``."""
    return await serve_call(request, "embeddings", parse_embeddings_call)


async def post_messages(request: web.Request) -> web.StreamResponse:
    """``POST /v1/messages``, in Anthropic's language."""
    return await serve_call(request, "messages", partial(_read_with_headers, request, parse_messages_call))


async def post_count_tokens(request: web.Request) -> web.StreamResponse:
    """``POST /v1/messages/count_tokens``."""
    return await serve_call(request, "count_tokens", partial(_read_with_headers, request, parse_count_call))


def _read_with_headers(request: web.Request, read_call: ReadMessages, body: dict[str, Any]) -> InferenceRequest:
    """A call with the two headers that belong to a body in Anthropic's language, and go with it where it passes."""
    features = ",".join(request.headers.getall("anthropic-beta", ()))
    if features and not _FEATURES.match(features):
        raise InvalidRequest("The header 'anthropic-beta' is not a list of features", param="anthropic-beta")
    version = request.headers.get(VERSION_HEADER)
    if version is not None and not _VERSION.match(version):
        raise InvalidRequest(f"The header '{VERSION_HEADER}' is not a date such as 2023-06-01", param=VERSION_HEADER)
    return attrs.evolve(read_call(body, features=features or None), version=version)


async def post_completions(request: web.Request) -> web.StreamResponse:
    """``POST /v1/completions``, the convention's first language."""
    return await serve_call(request, "completions", parse_completions_call)


async def post_moderations(request: web.Request) -> web.StreamResponse:
    """``POST /v1/moderations``."""
    return await serve_call(request, "moderations", parse_moderations_call)


async def post_rerank(request: web.Request) -> web.StreamResponse:
    """``POST /v1/rerank``."""
    return await serve_call(request, "rerank", parse_rerank_call)


async def post_responses(request: web.Request) -> web.StreamResponse:
    """``POST /v1/responses``."""
    return await serve_call(request, "responses", parse_responses_call)


async def post_images(request: web.Request) -> web.StreamResponse:
    """``POST /v1/images/generations``."""
    return await serve_call(request, "images", parse_images_call)


async def post_edits(request: web.Request) -> web.StreamResponse:
    """``POST /v1/images/edits``: a form."""
    return await serve_form(request, "image_edits", parse_edits_call)


async def post_transcriptions(request: web.Request) -> web.StreamResponse:
    """``POST /v1/audio/transcriptions``: a form."""
    return await serve_form(request, "transcriptions", parse_transcription_call)


async def post_translations(request: web.Request) -> web.StreamResponse:
    """``POST /v1/audio/translations``: a form."""
    return await serve_form(request, "translations", parse_translation_call)


async def post_speech(request: web.Request) -> web.StreamResponse:
    """``POST /v1/audio/speech``: its answer is sound, as it comes."""
    return await serve_call(request, "speech", parse_speech_call)


async def get_models(request: web.Request) -> web.Response:
    """``GET /v1/models``: what this key may use now; for a client library of Anthropic's in its language."""
    models = request.app[ROOMS].router.list_models(request[CALLER])
    etag = build_etag(models)
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Vary": VERSION_HEADER}
    known = request.headers.get("If-None-Match", "")
    if known.strip() == "*" or etag in known:
        return web.Response(status=304, headers=headers)
    write = anthropic_models.build_models if VERSION_HEADER in request.headers else openai_models.build_models
    return web.Response(body=write(models), headers=headers, content_type="application/json")


async def get_model(request: web.Request) -> web.Response:
    """``GET /v1/models/{id}``: slashes in the id may come as they are or percent-encoded."""
    model = request.match_info["model"]
    if model != model.strip("/"):
        raise web.HTTPNotFound
    listed = request.app[ROOMS].router.get_model(request[CALLER], model)
    write = anthropic_models.build_model if VERSION_HEADER in request.headers else openai_models.build_model
    return web.Response(body=write(listed), content_type="application/json")


async def get_root(request: web.Request) -> web.Response:
    """``GET /``: what this is and where to go; a browser goes there at once."""
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
