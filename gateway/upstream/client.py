"""The HTTP client for providers: ``FastHttpClient`` for all that it can send, aiohttp's client for the rest."""

from typing import TYPE_CHECKING

import attrs

from gateway.domain.http_request import HttpRequest
from gateway.errors import ProviderBadResponse
from gateway.upstream.access_tokens import AuthorizedHttpClient
from gateway.upstream.aiohttp_client import AiohttpClient
from gateway.upstream.environment_proxy import FindProxy, use_channels_proxy
from gateway.upstream.interface import HttpClient, HttpResponse

if TYPE_CHECKING:
    from gateway.upstream.fast_client import FastHttpClient, Send


class FallbackHttpClient:
    """``HttpClient`` over both clients.

    Args:
        find_proxy: returns the proxy of a request.
        ordinary: send everything with aiohttp's client.

    Attributes:
        access_tokens: gets the requests with a ``grant``, and returns them with their tokens.
        send: see ``HttpClient``. It is the quicker client's own, so that no other request passes a step more.
    """

    def __init__(self, find_proxy: FindProxy = use_channels_proxy, *, ordinary: bool = False) -> None:
        self.access_tokens = AuthorizedHttpClient(self)
        self._ordinary: HttpClient | None = None
        self._find_proxy = find_proxy
        self._wire = None if ordinary else _open_wire(self._send_otherwise, find_proxy)
        self.send: Send = self._send_otherwise if self._wire is None else self._wire.send

    async def _send_otherwise(self, http_request: HttpRequest) -> HttpResponse:
        if http_request.grant is not None:
            return await self.access_tokens.send(http_request)
        http_request = attrs.evolve(http_request, proxy=self._find_proxy(http_request.proxy, http_request.url))
        if http_request.proxy is not None and http_request.proxy.lower().startswith("socks"):
            raise ProviderBadResponse(
                "A SOCKS proxy needs the relay's own connections, which are not in use", phase="connect"
            )
        if self._ordinary is None:
            self._ordinary = AiohttpClient()
        return await self._ordinary.send(http_request)

    async def close(self) -> None:
        await self.access_tokens.stop()
        if self._wire is not None:
            await self._wire.close()
        if self._ordinary is not None:
            await self._ordinary.close()


def _open_wire(other: "Send", find_proxy: FindProxy) -> "FastHttpClient | None":
    try:
        import httptools  # noqa: F401, PLC0415 - without it, aiohttp's client sends everything
    except ImportError:
        return None
    from gateway.upstream.fast_client import FastHttpClient  # noqa: PLC0415

    return FastHttpClient(other=other, find_proxy=find_proxy)
