"""Draws a scene: rows of pixels, by bytes that are copied and never counted one by one.

A picture is made of columns first: each is a slice of the sky's colours and a slice of every ridge's, all of which are
columns themselves, so that one costs a few copies. Then it is turned into rows, and what is small and lies flat (stars,
windows, water, birds) is laid over those.
"""

from collections.abc import Iterator, Sequence

from attrs import frozen

from gateway.demo.ridges import Ridge, Window, raise_city, raise_ridges
from gateway.demo.scenery import Colour, Scene, imagine, mix
from gateway.demo.sky import Sky

_WATERY = {"sea", "lake"}


@frozen
class Raster:
    """A picture, row by row, three bytes a pixel."""

    width: int
    height: int
    rows: tuple[bytes, ...]


def draw(prompt: str, index: int, width: int, height: int) -> Raster:
    """The picture of a prompt; ``index`` is its number among those that were asked for together."""
    scene = imagine(prompt, index)
    ridges = raise_ridges(scene, width, height)
    windows: list[Window] = []
    if scene.kind == "city":
        streets, windows = raise_city(scene, width, height)
        ridges = [*ridges, *streets]
    rows = _turn(list(_columns(scene, ridges, width, height)), width, height)
    _scatter_stars(scene, rows, ridges)
    for window in windows:
        _light(rows, window)
    if scene.kind in _WATERY:
        _flood(scene, rows)
    _release_birds(scene, rows)
    return Raster(width, height, tuple(map(bytes, rows)))


def pixelate(raster: Raster, block: int) -> Raster:
    """The same in squares of one colour, as if it were not yet finished."""
    rows: list[bytes] = []
    for top in range(0, raster.height, block):
        row = raster.rows[top]
        wide = bytearray(3 * raster.width)
        for channel in range(3):
            samples = row[channel :: 3 * block]
            spread = bytearray(len(samples) * block)
            for at in range(block):
                spread[at::block] = samples
            wide[channel::3] = spread[: raster.width]
        rows += [bytes(wide)] * min(block, raster.height - top)
    return Raster(raster.width, raster.height, tuple(rows))


def average(one: bytes, other: bytes) -> bytes:
    """Half of each, byte by byte: as two long numbers, halved without what would run into the next byte."""
    low = int.from_bytes(b"\x7f" * len(one), "big")
    a, b = int.from_bytes(one, "big"), int.from_bytes(other, "big")
    return ((a & b) + (((a ^ b) >> 1) & low)).to_bytes(len(one), "big")


def _columns(scene: Scene, ridges: Sequence[Ridge], width: int, height: int) -> Iterator[bytes]:
    """Every column from the left: its sky, and before it each ridge down to where a nearer one begins."""
    sky = Sky(scene, width, height)
    nearest_first = tuple(reversed(ridges))
    for x in range(width):
        column = sky.column(x)
        bottom = height
        edges = []
        for ridge in nearest_first:
            top = max(ridge.tops[x], 0.0)
            row = int(top)
            if row >= bottom:
                continue
            column[3 * row : 3 * bottom] = ridge.column[3 * row : 3 * bottom]
            if ridge.cap is not None:
                snow = min(row + ridge.depths[x], bottom)
                column[3 * row : 3 * snow] = ridge.cap[3 * row : 3 * snow]
            edges.append((3 * row, top - row))
            bottom = row
        for at, free in edges:  # the part of its first pixel that a ridge leaves free shows what is behind it
            if at:
                for byte in range(at, at + 3):
                    column[byte] += int((column[byte - 3] - column[byte]) * free)
        yield bytes(column)


def _turn(columns: list[bytes], width: int, height: int) -> list[bytearray]:
    """Columns -> rows."""
    whole = b"".join(columns)
    columns.clear()
    rows = []
    for y in range(height):
        row = bytearray(3 * width)
        for channel in range(3):
            row[channel::3] = whole[3 * y + channel :: 3 * height]
        rows.append(row)
    return rows


