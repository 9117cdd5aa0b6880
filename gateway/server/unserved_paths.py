"""Paths that are not served: what the convention has besides, and what a path that leads nowhere may have meant."""

import re
from collections.abc import Iterator

from aiohttp import web

from gateway.errors import ApiNotImplemented

_UNSERVED = (
    "assistants", "batches", "chatkit", "complete", "containers", "content_provenance_checks", "conversations", "evals",
    "files", "fine_tuning", "messages/batches", "organization", "organizations", "projects", "realtime", "skills",
    "threads", "uploads", "vector_stores", "videos/characters", "videos/edits", "videos/extensions",
)  # fmt: skip
"""Paths of OpenAI's convention (its OpenAPI document) and of Anthropic's that exist, but not here."""
_PARTLY_SERVED = {
    "audio": r"(?!(?:speech|transcriptions|translations)/*\Z).+",
    "chat/completions": r"[^/].*",
    "images": r"(?!(?:edits|generations)/*\Z).+",
    # What a response became later is known to the provider that made it alone, and nobody knows which that was.
    "responses": r"[^/].*",
}
"""What is not served below these paths."""
_OTHER_METHODS = (("GET", "/chat/completions"), ("DELETE", "/models/{model:.+}"))
"""What the convention can do with paths that are served, and the gateway cannot."""
_PREFIX = "/v1"
_MOST_CHARS = 200
"""Of a path that is looked at for a hint: patterns of paths are not made for longer ones."""
_SLASHES = re.compile(r"//+")


def add_unserved_routes(app: web.Application) -> None:
    """501 for what is not served. They come after the served ones: of two routes the first that matches answers."""
    for name in _UNSERVED:
        app.router.add_route("*", f"/{name}", refuse_unserved)
        app.router.add_route("*", f"/{name}/{{rest:.*}}", refuse_unserved)
    for name, rest in _PARTLY_SERVED.items():
        app.router.add_route("*", f"/{name}/{{rest:{rest}}}", refuse_unserved)
    for method, path in _OTHER_METHODS:
        app.router.add_route(method, path, refuse_unserved)


async def refuse_unserved(request: web.Request) -> web.StreamResponse:
    """501 for what the convention has and the gateway has not."""
    raise ApiNotImplemented(f"{request.method} {request.path[:_MOST_CHARS]} is not implemented by this gateway")


def find_hint(request: web.Request) -> str | None:
    """The path that a request for a path which leads nowhere probably meant; None if there is none.

    Base addresses are written with a slash at their end, without the version, or with two of them.
    """
    told = request.path
    if len(told) > _MOST_CHARS or told.startswith("/admin"):
        return None
    path = _SLASHES.sub("/", told).rstrip("/")
    while path.startswith(f"{_PREFIX}{_PREFIX}/"):
        path = path.removeprefix(_PREFIX)
    for meant in (path, _PREFIX + path):
        if meant != told and meant.startswith(f"{_PREFIX}/") and _leads_somewhere(request.app, meant):
            return meant
    return None


def list_served(request: web.Request) -> list[str]:
    """The methods that the path of a request is served with."""
    resources = _find_resources(request.app, request.path)
    routes = (route for resource in resources for route in resource if route.handler is not refuse_unserved)
    return sorted({route.method for route in routes})


def _leads_somewhere(app: web.Application, path: str) -> bool:
    return any(True for _ in _find_resources(app, path))


def _find_resources(app: web.Application, path: str) -> Iterator[web.AbstractResource]:
    for resource in app.router.resources():
        info = resource.get_info()
        if "app" in info:
            yield from _find_resources(info["app"], path)
            continue
        pattern = info.get("pattern")
        if info.get("path") == path or (pattern is not None and pattern.fullmatch(path)):
            yield resource
