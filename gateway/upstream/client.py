"""The HTTP client for providers: ``FastHttpClient`` for all that it can send, aiohttp's client for the rest."""

from typing import TYPE_CHECKING

from gateway.domain.http_request import HttpRequest
from gateway.errors import ProviderBadResponse
from gateway.upstream.aiohttp_client import AiohttpClient
from gateway.upstream.interface import HttpClient, HttpResponse

if TYPE_CHECKING:
    from gateway.upstream.fast_client import FastHttpClient, Send


class FallbackHttpClient:
    """``HttpClient`` over both clients.

    Args:
        ordinary: send everything with aiohttp's client.

    Attributes:
        send: see ``HttpClient``.
    """

    def __init__(self, *, ordinary: bool = False) -> None:
        self._ordinary: HttpClient | None = None
        self._wire = None if ordinary else _open_wire(self._send_ordinarily)
        self.send: Send = self._send_ordinarily if self._wire is None else self._wire.send

    async def _send_ordinarily(self, plan: HttpRequest) -> HttpResponse:
        if plan.proxy is not None and plan.proxy.lower().startswith("socks"):
            raise ProviderBadResponse(
                "A SOCKS proxy needs the relay's own connections, which are not in use", phase="connect"
            )
        if self._ordinary is None:
            self._ordinary = AiohttpClient()
        return await self._ordinary.send(plan)

    async def close(self) -> None:
        if self._wire is not None:
            await self._wire.close()
        if self._ordinary is not None:
            await self._ordinary.close()


def _open_wire(other: "Send") -> "FastHttpClient | None":
    try:
        import httptools  # noqa: F401, PLC0415 - without it, aiohttp's client sends everything
    except ImportError:
        return None
    from gateway.upstream.fast_client import FastHttpClient  # noqa: PLC0415

    return FastHttpClient(other=other)
