"""Unserved paths: 501 for known paths of the OpenAI and Anthropic APIs, and suggestions for misspelled paths."""

import re
from collections.abc import Iterator

from aiohttp import web

from gateway.errors import ApiNotImplemented
from gateway.formats.errors.body import MESSAGES_PATH, ErrorFormat
from gateway.wording import find_nearest

_UNSERVED_NAMES = (
    "assistants", "chatkit", "complete", "containers", "content_provenance_checks", "conversations", "evals",
    "fine_tuning", "organization", "organizations", "projects", "responses/input_tokens", "skills", "threads",
    "vector_stores", "videos/characters", "videos/edits", "videos/extensions",
)  # fmt: skip
"""Paths of the OpenAI API (its OpenAPI document) and of the Anthropic API that the gateway does not serve."""
_PARTLY_SERVED = {
    "audio": r"(?!(?:speech|transcriptions|translations)/*\Z).+",
    "chat/completions": r"[^/].*",
    "images": r"(?!(?:edits|generations)/*\Z).+",
    "realtime": r"(?!(?:client_secrets|sessions)/*\Z)[^/].*",
}
"""Patterns of the unserved paths below served ones."""
MODEL_PATH = r"/models/{model:(?!.*:[A-Za-z]+(?:Content|Contents|Tokens)$).+}"
"""Matches a model, but not the methods of Google's API below a model."""
_UNSERVED_METHODS = (("DELETE", MODEL_PATH),)
"""Methods of the OpenAI API on served paths that the gateway does not serve."""
_ACCOUNT_PATHS = frozenset({"/v1/usage", "/v1/balance", "/v1/me", "/v1/credits", "/v1/account"})
_PREFIX, _GOOGLE_PREFIX = "/v1", "/v1beta"
_PREFIXES = (f"{_PREFIX}/", f"{_GOOGLE_PREFIX}/")
_VERSIONS_PATTERN = re.compile(r"\A(?:/v1(?:beta)?(?=/v1(?:beta)?/))+")
"""Matches repeated versions at the start of a path, except the last: ``/v1`` of ``/v1/v1/models``."""
_ANTHROPIC_PATHS = (MESSAGES_PATH, "/v1/models", "/v1/files")
_OTHER_PATHS = (MESSAGES_PATH, f"{_GOOGLE_PREFIX}/")
"""Paths that OpenAI's API does not have."""
_MAX_PATH_CHARS = 200
"""Maximum length of a path for which a hint is searched."""
_PARAMETER_PATTERN = re.compile(r"\{[^}]*\}")
_SLASHES_PATTERN = re.compile(r"//+")


def add_unserved_routes(app: web.Application) -> None:
    """Register the 501 routes after the served ones, because the first matching route answers."""
    for name in _UNSERVED_NAMES:
        app.router.add_route("*", f"/{name}", refuse_unserved)
        app.router.add_route("*", f"/{name}/{{rest:.*}}", refuse_unserved)
    for name, pattern in _PARTLY_SERVED.items():
        app.router.add_route("*", f"/{name}/{{rest:{pattern}}}", refuse_unserved)
    for method, path in _UNSERVED_METHODS:
        app.router.add_route(method, path, refuse_unserved)


async def refuse_unserved(request: web.Request) -> web.StreamResponse:
    """Raise ``ApiNotImplemented``, which is answered with 501."""
    raise ApiNotImplemented(f"{request.method} {request.path[:_MAX_PATH_CHARS]} is not implemented by this gateway")


def describe_unserved_path(path: str) -> str:
    """Return advice on a path of another product's API, to append to an error message; empty for other paths."""
    if path == "/api" or path.startswith("/api/"):
        return ". This gateway speaks OpenAI's API and not Ollama's: use a base URL that ends with /v1"
    if path.rstrip("/") in _ACCOUNT_PATHS:
        return ". What a key has left is at /v1/key, what it has used at /v1/key/usage"
    return ""


def find_hint(request: web.Request, api: ErrorFormat) -> str | None:
    """Return the served path closest to a misspelled path; None if no path is close.

    Common mistakes in base URLs are tried first, then the paths of the client's ``api`` that take the request's method,
    then all others.
    """
    requested_path = request.path
    if len(requested_path) > _MAX_PATH_CHARS or requested_path.startswith("/admin"):
        return None
    path = _SLASHES_PATTERN.sub("/", requested_path).rstrip("/")
    path = _VERSIONS_PATTERN.sub("", path)
    for meant_path in (path, _PREFIX + path, _GOOGLE_PREFIX + path):
        if meant_path != requested_path and meant_path.startswith(_PREFIXES) and _is_served(request.app, meant_path):
            return meant_path
    likely_paths = [name for name in _list_paths(request.app, request.method) if _belongs_to_api(name, api)]
    return find_nearest(path, likely_paths) or find_nearest(path, _list_paths(request.app))


def _belongs_to_api(path: str, api: ErrorFormat) -> bool:
    if api == "google":
        return path.startswith(_GOOGLE_PREFIX)
    return path.startswith(_ANTHROPIC_PATHS) if api == "anthropic" else not path.startswith(_OTHER_PATHS)


def _list_paths(app: web.Application, method: str | None = None) -> Iterator[str]:
    """Yield the paths that the gateway serves; with ``method``, those that take it."""
    for resource in app.router.resources():
        info = resource.get_info()
        if "app" in info:
            yield from _list_paths(info["app"], method)
        elif resource.canonical.startswith(_PREFIXES) and any(
            route.handler is not refuse_unserved and method in {None, route.method} for route in resource
        ):
            yield resource.canonical


def list_served_methods(request: web.Request) -> list[str]:
    """Return the HTTP methods that the request's path supports."""
    methods_by_status: dict[int, set[str]] = {}
    for resource in _find_resources(request.app, request.path):
        methods = {route.method for route in resource if route.handler is not refuse_unserved}
        if methods:
            methods_by_status.setdefault(len(_PARAMETER_PATTERN.sub("", resource.canonical)), set()).update(methods)
    return sorted(methods_by_status[max(methods_by_status)]) if methods_by_status else []


def _is_served(app: web.Application, path: str) -> bool:
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
