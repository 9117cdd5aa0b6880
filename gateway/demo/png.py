"""PNG in and out, with zlib and nothing else (the W3C's "Portable Network Graphics (PNG) Specification").

Pictures go by row by row, so that a large one, or one that pretends to be, never lies unpacked in memory.
"""

import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import BinaryIO

from attrs import frozen

MAX_SIDE = 4_096
"""Of a picture that is read, in pixels."""
MAX_UNPACKED_MB = 16
"""What its rows may take: 2048x2048 pixels of four bytes. Each is undone byte by byte, at two seconds for all of it."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"

_MAX_CHUNKS = 65_536
_PIECE = 65_536
_LEVEL = 3
_GREY, _TRUE, _INDEXED, _GREY_ALPHA, _TRUE_ALPHA = 0, 2, 3, 4, 6
_SAMPLES = {_GREY: 1, _TRUE: 3, _INDEXED: 1, _GREY_ALPHA: 2, _TRUE_ALPHA: 4}
_DEPTHS = {_GREY: (1, 2, 4, 8, 16), _INDEXED: (1, 2, 4, 8)}
_BYTE = 8
_OPAQUE = bytes([255])
_LOW_BYTE = 0 if sys.byteorder == "little" else 3


class PngError(ValueError):
    """Bytes that are no PNG, or a broken one, or one that is too large. The message is for whoever sent them."""


@frozen
class Head:
    """What a PNG says of itself, with its palette and what of it is transparent."""

    width: int
    height: int
    depth: int
    colour: int
    interlaced: bool
    palette: bytes = b""
    transparency: bytes = b""

    @property
    def has_alpha(self) -> bool:
        """Whether any pixel of it can be transparent."""
        return self.colour in {_GREY_ALPHA, _TRUE_ALPHA} or (self.colour != _TRUE and bool(self.transparency))

    @property
    def row_bytes(self) -> int:
        """Of one row as it is packed, its filter's number not counted."""
        return -(-self.width * _SAMPLES[self.colour] * self.depth // _BYTE)

    @property
    def pixel_bytes(self) -> int:
        """How far apart the bytes are that a filter compares."""
        return max(1, _SAMPLES[self.colour] * self.depth // _BYTE)


class PngReader:
    """A PNG in a file, which is read from its beginning whenever its rows are asked for.

    Args:
        file: anything that can be read and sought. Raises ``PngError`` where it is no PNG that can be read.
        is_over: whether nobody waits for its rows any more; asked before each.
    """

    def __init__(self, file: BinaryIO, *, is_over: Callable[[], bool] = bool) -> None:
        self._file = file
        self._is_over = is_over
        self.head, self._begin = _read_head(file)

    def read_rows(self) -> Iterator[bytes]:
        """Every row, a byte for each sample. Raises ``PngError`` where they are broken, interlaced or for nobody."""
        if self.head.interlaced:
            raise PngError("An interlaced PNG cannot be read.")
        spread = _find_spread(self.head)
        above = bytes(self.head.row_bytes)
        for packed in self._unpack():
            if self._is_over():
                raise PngError("The PNG is read for nobody.")
            above = _unfilter(packed[0], packed[1:], above, self.head.pixel_bytes)
            yield spread(above)

    def to_rgb(self, row: bytes) -> bytes:
        """A row's colours, three bytes a pixel, whatever is transparent."""
        match self.head.colour:
            case 2:
                return row
            case 3:
                tables = (self.head.palette[channel::3].ljust(256, b"\0") for channel in range(3))
                return interleave(*(row.translate(table) for table in tables))
            case 6:
                return interleave(row[0::4], row[1::4], row[2::4])
            case colour:
                grey = row[::2] if colour == _GREY_ALPHA else row
                return interleave(grey, grey, grey)

    def to_alpha(self, row: bytes) -> bytes:
        """How opaque each pixel of a row is, 0 to 255."""
        match self.head.colour:
            case 3:
                return row.translate(self.head.transparency.ljust(256, b"\xff"))
            case 4 | 6:
                samples = _SAMPLES[self.head.colour]
                return row[samples - 1 :: samples]
            case 0 if self.head.transparency:
                return row.translate(_grey_key(self.head))
            case _:
                return _OPAQUE * self.head.width

    def _unpack(self) -> Iterator[bytes]:
        """Every row as it is packed, its filter first; no more is unpacked than the picture has rows."""
        length = 1 + self.head.row_bytes
        left = self.head.height
        kept = bytearray()
        unpacker = zlib.decompressobj()
        for piece in self._read_data():
            data = piece
            while data and left:
                try:
                    kept += unpacker.decompress(data, max(_PIECE, length))
                except zlib.error as fault:
                    raise PngError("The PNG's data is damaged.") from fault
                data = unpacker.unconsumed_tail
                rows = min(len(kept) // length, left)
                left -= rows
                yield from (bytes(kept[at : at + length]) for at in range(0, rows * length, length))
                del kept[: rows * length]
        if left:
            raise PngError("The PNG ends before its last row.")

    def _read_data(self) -> Iterator[bytes]:
        self._file.seek(self._begin)
        for kind, length in _read_chunks(self._file):
            if kind == b"IDAT":
                yield from _read_body(self._file, kind, length)
            elif kind == b"IEND":
                return
            else:
                self._file.seek(length + 4, 1)


def write_png(width: int, height: int, rows: Iterable[bytes], *, note: str = "") -> bytes:
    """A truecolour PNG of ``rows`` of three bytes a pixel; ``note`` goes with it as its description."""
    packer = zlib.compressobj(_LEVEL)
    data = [packer.compress(b"\0" + row) for row in rows]
    data.append(packer.flush())
    head = struct.pack(">IIBBBBB", width, height, 8, _TRUE, 0, 0, 0)
    text = (b"iTXt", b"Description\0\0\0\0\0" + note.encode(errors="replace")) if note else None
    parts = [(b"IHDR", head), *([text] if text else []), (b"IDAT", b"".join(data)), (b"IEND", b"")]
    return SIGNATURE + b"".join(_write_chunk(kind, body) for kind, body in parts)


def interleave(red: bytes, green: bytes, blue: bytes) -> bytes:
    """Three channels -> their pixels."""
    row = bytearray(3 * len(red))
    row[0::3], row[1::3], row[2::3] = red, green, blue
    return bytes(row)


def _write_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(body, zlib.crc32(kind)))


def _read_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Kind and length of each chunk; whoever asks for the next has read the last."""
    for _ in range(_MAX_CHUNKS):
        head = file.read(8)
        if len(head) != 8:  # noqa: PLR2004 - a length and a kind
            raise PngError("The PNG is cut off.")
        length, kind = struct.unpack(">I4s", head)
        if length > 1 << 31:
            raise PngError("The PNG is damaged.")
        yield kind, length
    raise PngError("The PNG has too many chunks.")


def _read_body(file: BinaryIO, kind: bytes, length: int) -> Iterator[bytes]:
    """A chunk's body in pieces; after the last its checksum is looked at."""
    checksum = zlib.crc32(kind)
    while length:
        piece = file.read(min(length, _PIECE))
        if not piece:
            raise PngError("The PNG is cut off.")
        length -= len(piece)
        checksum = zlib.crc32(piece, checksum)
        yield piece
    if file.read(4) != struct.pack(">I", checksum):
        raise PngError("The PNG is damaged.")


def _read_head(file: BinaryIO) -> tuple[Head, int]:
    """Everything before the pixels, and where those begin."""
    file.seek(0)
    if file.read(len(SIGNATURE)) != SIGNATURE:
        raise PngError("It is not a PNG.")
    found: dict[bytes, bytes] = {}
    for kind, length in _read_chunks(file):
        if kind == b"IDAT":
            return _check_head(found), file.tell() - 8
        if kind in {b"IHDR", b"PLTE", b"tRNS"} and length <= 3 * 256:
            found[kind] = b"".join(_read_body(file, kind, length))
        elif kind == b"IEND":
            break
        else:
            file.seek(length + 4, 1)
    raise PngError("The PNG has no pixels.")


def _check_head(found: dict[bytes, bytes]) -> Head:
    try:
        width, height, depth, colour, packing, filtering, interlacing = struct.unpack(">IIBBBBB", found[b"IHDR"])
    except (KeyError, struct.error) as fault:
        raise PngError("The PNG does not say what it is.") from fault
    known = depth in _DEPTHS.get(colour, (8, 16)) and (packing, filtering) == (0, 0) and interlacing in {0, 1}
    if colour not in _SAMPLES or not known or not width or not height:
        raise PngError("The PNG is of a kind that does not exist.")
    if width > MAX_SIDE or height > MAX_SIDE:
        raise PngError(f"The PNG is larger than {MAX_SIDE}x{MAX_SIDE} pixels.")
    palette = found.get(b"PLTE", b"")
    if colour == _INDEXED and (not palette or len(palette) % 3):
        raise PngError("The PNG has no palette.")
    head = Head(width, height, depth, colour, bool(interlacing), palette, found.get(b"tRNS", b"")[:256])
    if head.row_bytes * height > MAX_UNPACKED_MB * 1024 * 1024:
        raise PngError(f"The PNG has more than {MAX_UNPACKED_MB} MB of pixels.")
    return head


def _grey_key(head: Head) -> bytes:
    """The table in which the one shade of grey that is transparent is 0."""
    key = int.from_bytes(head.transparency[:2], "big")
    shade = key >> _BYTE if head.depth > _BYTE else _spread_shade(key, head.depth)
    return bytes(0 if value == shade else 255 for value in range(256))


def _spread_shade(shade: int, depth: int) -> int:
    return (shade & ((1 << depth) - 1)) * 255 // ((1 << depth) - 1)


def _find_spread(head: Head) -> Callable[[bytes], bytes]:
    """What turns a row into a byte for each sample: shades of grey reach to 255, an index stays what it is."""
    depth = head.depth
    if depth == _BYTE:
        return bytes
    if depth > _BYTE:
        return lambda row: row[::2]
    mask = (1 << depth) - 1
    scale = (lambda value: _spread_shade(value, depth)) if head.colour == _GREY else int
    table = [bytes(scale(byte >> shift & mask) for shift in range(_BYTE - depth, -1, -depth)) for byte in range(256)]
    return lambda row: b"".join(map(table.__getitem__, row))[: head.width]


def _unfilter(kind: int, row: bytes, above: bytes, step: int) -> bytes:
    """A row as it was before it was filtered (section 9 of the specification)."""
    match kind:
        case 0:
            return row
        case 1:
            return _join(step, row, (_sum(row[channel::step]) for channel in range(step)))
        case 2:
            return _add(row, above)
        case 3 | 4:
            follow = _average if kind == 3 else _paeth  # noqa: PLR2004 - the specification's number
            return _join(step, row, (follow(row[channel::step], above[channel::step]) for channel in range(step)))
        case _:
            raise PngError("The PNG's data is damaged.")


def _join(step: int, row: bytes, channels: Iterable[bytes]) -> bytes:
    whole = bytearray(len(row))
    for channel, samples in enumerate(channels):
        whole[channel::step] = samples
    return bytes(whole)


def _sum(row: bytes) -> bytes:
    return struct.pack(f"={len(row)}I", *accumulate(row))[_LOW_BYTE::4]


def _add(one: bytes, other: bytes) -> bytes:
    """Byte by byte, each modulo 256: the sevens of bits are added as one long number, the eighths apart."""
    length = len(one)
    low, high = int.from_bytes(b"\x7f" * length, "big"), int.from_bytes(b"\x80" * length, "big")
    a, b = int.from_bytes(one, "big"), int.from_bytes(other, "big")
    return (((a & low) + (b & low)) ^ ((a ^ b) & high)).to_bytes(length, "big")


def _average(row: bytes, above: bytes) -> bytes:
    left = 0
    out = bytearray()
    for value, up in zip(row, above, strict=True):
        left = value + (left + up >> 1) & 255
        out.append(left)
    return bytes(out)


def _paeth(row: bytes, above: bytes) -> bytes:
    """Each byte is a difference from whichever neighbour, left, above or between, is nearest to their estimate."""
    left = corner = 0
    out = bytearray()
    for value, up in zip(row, above, strict=True):
        far_left, far_up = up - corner, left - corner
        far_corner = far_left + far_up
        # Thrice abs(), written out: this loop is the reader's whole cost, and calls would double it.
        if far_left < 0:
            far_left = -far_left
        if far_up < 0:
            far_up = -far_up
        if far_corner < 0:
            far_corner = -far_corner
        if far_left > far_up or far_left > far_corner:
            left = up if far_up <= far_corner else corner
        left = value + left & 255
        corner = up
        out.append(left)
    return bytes(out)
