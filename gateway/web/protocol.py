"""aiohttp's server, with the gateway's error object for what is not even HTTP.

aiohttp answers a request it cannot parse before any middleware sees it, in plain text and with a stack trace in the
log. Its ``handle_error`` is the one place to change that; reaching it takes a subclass of three of its classes, one
of them through a private method (``_make_server``), which a test watches.
"""

import gc
from functools import partial
from typing import Any

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler, _ErrInfo
from aiohttp.web_request import BaseRequest
from aiohttp.web_urldispatcher import PlainResource, UrlMappingMatchInfo

from gateway.domain.fault import ApiNotImplemented, InternalError, InvalidRequest
from gateway.web.answer import BareResponse, OwnHead, SmallAnswer
from gateway.web.cors import CORS, CrossOrigin
from gateway.web.entrance import authenticate
from gateway.web.keys import TRACE, Trace
from gateway.web.middleware import answer, make_request_id, read_http_fault, speaks_anthropic, write_fault
from gateway.web.threshold import PUBLIC

_OWN: frozenset[type[web.StreamResponse]] = frozenset({OwnHead, SmallAnswer})


class GatewayProtocol(RequestHandler):
    """One connection. What it carries is not unpacked here: nobody is known yet (``web/body.py``)."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, auto_decompress=False, **kwargs)
        # The parser, full, keeps what follows until it is asked again, which it is once the protocol was full, too. It
        # counts a request whose body came late once too often, so the protocol has to be full one request sooner.
        self._max_msg_queue_size -= 1

    @property
    def connections(self) -> int:
        """How many there are to this server, itself among them."""
        return 0 if self._manager is None else len(self._manager.connections)

    def close(self) -> None:
        """Take no further request. What is left of the body of the one under way is still heard."""
        request = self._current_request
        if request is not None and not request.content.is_eof():
            request.content.on_eof(super().close)
            return
        super().close()
        # aiohttp would leave a connection that waits for one open, and deaf, until everything else has ended.
        if self._current_request is None and not self._messages and self.transport is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        super().data_received(data)
        if self._messages and type(self._messages[-1][0]) is _ErrInfo:
            self._restore_requests()

    def _restore_requests(self) -> None:
        """Requests that are whole are answered before what cannot be parsed behind them in the same piece.

        aiohttp's parser raises then, and keeps the requests in a list that it lets nobody have; the garbage collector
        knows it. A test watches that it still does.
        """
        error = self._messages.pop()
        for kept in gc.get_referents(self._parser):
            if type(kept) is list and kept and type(kept[0]) is tuple and isinstance(kept[0][1], StreamReader):
                whole = [each for each in kept if _is_whole(*each)]
                kept.clear()
                self._request_count += len(whole)
                self._messages.extend(whole)
        self._messages.append(error)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on after a pause. aiohttp asks for it whenever of a body was read; mostly all of it was there already.

        Of one that is not, the parser may keep the rest though nothing is paused: a pause that the end of the body
        before has lifted from the connection stays with the parser until it comes to a body again.
        """
        request = self._current_request
        if self._reading_paused or request is None or not request.content.is_eof():
            super().resume_reading(resume_parser)

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's signature
    ) -> web.StreamResponse:
        """The answer to what cannot be parsed, or to a bug outside every middleware; the connection closes."""
        if request.writer.output_size > 0 or isinstance(exc, ConnectionError):
            raise ConnectionError("The answer has begun, or nobody waits for it; there is no other")
        fault: InvalidRequest | InternalError
        if status < 500:  # noqa: PLR2004
            fault = InvalidRequest("The request is not valid HTTP")
        else:
            self.log_exception("unhandled error", exc_info=exc)
            fault = InternalError("Something went wrong inside the gateway")
        request_id = make_request_id()
        shaped = write_fault(fault, request_id)
        headers = {**shaped.headers, "X-Request-Id": request_id}
        cors = self._get_cors()
        if cors is not None:
            headers |= cors.write_headers_for_anyone()
        response = BareResponse(body=shaped.body, status=shaped.status, headers=headers)
        response.force_close()
        return response

    async def finish_response(
        self,
        request: BaseRequest,
        resp: web.StreamResponse,
        start_time: float | None,
    ) -> tuple[web.StreamResponse, bool]:
        """Send; what aiohttp itself refused before any middleware (an ``Expect`` it does not know) is shaped first.

        Answers with a head of their own need nothing of aiohttp: no request of theirs had a form of aiohttp's to be
        cleared away, or asked for an upgrade.
        """
        if type(resp) in _OWN and not self._upgraded:
            try:
                await resp.write_eof()
            except ConnectionError:
                return resp, True
            return resp, False
        if isinstance(resp, web.HTTPException) and isinstance(request, web.Request):
            trace = request[TRACE] = Trace(make_request_id())
            cors = self._get_cors()
            if cors is not None:
                trace.more = cors.write_headers(request)
            resp = write_fault(read_http_fault(resp, request), trace.id, anthropic=speaks_anthropic(request))
        return await super().finish_response(request, resp, start_time)

    def _get_cors(self) -> CrossOrigin | None:
        """None if no page of another origin may call."""
        return self._manager.cors if isinstance(self._manager, GatewayServer) else None

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """Log a bug. A body that broke after its request was answered is none."""
        if not isinstance(kwargs.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kwargs)


