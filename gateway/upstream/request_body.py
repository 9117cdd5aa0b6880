"""Request bodies that are read while they are sent: bytes, and files in pieces, as fast as the provider reads."""

import asyncio
import binascii
import select
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from gateway.domain.upload import Content, FilePiece
from gateway.errors import StoreUnavailable

PIECE_BYTES = 128 * 1024
"""Read at once: the memory of a body, besides the transport's write buffer."""
BASE64_BYTES = PIECE_BYTES // 4 * 3
"""The same before base64, which turns three bytes into four: a multiple of three."""
_TURNS = 3

Peek = Callable[[float], Sequence[object]]
"""Called with 0; the result is used as a flag."""


class BodyConnection(Protocol):
    """The connection that a body goes over."""

    transport: asyncio.Transport | None

    @property
    def refused(self) -> bool:
        """Whether an error response has come."""
        ...

    def force_close(self) -> None:
        """Prevent its reuse."""
        ...


class CountingConnection(BodyConnection, Protocol):
    """A connection that notes when a whole body has been written."""

    def note_written(self) -> None:
        """Note it."""
        ...


class ContentPayload(Payload):
    """A ``Content`` as a payload of aiohttp, which may be sent more than once.

    A provider may reject a body before it has read it (401, 413) and close. Further writes make its system reset the
    connection, and the reset discards the unread answer on this side. So the answer is checked before every write, and
    after an error response nothing more is written.
    """

    _autoclose = True

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        self._content = content
        self._size = content.length
        self.line: CountingConnection | None = None
        self.on_written: Callable[[], None] | None = None

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send the body. Raises ``ConnectionError``, and what reading a file raises."""
        async with aclosing(read_content(self._content)) as pieces:
            async for piece in pieces:
                if self.line is not None and await is_refused(self.line):
                    self.line.force_close()
                    return
                await writer.write(piece)  # waits while the provider does not read
        if self.line is not None:
            self.line.note_written()
        if self.on_written is not None:
            self.on_written()

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Send the body. Raises ``ValueError`` if the Content-Length is another, and as ``write`` does."""
        if content_length not in {None, self._size}:
            raise ValueError("Content-Length does not match the body")
        await self.write(writer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:  # noqa: ARG002 - aiohttp's signature
        raise TypeError("A body with files in it is sent, not looked at")


async def is_refused(connection: BodyConnection) -> bool:
    """Return whether an error response has come, after the event loop has read what is in the socket."""
    for _ in range(_TURNS):
        if not is_readable(connection.transport):
            break
        await asyncio.sleep(0)
    return connection.refused


def is_readable(transport: asyncio.Transport | None) -> bool:
    """Return whether unread data, or the end, is in the socket."""
    return transport is not None and not transport.is_closing() and bool(find_peek(transport)(0))


def find_peek(transport: asyncio.Transport) -> Peek:
    """Return a function that, called with 0, returns whether unread data is in the socket."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return see_nothing
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return poll.poll


def see_nothing(_: float) -> Sequence[object]:
    """Return that there is no data: for a transport without a socket."""
    return ()


async def read_content(content: Content) -> AsyncGenerator[bytes, None]:
    """Yield a body in pieces. Raises what reading a file raises."""
    for piece in content.pieces:
        if isinstance(piece, FilePiece):
            async with aclosing(_read_file(piece)) as pieces:
                async for data in pieces:
                    yield data
        else:
            for offset in range(0, len(piece), PIECE_BYTES):
                yield piece[offset : offset + PIECE_BYTES]


async def _read_file(piece: FilePiece) -> AsyncGenerator[bytes, None]:
    upload, step = piece.upload, BASE64_BYTES if piece.base64 else PIECE_BYTES
    for offset in range(0, upload.size, step):
        expected = min(step, upload.size - offset)
        data = await upload.spooled.read(offset, expected)
        if len(data) != expected:
            raise StoreUnavailable("The upload has been lost", retry_after_s=5)
        yield binascii.b2a_base64(data, newline=False) if piece.base64 else data
