"""Request bodies that are read while they are sent: bytes, or files in pieces, as fast as the provider reads."""

import binascii
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway.domain.upload import Content, FilePiece
from gateway.errors import StoreUnavailable

PIECE_BYTES = 128 * 1024
"""Bytes read at once: the memory that a body needs besides the transport's write buffer."""
BASE64_BYTES = PIECE_BYTES // 4 * 3
"""Bytes read at once before base64, which turns three bytes into four: a multiple of three."""


async def read_content(content: Content) -> AsyncGenerator[bytes, None]:
    """Yield a body in pieces. Raises ``StoreUnavailable`` if a file cannot be read, or is too short."""
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
        expected_size = min(step, upload.size - offset)
        data = await upload.spooled.read(offset, expected_size)
        if len(data) != expected_size:
            raise StoreUnavailable("The upload has been lost", retry_after_s=5)
        yield binascii.b2a_base64(data, newline=False) if piece.base64 else data
