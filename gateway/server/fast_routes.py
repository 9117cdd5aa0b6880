"""Routing of the hot paths without aiohttp's resolver.

For a path without variables, aiohttp makes dozens of calls to find the same route each time. ``FastRoutes`` looks the
route up in a dict and runs the same middlewares. It sets the private ``Request._match_info``; a test checks that
aiohttp still has it.
"""

from typing import NoReturn

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler
from aiohttp.web_urldispatcher import MatchInfoError, PlainResource, UrlMappingMatchInfo

from gateway.errors import ApiNotImplemented, GatewayError, InvalidRequest, Overloaded
from gateway.server.admin.prefix import PREFIX
from gateway.server.console.routes import ROOT
from gateway.server.context import API, CONTEXT
from gateway.server.error_responses import answer_error
from gateway.server.middlewares import PROBE_PATHS, with_middlewares


class FastRoutes:
    """Dispatches ``POST`` requests to plain paths of the public API directly, and all others through aiohttp."""

    def __init__(self, app: web.Application, dispatch: Handler) -> None:
        self._dispatch = dispatch
        self._routes: dict[str, tuple[UrlMappingMatchInfo, Handler]] = {}
        self._not_found_match = MatchInfoError(web.HTTPNotFound())
        self._not_found_match.add_app(app)
        self._not_found_match.freeze()
        self._refuse_framing = with_middlewares(refuse_framing, app.middlewares)
        self._refuse_expectation = with_middlewares(refuse_expectation, app.middlewares)
        self._refuse_crowded = with_middlewares(refuse_crowded, app.middlewares)
        if (api := app.get(API)) is not None:
            self._add_routes(app, api)

    def _add_routes(self, app: web.Application, api: web.Application) -> None:
        for route in api.router.routes():
            if route.method == "POST" and isinstance(route.resource, PlainResource):
                match = UrlMappingMatchInfo({}, route)
                match.add_app(api)
                match.add_app(app)
                match.freeze()
                handler = with_middlewares(route.handler, [*app.middlewares, *api.middlewares])
                self._routes[route.resource.canonical] = match, handler

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request._message.chunked and not _is_framed_well(request):  # noqa: SLF001 - as below
            request._match_info = self._not_found_match  # noqa: SLF001 - its application's signal adds the common headers
            return await self._refuse_framing(request)
        fast_route = self._routes.get(request.raw_path)
        if fast_route is None or request.method != "POST" or "Expect" in request.headers:
            return await self._handle_slowly(request)
        request._match_info, handler = fast_route  # noqa: SLF001
        return await handler(request)

    async def _handle_slowly(self, request: web.Request) -> web.StreamResponse:
        # aiohttp refuses an unknown ``Expect`` before the first middleware, and fails to echo a non-ASCII value.
        try:
            return await self._dispatch(request)
        except web.HTTPExpectationFailed:
            return await self._refuse_expectation(request)
        except UnicodeEncodeError:
            if request.headers.get("Expect", "").isascii():
                raise
            return await self._refuse_expectation(request)

    async def handle_reserved(self, request: web.Request) -> web.StreamResponse:
        """Answer the only request of a connection that is reserved for probes, the console and the admin API."""
        request.protocol.close()
        if _is_reserved(request.path):
            return await self._handle_slowly(request)
        request._match_info = self._not_found_match  # noqa: SLF001 - as above
        return await self._refuse_crowded(request)


async def refuse_framing(request: web.Request) -> web.Response:
    """Refuse a ``Transfer-Encoding`` that parsers may read differently (request smuggling); close the connection."""
    error: GatewayError
    if request.version < HttpVersion11:
        error = InvalidRequest("HTTP/1.0 has no Transfer-Encoding")
    else:
        error = ApiNotImplemented("Transfer-Encoding must be chunked, and nothing else")
    response = answer_error(error, request, request[CONTEXT].id)
    response.force_close()
    return response


async def refuse_expectation(_request: web.Request) -> NoReturn:
    """Answer 417 to an ``Expect`` other than ``100-continue``, by raising ``HTTPExpectationFailed``."""
    raise web.HTTPExpectationFailed


async def refuse_crowded(_request: web.Request) -> NoReturn:
    """Raise ``Overloaded`` for a request that its reserved connection does not serve."""
    raise Overloaded("The gateway has reached its connection limit", retry_after_s=1)


def _is_reserved(path: str) -> bool:
    return path in PROBE_PATHS or path == ROOT or path.startswith((f"{ROOT}/", f"{PREFIX}/"))


def _is_framed_well(request: web.Request) -> bool:
    """Return whether a request with a transfer coding uses HTTP/1.1 and only ``chunked`` (RFC 9112, 6.1)."""
    return request.version >= HttpVersion11 and request.headers["Transfer-Encoding"].lower() == "chunked"
