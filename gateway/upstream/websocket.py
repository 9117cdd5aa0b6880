"""WebSockets to providers. aiohttp's exceptions are translated here."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NoReturn

import aiohttp
import attrs
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from gateway.domain.http_request import HttpRequest
from gateway.errors import ProviderBadResponse, ProviderTimeout, ProxyRefused
from gateway.formats.errors.openai import describe_status
from gateway.upstream.environment_proxy import FindProxy, use_channels_proxy
from gateway.upstream.exhaustion import find_exhaustion
from gateway.upstream.frame_meter import FrameMeter
from gateway.upstream.unreachable import build_unreachable

HEARTBEAT_S = 30.0
"""A ping is sent after this time without a frame; without a pong in half that time the connection is closed."""
MAX_FRAME_BYTES = 21 * 1024 * 1024
"""The longest frame: OpenAI accepts 15 MiB of audio in one event, which is 20 MiB in base64."""
CLOSE_S = 2.0
"""How long the other end may take to answer a close frame."""
_MAX_ERROR_BYTES = 64 * 1024
_SWITCHED_STATUS = 101
_LIBRARY_ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError)

ProviderSocket = aiohttp.ClientWebSocketResponse[bool]


@attrs.define
class HandshakeRefused(Exception):
    """The provider answered without opening a WebSocket: a status, headers and the beginning of a body."""

    status: int
    headers: Mapping[str, str]
    body: bytes = attrs.field(repr=False)


class WebSocketClient:
    """Opens WebSockets to providers, each over a connection of its own."""

    def __init__(
        self, authorize: Callable[[HttpRequest], Awaitable[HttpRequest]], find_proxy: FindProxy = use_channels_proxy
    ) -> None:
        self._authorize = authorize
        self._find_proxy = find_proxy
        self._connector: aiohttp.TCPConnector | None = None

    async def connect(self, http_request: HttpRequest, meter: FrameMeter) -> ProviderSocket:
        """Open a WebSocket. Raises ``HandshakeRefused``, ``ProviderError``. ``meter`` counts received bytes.

        Frames have any size up to ``MAX_FRAME_BYTES``. Pings are answered, and sent while no data arrives.
        """
        proxy = self._find_proxy(http_request.proxy, http_request.url)
        if proxy is not None and proxy.lower().startswith("socks"):
            raise ProviderBadResponse("A WebSocket cannot go through a SOCKS proxy", phase="connect")
        http_request = await self._authorize(http_request)
        if self._connector is None:
            self._connector = aiohttp.TCPConnector(limit=0, force_close=True)
        session = aiohttp.ClientSession(
            connector=self._connector,
            connector_owner=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent",),
            trust_env=False,
            middlewares=(partial(_check_handshake, meter),),
            timeout=aiohttp.ClientTimeout(total=None, connect=http_request.timeouts.connect_s, ceil_threshold=60),
        )
        try:
            return await session.ws_connect(
                URL(http_request.url, encoded=True),
                headers=http_request.headers,
                proxy=proxy,
                heartbeat=HEARTBEAT_S,
                max_msg_size=MAX_FRAME_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
                decode_text=False,
            )
        except _LIBRARY_ERRORS as error:
            _raise_translated_error(error)
        finally:
            session.detach()  # the WebSocket keeps the connection

    async def close(self) -> None:
        if self._connector is not None:
            await self._connector.close()


async def _check_handshake(
    meter: FrameMeter, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Let ``meter`` count what the provider sends. Raise ``HandshakeRefused`` unless it switches protocols.

    aiohttp itself would discard the body of an error, or follow a redirect.
    """
    response = await send(request)
    if response.status != _SWITCHED_STATUS:
        body = await response.content.read(_MAX_ERROR_BYTES)
        response.close()
        raise HandshakeRefused(response.status, response.headers, body)
    if response.connection is not None:
        meter.attach(response.connection.transport)
    return response


def _raise_translated_error(error: Exception) -> NoReturn:
    """Raise an aiohttp exception as a ``ProviderError``, with the original as its cause for the log."""
    if (resource_error := find_exhaustion(error)) is not None:
        raise resource_error
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        raise ProviderTimeout("Connecting to the provider took too long", phase="connect") from error
    if isinstance(error, TimeoutError):
        raise ProviderTimeout("The provider took too long to answer", phase="headers") from error
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        raise ProviderBadResponse(
            "The provider's TLS certificate or handshake was not accepted", phase="connect"
        ) from error
    if isinstance(error, aiohttp.ClientConnectorError):
        raise build_unreachable(error.os_error) from error
    if isinstance(error, aiohttp.ClientHttpProxyError):
        raise ProxyRefused(describe_status(error.status)) from error
    if isinstance(error, aiohttp.InvalidURL | ValueError):
        raise ProviderBadResponse("The channel's address or headers cannot be sent", phase="connect") from error
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        raise ProviderBadResponse("The provider's answer is not valid HTTP", phase="headers") from error
    raise ProviderBadResponse("The provider broke the connection", phase="headers") from error