def _scatter_stars(scene: Scene, rows: list[bytearray], ridges: Sequence[Ridge]) -> None:
    width, height = len(rows[0]) // 3, len(rows)
    seed = scene.seed("stars")
    for _ in range(scene.stars * width * height // 1_000_000):
        x, up, bright = int(seed.unit() * width), seed.unit() ** 1.3, seed.unit()
        y = int(up * scene.ground * height)
        if y >= min((ridge.tops[x] for ridge in ridges), default=height) - 2:
            continue
        share = (0.25 + 0.75 * bright**3) * (1 - 0.7 * up)
        _dot(rows, x, y, scene.palette.light, share)
        if bright > 0.93:  # noqa: PLR2004 - a few have rays
            for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                _dot(rows, x + dx, y + dy, scene.palette.light, share * 0.45)


def _dot(rows: list[bytearray], x: int, y: int, colour: Colour, share: float) -> None:
    if 0 <= y < len(rows) and 0 <= 3 * x < len(rows[y]):
        row = rows[y]
        for channel, target in enumerate(colour):
            value = row[3 * x + channel]
            row[3 * x + channel] = value + int((target - value) * share)


def _light(rows: list[bytearray], window: Window) -> None:
    left, right, top, bottom = window.box
    for row in rows[top:bottom]:
        row[3 * left : 3 * right] = bytes(window.colour) * (right - left)


def _flood(scene: Scene, rows: list[bytearray]) -> None:
    """Fill everything below the horizon with water, in which what is above stands on its head."""
    width, height = len(rows[0]) // 3, len(rows)
    shore = round(scene.ground * height)
    seed = scene.seed("water")
    deep = mix(scene.palette.zenith, scene.palette.near, 0.45)
    for y in range(shore, height):
        depth = (y - shore) / (height - shore)
        # Waves are longer and slower the nearer they are; they fetch the picture from a little beside.
        swell = int(seed.between(-1, 1) * (1 + 5 * depth) * height / 1024)
        above = rows[max(shore - 1 - int((y - shore) * 1.15 + abs(swell) * 2), 0)]
        moved = bytes(_shift(above, swell))
        tint = bytes(mix(mix(scene.palette.horizon, deep, 0.55), deep, depth)) * width
        half = average(moved, tint)
        calm = seed.unit() > 2 * depth
        rows[y] = bytearray(average(half, moved) if calm else half)
    _glitter(scene, rows, shore)


def _shift(row: bytearray, pixels: int) -> bytearray:
    """A row moved to the left, or to the right where that is negative; its last pixel stands for what comes in."""
    if pixels < 0:
        return row[:3] * -pixels + row[: 3 * pixels]
    return row[3 * pixels :] + row[-3:] * pixels


def _glitter(scene: Scene, rows: list[bytearray], shore: int) -> None:
    """The road of light on the water below the sun, and the backs of waves."""
    width, height = len(rows[0]) // 3, len(rows)
    seed = scene.seed("glitter")
    for _ in range(int(height * 0.9)):
        depth = seed.unit() ** 1.6
        y = shore + int(depth * (height - shore))
        spread = (0.012 + 0.1 * depth) * width
        on_road = seed.unit() < 0.62  # noqa: PLR2004 - most of it
        centre = scene.light_x * width + spread * (seed.unit() + seed.unit() - 1) if on_road else seed.unit() * width
        half = (0.002 + 0.016 * depth * seed.unit()) * width
        left, right = max(int(centre - half), 0), min(int(centre + half) + 1, width)
        if y < height and left < right:
            part = bytes(rows[y][3 * left : 3 * right])
            light = bytes(scene.palette.light if on_road else scene.palette.horizon) * (right - left)
            mixed = average(part, light)
            rows[y][3 * left : 3 * right] = mixed if on_road else average(part, mixed)


def _release_birds(scene: Scene, rows: list[bytearray]) -> None:
    """A few birds, each two strokes of a wing."""
    width, height = len(rows[0]) // 3, len(rows)
    seed = scene.seed("birds")
    middle_x, middle_y = seed.between(0.2, 0.8), seed.between(0.14, 0.34)
    for _ in range(scene.birds):
        x = int((middle_x + seed.between(-0.14, 0.14)) * width)
        y = int((middle_y + seed.between(-0.07, 0.07)) * height)
        span = max(int(height * seed.between(0.006, 0.016)), 2)
        for off in range(-span, span + 1):
            part = abs(off) / span
            lift = int(span * (0.75 * part - 0.95 * part * part) * 1.4)
            for thick in range(1 + (part < 0.6) * (span > 6)):  # noqa: PLR2004 - thicker at the body
                _dot(rows, x + off, y - lift + thick, scene.palette.near, 0.85)
