"""The routes of the public API."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import attrs
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway import __version__
from gateway.deferred import defer_function, defer_handler
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import Operation
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.openai.completions import parse_completions_inference
from gateway.formats.embeddings.openai import parse_embeddings_inference
from gateway.formats.model_lists import anthropic as anthropic_models
from gateway.formats.model_lists import openai as openai_models
from gateway.formats.wire.form import ReceivedForm
from gateway.server.anthropic_headers import BETA_HEADER, parse_anthropic_headers
from gateway.server.client_ip import find_public_url
from gateway.server.context import CALLER, SERVICES
from gateway.server.error_responses import GOOGLE_KEY_HEADER, VERSION_HEADER, is_google_request
from gateway.server.google_api import add_method_routes, get_google_model, get_google_models
from gateway.server.handlers.inference import forward_inference
from gateway.server.middlewares import (
    parse_form,
    parse_request,
    quota,
    replay_response,
    settle_request,
    with_middlewares,
)
from gateway.server.subscriber_limit import SUBSCRIBER_LIMIT, SubscriberLimit
from gateway.server.unserved_paths import MODEL_PATH, add_unserved_routes


class ParseMessages(Protocol):
    """Parses a body in the Anthropic API format. ``features`` is the value of ``anthropic-beta``."""

    def __call__(self, body: dict[str, Any], features: str | None = None) -> InferenceRequest: ...


ParseJson = Callable[[dict[str, Any]], InferenceRequest]
ParseForm = Callable[[ReceivedForm], InferenceRequest]

_build_list_tag = defer_function("routing.model_describer:build_list_tag")
_forward_response = defer_handler("server.background_responses:forward_response")
_JSON_ROUTES: tuple[tuple[str, Operation, ParseJson], ...] = (
    ("/embeddings", "embeddings", parse_embeddings_inference),
    ("/completions", "completions", parse_completions_inference),
    ("/moderations", "moderations", defer_function("formats.moderations:parse_moderations_inference")),
    ("/rerank", "rerank", defer_function("formats.rerank:parse_rerank_inference")),
    ("/responses", "responses", defer_function("formats.chat.responses.responses:parse_responses_inference")),
    ("/responses/compact", "responses", defer_function("formats.chat.responses.compact_call:parse_compact_inference")),
    ("/audio/speech", "speech", defer_function("formats.audio.speech:parse_speech_inference")),
)
_REPLAYED_ROUTES: tuple[tuple[str, Operation, ParseJson], ...] = (
    ("/chat/completions", "chat", parse_chat_inference),
    ("/images/generations", "images", defer_function("formats.images.openai:parse_images_inference")),
)
_MESSAGE_ROUTES: tuple[tuple[str, Operation, ParseMessages], ...] = (
    ("/messages", "messages", defer_function("formats.chat.anthropic.request:parse_messages_inference")),
    ("/messages/count_tokens", "count_tokens", defer_function("formats.chat.anthropic.request:parse_count_inference")),
)
_FORM_ROUTES: tuple[tuple[str, Operation, ParseForm], ...] = (
    ("/images/edits", "image_edits", defer_function("formats.images.openai:parse_edits_inference")),
    (
        "/audio/transcriptions",
        "transcriptions",
        defer_function("formats.audio.transcriptions:parse_transcription_inference"),
    ),
    ("/audio/translations", "translations", defer_function("formats.audio.transcriptions:parse_translation_inference")),
)
"""Inference routes: the path below ``/v1``, the operation, and the parser of the body."""
_VIDEO, _FILE, _UPLOAD, _BATCH, _MESSAGE_BATCH, _STREAM = (
    f"{path}/{{id:[^/]+}}" for path in ("/videos", "/files", "/uploads", "/batches", "/messages/batches", "/streams")
)
"""``{id}`` matches any text without a slash: an invalid id is answered with 404 by the handler."""
_RESPONSE = "/responses/{id:(?!compact$|input_tokens$)[^/]+}"
_DEFERRED_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("POST", "/videos", "server.handlers.video_create:POST_VIDEOS"),
    ("GET", "/videos", "server.handlers.videos:get_videos"),
    ("GET", _VIDEO, "server.handlers.videos:get_video"),
    ("DELETE", _VIDEO, "server.handlers.videos:delete_video"),
    ("GET", f"{_VIDEO}/content", "server.handlers.videos:get_content"),
    ("GET", f"{_VIDEO}/events", "server.handlers.video_events:get_events"),
    ("POST", f"{_VIDEO}/remix", "server.handlers.video_create:POST_REMIX"),
    ("POST", "/video/generations", "server.handlers.video_create:POST_VIDEOS"),
    ("GET", "/video/generations/{id:[^/]+}", "server.handlers.videos:get_video"),
    ("POST", "/files", "server.handlers.client_files:POST_FILE"),
    ("GET", "/files", "server.handlers.client_files:GET_FILES"),
    ("GET", _FILE, "server.handlers.client_files:GET_FILE"),
    ("DELETE", _FILE, "server.handlers.client_files:DELETE_FILE"),
    ("GET", f"{_FILE}/content", "server.handlers.client_files:GET_CONTENT"),
    ("POST", "/uploads", "server.handlers.client_files:post_upload"),
    ("POST", f"{_UPLOAD}/parts", "server.handlers.client_files:post_part"),
    ("POST", f"{_UPLOAD}/complete", "server.handlers.client_files:complete_upload"),
    ("POST", f"{_UPLOAD}/cancel", "server.handlers.client_files:cancel_upload"),
    ("POST", "/batches", "server.handlers.batches:post_batch"),
    ("GET", "/batches", "server.handlers.batches:get_batches"),
    ("GET", _BATCH, "server.handlers.batches:get_batch"),
    ("POST", f"{_BATCH}/cancel", "server.handlers.batches:cancel_batch"),
    ("POST", "/messages/batches", "server.handlers.message_batches:post_message_batch"),
    ("GET", "/messages/batches", "server.handlers.message_batches:get_message_batches"),
    ("GET", _MESSAGE_BATCH, "server.handlers.message_batches:get_message_batch"),
    ("DELETE", _MESSAGE_BATCH, "server.handlers.message_batches:delete_message_batch"),
    ("GET", f"{_MESSAGE_BATCH}/results", "server.handlers.message_batches:get_results"),
    ("POST", f"{_MESSAGE_BATCH}/cancel", "server.handlers.message_batches:cancel_message_batch"),
    ("GET", _RESPONSE, "server.handlers.responses:get_response"),
    ("GET", f"{_RESPONSE}/input_items", "server.handlers.responses:get_input_items"),
    ("DELETE", _RESPONSE, "server.handlers.responses:delete_response"),
    ("POST", f"{_RESPONSE}/cancel", "server.handlers.responses:cancel_response"),
    ("GET", "/realtime", "server.handlers.realtime:serve_session"),
    ("GET", _STREAM, "server.handlers.streams:get_stream"),
    ("DELETE", _STREAM, "server.handlers.streams:delete_stream"),
    ("POST", f"{_STREAM}/token", "server.handlers.streams:post_token"),
    ("GET", "/key", "server.handlers.own_key:get_key"),
    ("GET", "/key/usage", "server.handlers.own_key:get_usage"),
    ("POST", "/quote", "server.handlers.quotes:post_quote"),
    ("GET", "/dashboard/billing/subscription", "server.handlers.billing:get_subscription"),
    ("GET", "/dashboard/billing/usage", "server.handlers.billing:get_usage"),
)
"""Method, path and handler of routes whose modules are imported at the first request."""
_NON_HEAD_PATHS = frozenset(
    {
        "server.handlers.video_events:get_events",
        "server.handlers.streams:get_stream",
        "server.handlers.realtime:serve_session",
        "server.handlers.client_files:GET_FILES",
        "server.handlers.client_files:GET_FILE",
        "server.handlers.client_files:GET_CONTENT",
    }
)
"""Handlers of ``GET`` that do not support ``HEAD``."""


def list_parsers() -> Iterator[tuple[str, Operation, Middleware]]:
    """Yield the inference routes of ``forward_inference``: path, operation, and the middleware that parses the body."""
    for path, operation, parse in (*_JSON_ROUTES, *_REPLAYED_ROUTES):
        yield path, operation, partial(parse_request, parse=parse)
    for path, operation, parse_body in _MESSAGE_ROUTES:
        yield path, operation, partial(parse_messages_request, parse=parse_body)
    for path, operation, parse_fields in _FORM_ROUTES:
        yield path, operation, partial(parse_form, parse=parse_fields)


def list_inference_routes() -> Iterator[tuple[str, Handler]]:
    """Yield the path of each route of ``list_parsers``, and its handler wrapped in all middlewares of the route."""
    replayed_paths = {path for path, *_ in (*_REPLAYED_ROUTES, *_FORM_ROUTES)}
    for path, operation, parsing_middleware in list_parsers():
        replay = [replay_response] if path in replayed_paths else []
        handler = _forward_response if path == "/responses" else forward_inference
        yield (
            path,
            with_middlewares(handler, [_make_settling_middleware(operation), parsing_middleware, *replay, quota]),
        )


def _make_settling_middleware(operation: Operation) -> Middleware:
    return partial(settle_request, operation=operation)


def add_api_routes(api: web.Application) -> None:
    """Register the routes of the public API; their paths are below ``/v1``."""
    for path, handler in list_inference_routes():
        api.router.add_post(path, handler)
    api[SUBSCRIBER_LIMIT] = SubscriberLimit()
    for method, path, import_path in _DEFERRED_ROUTES:
        if method == "GET":
            api.router.add_get(path, defer_handler(import_path), allow_head=import_path not in _NON_HEAD_PATHS)
        else:
            api.router.add_route(method, path, defer_handler(import_path))
    for path, flat in (("/realtime/client_secrets", False), ("/realtime/sessions", True)):  # the latter for the beta
        create_secret = defer_handler("server.handlers.realtime_secrets:create_secret")
        api.router.add_post(path, partial(create_secret, flat=flat))
    add_method_routes(api)
    api.router.add_get("/models", get_models)
    api.router.add_get(MODEL_PATH, get_model)
    add_unserved_routes(api)


async def parse_messages_request(request: web.Request, handler: Handler, parse: ParseMessages) -> web.StreamResponse:
    """Parse a body in the Anthropic API format together with its version and beta headers, which are forwarded."""
    return await parse_request(request, handler, partial(_parse_with_headers, request, parse))


def _parse_with_headers(request: web.Request, parse: ParseMessages, body: dict[str, Any]) -> InferenceRequest:
    headers = parse_anthropic_headers(request.headers)
    return attrs.evolve(parse(body, features=headers.get(BETA_HEADER)), version=headers.get(VERSION_HEADER))


async def get_models(request: web.Request) -> web.Response:
    """``GET /v1/models``: the models that this key may use now, in the API format of the client."""
    if is_google_request(request):
        return await get_google_models(request)
    router, caller = request.app[SERVICES].routing.router, request[CALLER]
    models = await router.describe_models(caller, router.list_models(caller))
    etag: str = _build_list_tag(models)
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Vary": f"{VERSION_HEADER}, {GOOGLE_KEY_HEADER}"}
    entity_tags = request.headers.get("If-None-Match", "")
    if entity_tags.strip() == "*" or etag in entity_tags:
        return web.Response(status=304, headers=headers)
    if VERSION_HEADER in request.headers:
        body = anthropic_models.build_models([(model.listed, model.description) for model in models])
    else:
        body = openai_models.build_models([model.body for model in models])
    return web.Response(body=body, headers=headers, content_type="application/json")


async def get_model(request: web.Request) -> web.Response:
    """``GET /v1/models/{id}``: a model that this key may use. Slashes in the id may be percent-encoded.

    Raises ``ModelNotFound``, and ``HTTPNotFound`` for an id that begins or ends with a slash.
    """
    if is_google_request(request):
        return await get_google_model(request)
    model = request.match_info["model"]
    if model != model.strip("/"):
        raise web.HTTPNotFound
    router, caller = request.app[SERVICES].routing.router, request[CALLER]
    (described_model,) = await router.describe_models(caller, [router.get_model(caller, model)])
    if VERSION_HEADER in request.headers:
        body = anthropic_models.build_model(described_model.listed, described_model.description)
    else:
        body = described_model.body
    return web.Response(body=body, content_type="application/json")


async def get_root(request: web.Request) -> web.Response:
    """``GET /``: the gateway's addresses. Browsers are redirected to the console."""
    if "text/html" in request.headers.get("Accept", ""):
        console = f"{request.app[SERVICES].http.path_prefix}/console/"
        return web.Response(status=303, headers={"Location": console, "Vary": "Accept"})
    address = find_public_url(request)
    return web.json_response(
        {
            "name": "model-gateway",
            "version": __version__,
            "base_url": f"{address}/v1",
            "models": f"{address}/v1/models",
            "health": f"{address}/healthz",
            "console": f"{address}/console/",
            "docs": f"{address}/docs",
        }
    )
