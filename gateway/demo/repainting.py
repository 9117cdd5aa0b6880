"""Paints over pictures that somebody sent: where their mask is transparent, or a veil over all of them."""

from collections.abc import Callable, Iterator
from itertools import repeat
from operator import itemgetter

from gateway.demo.drawing import Raster, average
from gateway.demo.png import PngReader, interleave

SIZES: tuple[tuple[int, int], ...] = ((256, 256), (512, 512), (1024, 1024), (1536, 1024), (1024, 1536))
"""Widths and heights that the demo paints, in pixels."""

_OPEN = bytes(255 if alpha < 128 else 0 for alpha in range(256))  # noqa: PLR2004 - half transparent


def choose_size(width: int, height: int) -> tuple[int, int]:
    """The picture's own size if the demo paints that, else the large one whose shape comes nearest."""
    if (width, height) in SIZES:
        return width, height
    return min(SIZES[2:], key=lambda size: abs(size[0] * height - size[1] * width) / (size[1] * height))


def read_canvas(source: PngReader, width: int, height: int) -> Raster:
    """A picture at that size, what does not fit cut off on both sides. Raises ``PngError``."""
    return Raster(width, height, tuple(_fit(source, source.to_rgb, 3, (width, height))))


def read_mask(mask: PngReader, width: int, height: int) -> tuple[bytes, ...]:
    """What of a picture is to be painted over, row by row: 255 where it is, else 0. Raises ``PngError``."""
    return tuple(row.translate(_OPEN) for row in _fit(mask, mask.to_alpha, 1, (width, height)))


def repaint(canvas: Raster, mask: tuple[bytes, ...] | None, drawing: Raster) -> Raster:
    """Put a drawing where the mask is open, and where there is no mask half of it over everything."""
    if mask is None:
        rows = tuple(map(average, canvas.rows, drawing.rows))
    else:
        rows = tuple(map(_choose, mask, drawing.rows, canvas.rows))
    return Raster(canvas.width, canvas.height, rows)


def _choose(mask: bytes, painted: bytes, kept: bytes) -> bytes:
    wide = int.from_bytes(interleave(mask, mask, mask), "big")
    old, new = int.from_bytes(kept, "big"), int.from_bytes(painted, "big")
    return (old ^ ((old ^ new) & wide)).to_bytes(len(kept), "big")


def _fit(source: PngReader, read: Callable[[bytes], bytes], samples: int, size: tuple[int, int]) -> Iterator[bytes]:
    """A picture's rows, of so many samples a pixel, as ``size`` has them: each pixel the nearest of the source's."""
    width, height = size
    head = source.head
    scale = max(width / head.width, height / head.height)
    pick = itemgetter(*_places(head.width, width, scale))
    rows = source.read_rows()
    at, fitted = -1, b""
    for wanted in _places(head.height, height, scale):
        if wanted > at:
            for _ in repeat(None, wanted - at - 1):
                next(rows)
            row = read(next(rows))
            at = wanted
            fitted = _spread([bytes(pick(row[sample::samples])) for sample in range(samples)])
        yield fitted


def _spread(channels: list[bytes]) -> bytes:
    return channels[0] if len(channels) == 1 else interleave(channels[0], channels[1], channels[2])


def _places(have: int, want: int, scale: float) -> list[int]:
    """Which of the source's ``have`` pixels in a line stand for each of ``want``, its middle in the middle."""
    start = (have - want / scale) / 2
    return [min(max(int(start + (at + 0.5) / scale), 0), have - 1) for at in range(want)]
