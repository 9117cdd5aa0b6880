"""Answers whose head the gateway writes itself, in one piece with what follows it.

aiohttp's own way is made for every kind of response there is: it costs thirty microseconds, and a ``send`` of its own
for the head. These two are what a call is answered with; everything else is aiohttp's.
"""

import asyncio

from aiohttp import HttpVersion11, web
from aiohttp.helpers import rfc822_formatted_time

from gateway.web.middleware import write_signature

SMALL = 64 * 1024
"""Bytes that may be copied into one piece with their head, and written without a look at their reader."""


class OwnHead(web.StreamResponse):
    """What aiohttp asks of a response once it has been returned to it: whether the connection stays."""

    _stays = False
    _status, _reason = 200, "OK"

    def __init__(self) -> None:
        """Nothing: aiohttp's own state is for heads that it writes."""

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow."""
        return self._stays

    async def prepare(self, request: web.BaseRequest) -> None:  # noqa: ARG002 - aiohttp's signature
        """The head goes with the body."""
        return

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - aiohttp's signature
        """The end has been written."""
        return

    def write_head(self, request: web.Request, headers: dict[str, str], *, until_close: bool = False) -> bytes:
        """Status 200 and ``headers`` with what all answers say; ``until_close``: its end is the connection's."""
        version = request.version
        self._stays = stays = request.keep_alive and not until_close
        said = headers | write_signature(request)
        said["Date"] = rfc822_formatted_time()
        if stays != (version == HttpVersion11):
            said["Connection"] = "keep-alive" if stays else "close"
        block = "\r\n".join(map(": ".join, said.items()))
        if block.count("\n") != len(said) - 1 or block.count("\r") != len(said) - 1:
            raise ValueError("a header is more than one line")
        return f"HTTP/{version.major}.{version.minor} 200 OK\r\n{block}\r\n\r\n".encode()


class SmallAnswer(OwnHead):
    """A whole answer of at most ``SMALL`` bytes: one piece, written when aiohttp asks for its end."""

    def __init__(self, request: web.Request, body: bytes, headers: dict[str, str]) -> None:
        super().__init__()
        self._request = request
        self._whole = self.write_head(request, headers | {"Content-Length": str(len(body))}) + body

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - aiohttp's signature
        """Send it. Raises ``ConnectionError`` where the caller has left."""
        send(self._request, self._whole)
        await self._request.writer.drain()


def send(request: web.Request, data: bytes) -> asyncio.Transport:
    """Begin an answer. Raises ``ConnectionResetError`` where the caller has left."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the caller left")
    request.writer.output_size += len(data)  # that it has begun; what follows is not counted
    transport.write(data)
    return transport
