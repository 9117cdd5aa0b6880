"""Plans to send, and what to do with the replies."""

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.domain.channel import Timeouts
from gateway.domain.http_request import HttpRequest
from gateway.upstream.interface import HttpClient, HttpResponse, PumpResult
from tests.support.scripted_upstream import ScriptedUpstream

TIMEOUTS = Timeouts(connect_s=2, first_byte_s=2, idle_s=2, total_s=5)
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Authorization": "Bearer provider-key",
}
LIMIT = 1 << 20


def build_request(up: ScriptedUpstream, timeouts: Timeouts = TIMEOUTS, **more: Any) -> HttpRequest:
    """A small POST, or another method."""
    return HttpRequest(
        more.pop("method", "POST"), more.pop("url", up.base_url + "/ask"), HEADERS, b'{"a": 1}', timeouts, **more
    )


async def ask(upstream: HttpClient, up: ScriptedUpstream, method: str = "POST") -> bytes:
    """Send, read it whole, close."""
    response = await upstream.send(build_request(up, method=method))
    try:
        return await response.read(LIMIT)
    finally:
        response.close()


async def pump_all(response: HttpResponse) -> bytes:
    """Everything that is pushed until the end."""
    pieces: list[bytes] = []

    def keep(piece: bytes, _raw: bytes | None) -> bool:
        pieces.append(piece)
        return False

    assert await response.pump(keep) is PumpResult.ENDED
    return b"".join(pieces)


async def until(condition: Callable[[], object]) -> None:
    """Return once ``condition`` holds; fail where it never does."""
    async with asyncio.timeout(3):
        while not condition():  # noqa: ASYNC110 - the other end of a socket has no event to tend
            await asyncio.sleep(0.005)
