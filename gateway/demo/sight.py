"""What the demo sees of a picture that somebody sent with a call for a film: that it is another one, and its colour."""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import BinaryIO

from gateway.demo.png import SIGNATURE, PngError, PngReader
from gateway.demo.scenery import Colour

_PIECE = 256 * 1024
_DIGEST_BYTES = 8
_MAX_SAMPLES = 512 * 1024  # of a large picture its upper part is enough: a row costs a thousandth of a second
_STEP = 8


def look_at(file: BinaryIO) -> tuple[bytes, Colour | None]:
    """A digest of a picture, and its colour where it is a PNG that can be read."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    file.seek(0)
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.digest(), _find_colour(file)


def _find_colour(file: BinaryIO) -> Colour | None:
    """What a PNG's pixels have in common: of those rows that can be read, the mean of some."""
    file.seek(0)
    if not file.read(len(SIGNATURE)).startswith(SIGNATURE):
        return None
    rows: list[bytes] = []
    try:
        reader = PngReader(file)
        rows += _sample(reader)
    except PngError:  # it is a picture for somebody else's eyes; that it was sent still counts
        return None
    pixels = b"".join(rows)
    if not pixels:
        return None
    red, green, blue = (sum(pixels[channel::3]) * 3 // len(pixels) for channel in range(3))
    return red, green, blue


def _sample(reader: PngReader) -> Iterator[bytes]:
    most = max(_MAX_SAMPLES // reader.head.row_bytes, 1)
    for row in islice(reader.read_rows(), 0, most, _STEP):
        yield reader.to_rgb(row)
