"""PNGs as a test reads and writes them, by the specification and without the code that is tested."""

import struct
import zlib
from collections.abc import Sequence

import attrs

SIGNATURE = b"\x89PNG\r\n\x1a\n"


@attrs.frozen
class DecodedPng:
    """An unfiltered truecolour PNG, taken apart."""

    width: int
    height: int
    rows: tuple[bytes, ...]
    texts: dict[bytes, bytes]


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def write(
    width: int,
    height: int,
    packed: bytes,
    *,
    colour: int = 2,
    depth: int = 8,
    interlaced: int = 0,
    extra: Sequence[tuple[bytes, bytes]] = (),
    pieces: int = 1,
) -> bytes:
    """A PNG of rows that are packed and have their filters' numbers before them."""
    data = zlib.compress(packed)
    size = -(-len(data) // pieces)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    parts = [(b"IHDR", head), *extra]
    parts += [(b"IDAT", data[at : at + size]) for at in range(0, len(data), size)]
    return SIGNATURE + b"".join(chunk(kind, body) for kind, body in [*parts, (b"IEND", b"")])


def plain(width: int, height: int, pixel: bytes, **more: int) -> bytes:
    """A PNG of one colour, unfiltered."""
    return write(width, height, (b"\0" + pixel * width) * height, **more)  # type: ignore[arg-type]


def read(data: bytes) -> DecodedPng:
    """Take a PNG apart; fails where it is not an unfiltered truecolour one, or a checksum is wrong."""
    assert data.startswith(SIGNATURE)
    at, head, packed, texts = len(SIGNATURE), b"", b"", {}
    kind = b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        assert chunk(kind, body) == data[at : at + 12 + length]
        at += 12 + length
        if kind == b"IHDR":
            head = body
        elif kind == b"IDAT":
            packed += body
        elif kind == b"iTXt":
            keyword, _, rest = body.partition(b"\0")
            texts[keyword] = rest[4:]
    assert at == len(data)
    width, height, *kinds = struct.unpack(">IIBBBBB", head)
    assert kinds == [8, 2, 0, 0, 0]
    whole, step = zlib.decompress(packed), 1 + 3 * width
    assert len(whole) == step * height
    assert set(whole[::step]) == {0}
    return DecodedPng(width, height, tuple(whole[at + 1 : at + step] for at in range(0, len(whole), step)), texts)
