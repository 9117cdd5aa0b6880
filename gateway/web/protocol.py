"""aiohttp's server, with the gateway's error object for what is not even HTTP.

aiohttp answers a request it cannot parse before any middleware sees it, in plain text and with a stack trace in the
log. Its ``handle_error`` is the one place to change that; reaching it takes a subclass of three of its classes, one
of them through a private method (``_make_server``), which a test watches.
"""

from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from gateway.domain.fault import InternalError, InvalidRequest, UnsupportedMediaType
from gateway.web.keys import TRACE, Trace
from gateway.web.middleware import make_request_id, read_http_fault, write_fault


class _BareResponse(web.Response):
    """A response outside the application, where no signal takes the server's name off it."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall("Server", None)


class GatewayProtocol(RequestHandler):
    """One connection."""

    __slots__ = ()

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

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's signature
    ) -> web.StreamResponse:
        """The answer to what cannot be parsed, or to a bug outside every middleware; the connection closes."""
        if request.writer.output_size > 0:
            raise ConnectionError("The answer has begun; there is no other")
        fault: InvalidRequest | UnsupportedMediaType | InternalError
        if isinstance(exc, ContentEncodingError):
            fault = UnsupportedMediaType("Content-Encoding must be gzip, deflate or identity")
        elif status < 500:  # noqa: PLR2004
            fault = InvalidRequest("The request is not valid HTTP")
        else:
            self.log_exception("unhandled error", exc_info=exc)
            fault = InternalError("Something went wrong inside the gateway")
        request_id = make_request_id()
        shaped = write_fault(fault, request_id)
        headers = {**shaped.headers, "X-Request-Id": request_id}
        response = _BareResponse(body=shaped.body, status=shaped.status, headers=headers)
        response.force_close()
        return response

    async def finish_response(
        self,
        request: BaseRequest,
        resp: web.StreamResponse,
        start_time: float | None,
    ) -> tuple[web.StreamResponse, bool]:
        """Send; what aiohttp itself refused before any middleware (an ``Expect`` it does not know) is shaped first."""
        if isinstance(resp, web.HTTPException) and isinstance(request, web.Request):
            trace = request[TRACE] = Trace(make_request_id())
            resp = write_fault(read_http_fault(resp, request), trace.id, path=request.path)
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """Log a bug. A body that broke after its request was answered is none."""
        if not isinstance(kwargs.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kwargs)


class GatewayServer(web.Server):
    """Makes a ``GatewayProtocol`` for every connection."""

    def __call__(self) -> RequestHandler:
        """A protocol for a new connection."""
        return GatewayProtocol(self, loop=self._loop, **self._kwargs)


class GatewayRunner(web.AppRunner):
    """Runs the application on ``GatewayServer``."""

    __slots__ = ()

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return GatewayServer(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,  # noqa: SLF001 - see the module's docstring
        )
