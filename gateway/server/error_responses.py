"""Build error responses in the API format of the client."""

from collections.abc import Mapping

import structlog
from aiohttp import web

from gateway import errors
from gateway.domain.byte_range import RangeNotSatisfiable
from gateway.domain.price import usd
from gateway.error_status import find_page
from gateway.formats.errors.body import MESSAGES_PATH, ErrorFormat, build_error
from gateway.server.client_ip import find_public_url
from gateway.server.context import SERVICES
from gateway.server.unserved_paths import describe_unserved_path, find_hint, list_served_methods

ANTHROPIC_PATHS = (MESSAGES_PATH, "/v1/models")
GOOGLE_ROOT = "/v1beta"
_GOOGLE_PATHS = (f"{GOOGLE_ROOT}/", f"/upload{GOOGLE_ROOT}/", "/upload/v1/")
GOOGLE_KEY_HEADER = "x-goog-api-key"
_SHARED_PATHS = (
    "/v1/models", "/v1/batches", "/v1/cachedContents", "/v1/fileSearchStores", "/v1/files", "/v1/interactions",
    "/v1/operations", "/v1/tunedModels",
)  # fmt: skip
"""Paths of Google's API below ``/v1``. Other APIs use some of them, too."""
_OPENAI_PATHS = (
    "/v1/audio", "/v1/chat", "/v1/completions", "/v1/embeddings", "/v1/images", "/v1/moderations", "/v1/realtime",
    "/v1/rerank", "/v1/responses", "/v1/videos",
)  # fmt: skip
"""Paths that only OpenAI's API has: their errors have OpenAI's format, whatever the headers say."""
VERSION_HEADER = "anthropic-version"
"""The header that client libraries of the Anthropic API send."""
_MAX_PATH_CHARS = 200

log = structlog.stdlib.get_logger("gateway.request")


def convert_error(error: Exception, request: web.Request, request_id: str) -> web.Response:
    """Convert an exception of a handler into an error response.

    An exception other than ``GatewayError`` or aiohttp's ``HTTPException`` is logged as a bug. Raises
    ``ConnectionError`` if the client has disconnected, or if the response has begun: then the connection is aborted.
    """
    if isinstance(error, errors.ClientDisconnected):
        raise ConnectionResetError("the client disconnected") from None
    if isinstance(error, ConnectionError):
        raise error
    headers: dict[str, str] = {}
    if isinstance(error, errors.GatewayError):
        response_error = error
    elif isinstance(error, web.HTTPException):
        response_error, headers = parse_http_error(error, request), _build_allow(error, request)
    else:
        response_error = errors.InternalError("Unexpected gateway error")
    if isinstance(response_error, errors.InternalError):
        log.error("request_failed", request_id=request_id, exc_info=error)
    if request.writer.output_size:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the response had begun") from error
    return answer_error(response_error, request, request_id, headers)


def answer_error(
    error: errors.GatewayError, request: web.Request, request_id: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Build the response for ``error`` in the client's API format, with a link to the documentation if possible."""
    add_doc_url(error, request)
    return build_error_response(error, request_id, headers, find_error_format(request))


def add_doc_url(error: errors.GatewayError, request: web.Request) -> None:
    """Add the link to the documentation of an error's code, unless the gateway's address is unknown."""
    if address := find_public_url(request):
        error.doc_url = find_page(error.public_code, address)


def build_error_response(
    error: errors.GatewayError,
    request_id: str,
    headers: Mapping[str, str] | None = None,
    error_format: ErrorFormat = "openai",
) -> web.Response:
    """Build the response for ``error`` in ``error_format``, with its headers and the further ones in ``headers``."""
    error_headers = dict(headers or {})
    if error_format == "anthropic":
        error_headers["request-id"] = request_id
    if error.retry_after_s is not None:
        error_headers["Retry-After"] = str(error.retry_after_s)
    if error.doc_url is not None:
        error_headers["Link"] = f'<{error.doc_url}>; rel="help"'
    if isinstance(error, RangeNotSatisfiable) and error.size is not None:
        error_headers["Content-Range"] = f"bytes */{error.size}"
    if isinstance(error, errors.BudgetExceeded):
        error_headers |= {
            "x-gateway-budget-spent-usd": usd(error.spent_nanos),
            "x-gateway-budget-usd": usd(error.limit_nanos),
        }
    if error.should_retry is not None:
        error_headers["x-should-retry"] = "true" if error.should_retry else "false"
    body = build_error(error, request_id, error_format)
    return web.Response(body=body, status=error.status, headers=error_headers, content_type="application/json")


def find_error_format(request: web.Request) -> ErrorFormat:
    """Return the API format of a request, derived from its path, its headers and its query."""
    path, headers = request.path, request.headers
    if path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/"):
        return "anthropic"
    if is_google_request(request):
        return "google"
    if path.startswith(_OPENAI_PATHS):
        return "openai"
    is_anthropic = VERSION_HEADER in headers or ("x-api-key" in headers and "Authorization" not in headers)
    return "anthropic" if is_anthropic and path.startswith("/v1/") else "openai"


def is_google_request(request: web.Request) -> bool:
    """Return whether a request uses Google's API, by its path, its client library's headers or its query."""
    path, headers = request.path, request.headers
    if path == GOOGLE_ROOT or path.startswith(_GOOGLE_PATHS):
        return True
    if not path.startswith(_SHARED_PATHS):
        return False
    if GOOGLE_KEY_HEADER in headers or "x-goog-api-client" in headers:
        return True
    if request.method == "POST":
        return path.startswith(f"{_SHARED_PATHS[0]}/")
    return "key" in request.query and "Authorization" not in headers


def parse_http_error(error: web.HTTPException, request: web.Request) -> errors.GatewayError:
    """Convert an HTTP exception of aiohttp to a ``GatewayError`` of the same status."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed_methods = ", ".join(list_served_methods(request))
        return errors.MethodNotAllowed(f"{request.method} is not allowed on this path. Use {allowed_methods}")
    if isinstance(error, web.HTTPNotFound):
        hint = describe_unserved_path(request.path)
        similar_path = None if hint else find_hint(request, find_error_format(request))
        hint = f". Did you mean {similar_path}?" if similar_path else hint
        message = f"Unknown endpoint {request.method} {request.path[:_MAX_PATH_CHARS]}{hint}"
        return errors.NotFound(message, should_retry=False)
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return errors.RequestTooLarge(f"The request body is larger than {request.app[SERVICES].http.max_body_mb} MB")
    gateway_error = errors.InvalidRequest(error.reason or "The request is not valid")
    gateway_error.status = error.status
    return gateway_error


def _build_allow(error: web.HTTPException, request: web.Request) -> dict[str, str]:
    return {"Allow": ",".join(list_served_methods(request))} if isinstance(error, web.HTTPMethodNotAllowed) else {}
