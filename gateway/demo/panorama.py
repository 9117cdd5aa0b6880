"""A scene as a film pans over it: bands that lie above each other, and each moves at a speed of its own.

Every band is whole rows of squares, so that all of a row moves alike; what stands in a band ends in one colour for each
of its rows, in which the next one begins, so that no seam shows however they have moved. All of it goes round: behind
the right end of a picture comes its left one.
"""

from collections.abc import Iterator, Sequence

from attrs import frozen

from gateway.demo.bands import Band, Box, raise_bands
from gateway.demo.h264 import SQUARE
from gateway.demo.planes import Channels
from gateway.demo.scenery import Colour, Scene
from gateway.demo.sky import Sky

_BANDS = 4
_GROWTH = 1.36
_SEAM = 6  # a part of its width in which the sky's right end becomes its left one
_SHADES = 48


@frozen
class Panorama:
    """What is to be filmed: its ``rows``, and before which row of squares each band ends."""

    rows: Sequence[Channels]
    ends: Sequence[int]


def unroll(scene: Scene, columns: int, squares: int) -> Panorama:
    """Draw a scene so many columns and rows of squares large, its last column like its first."""
    width, height = (columns - 1) * SQUARE, squares * SQUARE
    ends = _lay_out(scene.ground, squares)
    bands = raise_bands(scene, width, height, [end * SQUARE for end in ends])
    rows = _turn(list(_columns(scene, bands, width, height)), height)
    _scatter_stars(scene, rows, min(bands[0].tops))
    for band in bands:
        for box in band.boxes:
            _fill(rows, box)
    return Panorama([_close(row) for row in rows], ends)


def _lay_out(ground: float, squares: int) -> list[int]:
    """Before which row of squares the sky ends, and then each band of the land, the nearer the higher."""
    ends = [round(ground * squares * 0.9)]
    shares = [_GROWTH**at for at in range(_BANDS)]
    for at in range(1, _BANDS + 1):
        ends.append(ends[0] + round((squares - ends[0]) * sum(shares[:at]) / sum(shares)))
    return ends


def _columns(scene: Scene, bands: Sequence[Band], width: int, height: int) -> Iterator[bytes]:
    """Every column from the left: its sky, and before it each band from its top down to the lower edge."""
    seam = width // _SEAM
    sky = Sky(scene, width + seam, height)
    for x in range(width):
        column = sky.column(x + seam)
        if x >= width - seam:
            column = _blend(column, sky.column(x + seam - width), (x - width + seam) / seam)
        for band in bands:
            top = band.tops[x]
            row = int(top)
            behind = column[3 * row : 3 * row + 3]
            column[3 * row :] = band.column[3 * row :]
            for depths, colours in band.coats:
                bottom = min(row + depths[x], band.last - 1)
                if bottom > row:
                    column[3 * row : 3 * bottom] = colours[3 * row : 3 * bottom]
            for byte, value in enumerate(behind, 3 * row):  # what of its first pixel is free shows what is behind it
                column[byte] += int((value - column[byte]) * (top - row))
        yield bytes(column)


def _blend(one: bytearray, other: bytearray, share: float) -> bytearray:
    """A column between two; ``share`` is the other's."""
    step = round(share * _SHADES)
    low = bytes(value * (_SHADES - step) // _SHADES for value in range(256))
    high = bytes((value * step + _SHADES - 1) // _SHADES for value in range(256))
    mixed = int.from_bytes(one.translate(low), "big") + int.from_bytes(other.translate(high), "big")
    return bytearray(mixed.to_bytes(len(one), "big"))


def _turn(columns: list[bytes], height: int) -> list[list[bytearray]]:
    """Columns -> the channels of every row."""
    whole = b"".join(columns)
    columns.clear()
    return [[bytearray(whole[3 * y + channel :: 3 * height]) for channel in range(3)] for y in range(height)]


def _close(row: list[bytearray]) -> Channels:
    """A row, and behind its end a square of its beginning."""
    red, green, blue = (bytes(channel + channel[:SQUARE]) for channel in row)
    return red, green, blue


def _fill(rows: list[list[bytearray]], box: Box) -> None:
    left, right, top, bottom = box.place
    for row in rows[top:bottom]:
        for channel, value in zip(row, box.colour, strict=True):
            channel[left:right] = bytes([value]) * (right - left)


def _scatter_stars(scene: Scene, rows: list[list[bytearray]], bottom: float) -> None:
    width, height = len(rows[0][0]), len(rows)
    seed = scene.seed("stars")
    for _ in range(scene.stars * width * height // 1_000_000):
        x, up, bright = int(seed.unit() * width), seed.unit() ** 1.3, seed.unit()
        y = int(up * (bottom - 2))
        share = (0.25 + 0.75 * bright**3) * (1 - 0.7 * up)
        for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)) if bright > 0.9 else ((0, 0),):  # noqa: PLR2004 - a few are large
            _dot(rows[max(y - dy, 0)], (x + dx) % width, scene.palette.light, share)


def _dot(row: list[bytearray], x: int, colour: Colour, share: float) -> None:
    for channel, target in zip(row, colour, strict=True):
        channel[x] += int((target - channel[x]) * share)
