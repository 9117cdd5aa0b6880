"""PNG images for the demo: gradients (W3C Portable Network Graphics, third edition, 5 and 11.2.1)."""

import struct
import zlib
from hashlib import blake2b

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_BORDER_DIVISOR = 16
"""The shorter side of an edited image, divided by the width of its border."""


def draw(prompt: str, index: int, size: tuple[int, int], *, border: bool = False, bands: int | None = None) -> bytes:
    """Draw a gradient with colors derived from ``prompt`` and ``index``, as a PNG of ``size`` (width, height).

    ``border`` adds a frame in the opposite color, which marks edited images. ``bands`` is the number of steps of the
    gradient; None for one step for each row.
    """
    width, height = size
    top, bottom = _pick_colors(prompt, index)
    steps = min(bands or height, height)
    border_pixels = min(size) // _BORDER_DIVISOR if border else 0
    frame_row = bytes(255 - value for value in top) * width
    rows = []
    for y in range(height):
        if y < border_pixels or y >= height - border_pixels:
            rows.append(b"\0" + frame_row)
            continue
        share = y * steps // height / max(steps - 1, 1)
        color = bytes(round(a + (b - a) * share) for a, b in zip(top, bottom, strict=True))
        side = frame_row[: 3 * border_pixels]
        rows.append(b"\0" + side + color * (width - 2 * border_pixels) + side)
    text = b"Description\0\0\0\0\0" + prompt[:1_000].encode(errors="replace")
    header = _HEADER.pack(width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(rows), 1)
    return SIGNATURE + b"".join(map(_build_chunk, (b"IHDR", b"iTXt", b"IDAT", b"IEND"), (header, text, data, b"")))


def _pick_colors(prompt: str, index: int) -> tuple[bytes, bytes]:
    digest = blake2b(f"{index}:{prompt}".encode(errors="replace"), digest_size=6).digest()
    return digest[:3], digest[3:]


def _build_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
