"""The public paths, each with its door."""

from aiohttp import web

from gateway import __version__
from gateway.dialects.openai_chat import read_chat_call
from gateway.dialects.openai_embeddings import read_embeddings_call
from gateway.dialects.openai_models import write_model, write_models
from gateway.domain.fault import ApiNotImplemented
from gateway.flow.models import write_etag
from gateway.web.dashboard import get_subscription, get_usage
from gateway.web.keys import CALLER, ROOMS
from gateway.web.walk import serve_call

_UNSERVED = (
    "assistants", "audio", "batches", "completions", "containers", "conversations", "evals", "files", "fine_tuning",
    "images", "moderations", "realtime", "responses", "threads", "uploads", "vector_stores", "video", "videos",
)  # fmt: skip
"""Paths of the convention that exist, but not here."""


def add_routes(app: web.Application) -> None:
    """The public API, and the page at the root for a newcomer's browser."""
    app.router.add_get("/", get_root)
    app.router.add_post("/v1/chat/completions", post_chat)
    app.router.add_post("/v1/embeddings", post_embeddings)
    app.router.add_get("/v1/models", get_models)
    app.router.add_get("/v1/models/{model:.+}", get_model)
    app.router.add_get("/v1/dashboard/billing/subscription", get_subscription)
    app.router.add_get("/v1/dashboard/billing/usage", get_usage)
    for name in _UNSERVED:
        app.router.add_route("*", f"/v1/{name}", refuse_unserved)
        app.router.add_route("*", f"/v1/{name}/{{rest:.*}}", refuse_unserved)


async def post_chat(request: web.Request) -> web.StreamResponse:
    """``POST /v1/chat/completions``."""
    return await serve_call(request, "chat", read_chat_call)


async def post_embeddings(request: web.Request) -> web.StreamResponse:
    """``POST /v1/embeddings``."""
    return await serve_call(request, "embeddings", read_embeddings_call)


async def get_models(request: web.Request) -> web.Response:
    """``GET /v1/models``: what this key may use now."""
    models = request.app[ROOMS].router.list_models(request[CALLER])
    etag = write_etag(models)
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    known = request.headers.get("If-None-Match", "")
    if known.strip() == "*" or etag in known:
        return web.Response(status=304, headers=headers)
    return web.Response(body=write_models(models), headers=headers, content_type="application/json")


async def get_model(request: web.Request) -> web.Response:
    """``GET /v1/models/{id}``: slashes in the id may come as they are or percent-encoded."""
    listed = request.app[ROOMS].router.get_model(request[CALLER], request.match_info["model"])
    return web.Response(body=write_model(listed), content_type="application/json")


async def refuse_unserved(request: web.Request) -> web.StreamResponse:
    """501 for what the convention has and the gateway has not."""
    raise ApiNotImplemented(f"{request.method} {request.path[:200]} is not implemented by this gateway")


async def get_root(request: web.Request) -> web.Response:
    """``GET /``: what this is and where to go."""
    try:
        address = str(request.url.origin())
    except ValueError:  # a Host header that is none
        address = ""
    return web.json_response(
        {
            "name": "model-gateway",
            "version": __version__,
            "base_url": f"{address}/v1",
            "models": f"{address}/v1/models",
            "health": f"{address}/healthz",
        },
    )
