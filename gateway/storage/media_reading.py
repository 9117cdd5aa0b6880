"""Reads media and clients' files from a folder or a bucket."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from gateway.domain.media import AnyMedia, RemoteMedia

REMOTE_PIECE_BYTES = 2 * 1024 * 1024
"""Bytes per request to a bucket: few enough for memory, enough to make the request's round trip cheap."""


async def read_pieces(media: AnyMedia, size: int) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a file, up to ``size`` at a time. Raises ``OSError``, ``NotFound``, ``StoreUnavailable``."""
    if isinstance(media, RemoteMedia):
        for start in range(0, media.size, size):
            yield await media.read(start, min(start + size, media.size))
        return
    file = await asyncio.to_thread(media.path.open, "rb")
    try:
        while piece := await asyncio.to_thread(file.read, size):
            yield piece
    finally:
        file.close()


async def read_all(media: AnyMedia) -> bytes:
    """Return all bytes of a file. Raises ``OSError``, ``NotFound``, ``StoreUnavailable``."""
    if isinstance(media, RemoteMedia):
        return await media.read(0, media.size)
    return await asyncio.to_thread(media.path.read_bytes)


async def copy_to(media: RemoteMedia, path: Path) -> None:
    """Copy a file of a bucket to the new file ``path``; after an error a part of it may be there.

    Raises ``OSError``, ``NotFound``, ``StoreUnavailable``.
    """
    with path.open("xb") as file:
        async for piece in read_pieces(media, REMOTE_PIECE_BYTES):
            await asyncio.to_thread(file.write, piece)
