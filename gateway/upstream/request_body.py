"""A body that is read as it is sent, for aiohttp: bytes, and files in pieces, as fast as the provider takes them."""

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
"""Read at once: what a body holds in memory, besides what the transport has not sent."""
BASE64_BYTES = PIECE_BYTES // 4 * 3
"""The same for base64, whose every three bytes are four: pieces of a multiple of three fit together."""
_TURNS = 3

Peek = Callable[[float], Sequence[object]]
"""Asked with 0; what it answers is true or not, as a flag is."""


class BodyConnection(Protocol):
    """The connection that a body goes over."""

    transport: asyncio.Transport | None

    @property
    def refused(self) -> bool:
        """Whether an error has come as the answer."""
        ...

    def force_close(self) -> None:
        """It is not to be used again."""
        ...


class CountingConnection(BodyConnection, Protocol):
    """A connection that is told when all of a body has been given to it."""

    def note_written(self) -> None:
        """It has."""
        ...


class ContentPayload(Payload):
    """A ``Content`` with its Content-Length; it may be sent more than once, and holds nothing to be closed.

    A provider may refuse a body that it has not read (401, 413), and close; what is written then makes its system reset
    the connection, and on this side a reset that a write meets takes with it the answer that nobody has read yet. So
    the answer is looked for before every write, and after an error nothing more is written.
    """

    _autoclose = True

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        self._content = content
        self._size = content.length
        self.line: CountingConnection | None = None
        self.on_written: Callable[[], None] | None = None

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send it. Raises ``ConnectionError``, and what reading a file raises."""
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
        """Send it. Raises ``ValueError`` where the headers say another length, besides what ``write`` does."""
        if content_length not in {None, self._size}:
            raise ValueError("Content-Length is not the body's")
        await self.write(writer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:  # noqa: ARG002 - aiohttp's signature
        """Never: it is not in memory."""
        raise TypeError("A body with files in it is sent, not looked at")


async def is_refused(line: BodyConnection) -> bool:
    """Whether an error has come. What waits in the socket is given the turns of the loop that its reading takes."""
    for _ in range(_TURNS):
        if not is_readable(line.transport):
            break
        await asyncio.sleep(0)
    return line.refused


def is_readable(transport: asyncio.Transport | None) -> bool:
    """Whether something has come over it that the loop has not read yet, be it its end."""
    return transport is not None and not transport.is_closing() and bool(find_peek(transport)(0))


def find_peek(transport: asyncio.Transport) -> Peek:
    """What says, called with 0, whether something has come over ``transport`` that the loop has not read yet."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return see_nothing
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return poll.poll


def see_nothing(_: float) -> Sequence[object]:
    """What says so where there is no socket."""
    return ()


async def read_content(content: Content) -> AsyncGenerator[bytes, None]:
    """A body in pieces. Raises what reading a file raises."""
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