class GatewayServer(web.Server):
    """Makes a ``GatewayProtocol`` for every connection; ``cors`` is None if no page of another origin may call."""

    cors: CrossOrigin | None = None

    def __call__(self) -> RequestHandler:
        """A protocol for a new connection."""
        return GatewayProtocol(self, loop=self._loop, **self._kwargs)


class Shortcut:
    """The calls of the public API straight to their handlers; everything else by way of the application.

    What aiohttp does for a request to find its handler, in dozens of calls, is the same every time for a path without
    variables. It is told what it would have found: a private attribute, which a test watches.

    Args:
        app: its routes are looked at once.
        ordinary: the application's own way.
    """

    def __init__(self, app: web.Application, ordinary: Handler) -> None:
        self._ordinary = ordinary
        self._known: dict[str, tuple[UrlMappingMatchInfo, Handler]] = {}
        for route in app.router.routes():
            resource = route.resource
            if route.method == "POST" and isinstance(resource, PlainResource) and resource.canonical.startswith(PUBLIC):
                found = UrlMappingMatchInfo({}, route)
                found.add_app(app)
                found.freeze()
                self._known[resource.canonical] = found, route.handler

    async def go(self, request: web.Request) -> web.StreamResponse:
        """Answer ``request``."""
        if request._message.chunked and not _is_framed_well(request):  # noqa: SLF001 - as below
            return _refuse_framing(request)
        known = self._known.get(request.raw_path)
        if known is None or request.method != "POST" or "Expect" in request.headers:
            return await self._ordinary(request)
        request._match_info, handler = known  # noqa: SLF001
        await authenticate(request)
        return await handler(request)


def _is_whole(message: RawRequestMessage, payload: StreamReader) -> bool:
    """Whether all of a request has come; of one whose Transfer-Encoding was not understood, nobody knows its end."""
    return payload.is_eof() and (message.chunked or "Transfer-Encoding" not in message.headers)


def _is_framed_well(request: web.Request) -> bool:
    """Whether ``chunked`` is the one transfer coding, in HTTP/1.1 (RFC 9112, 6.1).

    Of anything else two readers may find two different ends.
    """
    return request.version >= HttpVersion11 and request.headers["Transfer-Encoding"].lower() == "chunked"


def _refuse_framing(request: web.Request) -> web.Response:
    """501 for a coding that is not undone here, and the end of the connection; 400 in HTTP/1.0, which has none."""
    fault: ApiNotImplemented | InvalidRequest
    if request.version < HttpVersion11:
        fault = InvalidRequest("HTTP/1.0 has no Transfer-Encoding")
    else:
        fault = ApiNotImplemented("Transfer-Encoding must be chunked, and nothing else")
    response = write_fault(fault, request[TRACE].id, anthropic=speaks_anthropic(request))
    response.force_close()
    return response


class GatewayRunner(web.AppRunner):
    """Runs the application on ``GatewayServer``."""

    __slots__ = ()

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        go: Handler = Shortcut(self.app, made.request_handler).go
        cors = self.app.get(CORS)
        server = GatewayServer(
            partial(answer, handler=go if cors is None else partial(cors.handle, handler=go)),
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,  # noqa: SLF001 - see the module's docstring
        )
        server.cors = cors
        return server
