"""CORS: pages of the origins that the operator lists may call the public API with an API key.

The rules follow the Fetch standard (https://fetch.spec.whatwg.org/#http-cors-protocol). A page sends its API key
explicitly. No response allows credentials, which keeps cookies, the console and the admin API inaccessible.
"""

from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.domain.attribution import BUDGET_HEADER
from gateway.domain.attribution import HEADERS as ATTRIBUTION_HEADERS
from gateway.domain.media import MEDIA_PATH
from gateway.domain.member import Forbidden
from gateway.domain.origin import ANY_ORIGIN, parse_origins
from gateway.request_context import QUOTE_HEADER, RESUMABLE_HEADER
from gateway.server.context import CONTEXT
from gateway.server.error_responses import answer_error
from gateway.server.responses import BareResponse, build_common_headers

_PATH_PREFIXES = ("/v1/", "/v1beta/", f"{MEDIA_PATH}/")
_ALLOWED_METHODS = "DELETE, GET, HEAD, PATCH, POST, PUT"
_MAX_AGE_S = "7200"
"""The longest time for which Chromium caches a preflight response."""
_ACCEPTED_HEADERS = ATTRIBUTION_HEADERS | frozenset(
    {
        BUDGET_HEADER, QUOTE_HEADER, RESUMABLE_HEADER, "x-gateway-keep", "x-gateway-prefer",
        "accept", "accept-language", "authorization", "cache-control", "content-type", "idempotency-key", "if-match",
        "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-event-id", "range", "user-agent",
        "x-api-key", "x-goog-api-key", "x-request-id",
    },
)  # fmt: skip
_ACCEPTED_PREFIXES = ("anthropic-", "openai-", "x-goog-", "x-stainless-")
"""Prefixes of more headers that client libraries send. Never add the console's header: it protects against CSRF."""
_MAX_HEADER_NAMES = 64
_FORBIDDEN_ORIGIN_TEXT = "Pages of this origin may not call the gateway: server.cors_origins does not name it"
_EXPOSED_HEADERS = (
    "Accept-Ranges, Age, Allow, Content-Disposition, Content-Range, Date, ETag, Idempotent-Replayed, Link, "
    "Retry-After, openai-poll-after-ms, request-id, x-gateway-adapted, x-gateway-affinity, x-gateway-attempts, "
    "x-gateway-budget-spent-usd, x-gateway-budget-usd, x-gateway-cache, x-gateway-cost-usd, x-gateway-limit-soft, "
    "x-gateway-limit-usd-left, x-gateway-overhead-ms, x-gateway-queue-ms, x-gateway-route, "
    "x-gateway-session-usd-left, x-gateway-step, x-gateway-stream, x-gateway-tried, x-gateway-warning, "
    "x-ratelimit-limit-requests, x-ratelimit-limit-tokens, "
    "x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, "
    "x-ratelimit-reset-tokens, x-request-id, x-should-retry"
)
"""Response headers that a page may read. They are listed because not every browser accepts ``*``."""


class CrossOrigin:
    """Answers preflight requests, and adds CORS headers to the public API's responses. ``*`` allows all origins."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = parse_origins(origins)
        self._allows_any = ANY_ORIGIN in self._origins

    @web.middleware
    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith(_PATH_PREFIXES):
            return await handler(request)
        request[CONTEXT].headers = self._build_headers(request)
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return self._answer_preflight(request)
        return await handler(request)

    def _build_headers(self, request: web.Request) -> dict[str, str]:
        allowed_origin = self._find_allowed(request)
        vary = {} if self._allows_any else {"Vary": "Origin"}
        if allowed_origin is None:
            return vary
        return {
            "Access-Control-Allow-Origin": allowed_origin,
            "Access-Control-Expose-Headers": _EXPOSED_HEADERS,
            **vary,
        }

    def build_public_headers(self) -> dict[str, str]:
        if len(self._origins) > 1 and not self._allows_any:
            return {}
        origin = ANY_ORIGIN if self._allows_any else next(iter(self._origins))
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED_HEADERS}

    def _find_allowed(self, request: web.Request) -> str | None:
        origins = request.headers.getall("Origin", ())
        if len(origins) != 1:
            return None
        if self._allows_any:
            return ANY_ORIGIN
        return origins[0] if origins[0] in self._origins else None

    def _answer_preflight(self, request: web.Request) -> web.StreamResponse:
        headers = build_common_headers(request)
        if self._find_allowed(request) is None:
            error = Forbidden(_FORBIDDEN_ORIGIN_TEXT, should_retry=False)
            error_response = answer_error(error, request, request[CONTEXT].id)
            return BareResponse(
                body=error_response.body, status=error_response.status, headers={**error_response.headers, **headers}
            )
        headers |= {"Access-Control-Allow-Methods": _ALLOWED_METHODS, "Access-Control-Max-Age": _MAX_AGE_S}
        accepted_headers = _list_accepted(request.headers.getall("Access-Control-Request-Headers", ()))
        if accepted_headers:
            headers["Access-Control-Allow-Headers"] = ", ".join(accepted_headers)
        vary = ("Access-Control-Request-Method", "Access-Control-Request-Headers")
        headers["Vary"] = ", ".join((*filter(None, [headers.get("Vary")]), *vary))
        return BareResponse(status=web.HTTPNoContent.status_code, headers=headers)


def _list_accepted(lines: Iterable[str]) -> list[str]:
    names = (name.strip().lower() for line in lines for name in line.split(",", _MAX_HEADER_NAMES)[:_MAX_HEADER_NAMES])
    return [name for name in dict.fromkeys(names) if _is_accepted(name)]


def _is_accepted(name: str) -> bool:
    if name in _ACCEPTED_HEADERS:
        return True
    return name.startswith(_ACCEPTED_PREFIXES) and name.isascii() and name.replace("-", "").isalnum()


CORS = web.AppKey("cors", CrossOrigin)
"""The CORS rules; not set if no other origin may call the API."""
