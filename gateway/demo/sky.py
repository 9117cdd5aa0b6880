"""The sky of a scene, column by column: its colours, the sun or the moon with its glow, and the clouds."""

import math
from collections.abc import Iterator

from attrs import frozen

from gateway.demo.ridges import fade, shade
from gateway.demo.scenery import Scene, mix

_RINGS = 44
_GLOW_REACH = 0.62


@frozen
class _Cloud:
    """One cloud: its left end, what it makes of every byte behind it, and from where to where it is at every x."""

    left: int
    veil: bytes
    reaches: tuple[tuple[int, int], ...]


class Sky:
    """The sky over a scene.

    Args:
        scene: what is drawn.
        width: of the picture, in pixels.
        height: of the picture, in pixels.
    """

    def __init__(self, scene: Scene, width: int, height: int) -> None:
        self._scene, self._width, self._height = scene, width, height
        palette = scene.palette
        stops = ((0.0, palette.zenith), (scene.ground * 0.62, palette.middle), (scene.ground, palette.horizon))
        self._plain = shade(height, stops)
        self._x, self._y = round(scene.light_x * width), round(scene.light_y * height)
        self._rings = tuple(self._find_rings())
        self._shone: dict[int, bytes] = {}
        self._clouds = tuple(cloud for number in range(scene.clouds) for cloud in self._find_cloud(number))

    def column(self, x: int) -> bytearray:
        """What is above, and behind everything, at ``x``."""
        column = bytearray(self._shine(abs(x - self._x)))
        if self._scene.palette.dark:
            self._eclipse(column, x)
        for cloud in self._clouds:
            if 0 <= x - cloud.left < len(cloud.reaches):
                top, bottom = cloud.reaches[x - cloud.left]
                column[3 * top : 3 * bottom] = column[3 * top : 3 * bottom].translate(cloud.veil)
        return column

    def _shine(self, off: int) -> bytes:
        """The sky that far beside the light, whichever side."""
        if off not in self._shone:
            column = bytearray(self._plain)
            for radius, lit in self._rings:
                if radius > off:
                    half = round(math.sqrt(radius * radius - off * off))
                    top, bottom = max(self._y - half, 0), min(self._y + half, self._height)
                    column[3 * top : 3 * bottom] = lit[3 * top : 3 * bottom]
            self._shone[off] = bytes(column)
        return self._shone[off]

    def _find_rings(self) -> Iterator[tuple[float, bytes]]:
        """Radius and colours of each ring around the light, the widest first, and then the light itself."""
        palette, disc = self._scene.palette, self._scene.light_r * self._height
        reach = _GLOW_REACH * self._height * (0.6 if palette.dark else 1)
        warm = mix(palette.light, palette.horizon, 0.35)
        for ring in range(_RINGS):
            near = ring / _RINGS
            share = (0.45 if palette.dark else 0.8) * near**2.4
            yield disc + (reach - disc) * (1 - near) ** 1.3, fade(self._plain, warm, share)
        for soft, share in ((1.012, 0.6), (1.0, 1.0)):
            yield disc * soft, fade(self._plain, palette.light, share)

    def _eclipse(self, column: bytearray, x: int) -> None:
        """Take from the moon what makes it a crescent."""
        disc = self._scene.light_r * self._height * 1.02
        off, down = x - self._x - disc * 0.42, self._y - disc * 0.2
        radius = disc * 0.92
        beside = abs(x - self._x)
        if beside < disc and abs(off) < radius:
            moon = math.sqrt(disc * disc - beside * beside)
            shadow = math.sqrt(radius * radius - off * off)
            top, bottom = round(max(self._y - moon, down - shadow)), round(min(self._y + moon, down + shadow))
            if 0 <= top < bottom:
                lit = self._rings[_RINGS - 1][1]
                column[3 * top : 3 * bottom] = lit[3 * top : 3 * bottom]

    def _find_cloud(self, number: int) -> Iterator[_Cloud]:
        """One cloud: the same shape in three sizes, each a veil over the one before."""
        scene, height = self._scene, self._height
        seed = scene.seed(f"cloud {number}")
        long = seed.between(0.14, 0.3) * height
        x, y = seed.between(-0.1, 1.1) * self._width, seed.between(0.06, 0.72) * scene.ground * height
        thick = long * seed.between(0.12, 0.2)
        puffs = [(seed.between(-0.6, 0.6), seed.between(0.26, 0.5), seed.between(0.4, 1.0)) for _ in range(7)]
        white, share = (110, 0.12) if scene.palette.dark else (250, 0.24)
        veil = bytes(round(value + (white - value) * share) for value in range(256))
        for grown in (1.0, 0.86, 0.7):
            left, right = max(int(x - long), 0), min(int(x + long), self._width)
            reaches = []
            for at in range(left, right):
                off = (at - x) / long
                up = max([_bump((off - middle) / (half * grown)) * tall for middle, half, tall in puffs]) * grown
                down = min(_bump(off / grown) * 0.3, up) * grown
                reaches.append((max(int(y - thick * up), 0), max(int(y + thick * down), 0)))
            yield _Cloud(left, veil, tuple(reaches))


def _bump(off: float) -> float:
    """A half circle of radius 1, by its height at ``off``."""
    return math.sqrt(1 - off * off) if -1 < off < 1 else 0.0
