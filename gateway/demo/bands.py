"""What stands in the bands of a panorama: ridges, woods, snow, dunes, waves and houses, all of which go round."""

import math
from collections.abc import Iterator, Sequence

import attrs
from attrs import frozen

from gateway.demo.ridges import fade, shade
from gateway.demo.scenery import Colour, Scene, Seed, mix

_OCTAVES = 5
_ROCK = 0.55
_SNOW: Colour = (246, 248, 252)
_SAND: Colour = (226, 168, 104)
_STONE: Colour = (122, 134, 160)
_FOAM: Colour = (240, 248, 250)
_LAMP: Colour = (255, 214, 128)
_RIMS = ((0.026, 0.1), (0.012, 0.2), (0.005, 0.34))  # how deep light lies on a ridge, and how bright

Coat = tuple[Sequence[int], bytes]
"""How deep something lies at every x, and its colours at every y."""


@frozen
class Box:
    """A lit window: left, right, top and bottom in pixels, and its colour."""

    place: tuple[int, int, int, int]
    colour: Colour


@frozen
class Band:
    """What stands in some rows of the picture.

    Attributes:
        last: the row before which it ends, and has nothing on it any more.
        tops: its height at every x, in pixels from the picture's top.
        column: its colours at every y.
        coats: what lies on it, the deepest first.
        boxes: what is laid over all of it.
    """

    last: int
    tops: Sequence[float]
    column: bytes
    coats: Sequence[Coat] = ()
    boxes: Sequence[Box] = ()


@frozen
class Ground:
    """Where a band is to be raised, in a picture ``width`` pixels round and ``height`` high; ``near``: from 0 to 1."""

    scene: Scene
    seed: Seed
    width: int
    height: int
    first: int
    last: int
    near: float

    @property
    def deep(self) -> int:
        """How many rows there are for it."""
        return self.last - self.first

    @property
    def unit(self) -> int:
        """What things have their size from, in pixels."""
        return min(self.width, self.height)

    def colours(self, tint: Colour | None = None) -> bytes:
        """The colours of land there: its own above, below them the haze before the next."""
        palette = self.scene.palette if tint is None else self.scene.palette.earthen(tint)
        colour = mix(palette.far, palette.near, self.near**0.8)
        haze = mix(colour, palette.horizon, 0.55 * (1 - self.near) + 0.03)
        return shade(self.height, ((self.first / self.height, colour), (self.last / self.height, haze)))

    def line(self, high: float, low: float, pitch: float, *, rough: float, sharp: bool = False) -> list[float]:
        """A ridge, between two shares of the band from above."""
        waves = wave(self.seed, self.width, pitch * self.width / self.unit, rough=rough, sharp=sharp)
        middle, swing = (high + low) / 2 * self.deep, (low - high) / 2 * self.deep
        return [self.first + middle - swing * value for value in waves]

    def rims(self, column: bytes, strength: float = 1.0) -> list[Coat]:
        """Light that lies on its edge."""
        light = mix(self.scene.palette.light, self.scene.palette.horizon, 0.3)
        return [
            (
                (max(round(deep * self.unit * (0.5 + self.near)), 1),) * self.width,
                fade(column, light, share * strength),
            )
            for deep, share in _RIMS
        ]


def raise_bands(scene: Scene, width: int, height: int, ends: Sequence[int]) -> list[Band]:
    """Every band of a scene: what stands before the sky, and then what lies below, down to each of ``ends``."""
    firsts = [round(ends[0] * 0.56), *ends]
    bands: list[Band] = []
    for at, (first, last) in enumerate(zip(firsts, ends, strict=False)):
        near = at / (len(ends) - 1)
        ground = Ground(scene, scene.seed(f"band {at}"), width, height, first, last, near)
        bands += _raise(ground, at, len(ends) - 1)
    return bands


def _raise(ground: Ground, at: int, most: int) -> list[Band]:
    """The bands of one place; in that of the sky, ``at`` 0, several stand behind each other."""
    match ground.scene.kind:
        case "sea":
            made = [_waves(ground, 1.0)] if at else [_islands(ground), _horizon(ground)]
        case "lake":
            made = [_waves(ground, 0.45) if at > 1 else _wood(ground)] if at else _range(ground)
        case "mountains":
            made = [_mountain(ground) if at == 1 else _wood(ground) if at >= most - 1 else _hill(ground)]
            made = made if at else _range(ground)
        case "forest":
            made = [_wood(ground) if at else _hill(ground)]
        case "desert":
            made = [_dune(ground)]
        case "city":
            skyline = attrs.evolve(ground, first=round(ground.first + 0.4 * ground.deep))
            made = [_wood(ground) if at == most else _street(ground if at else skyline)]
        case _:
            made = [_wood(ground, sparse=True) if at == most else _hill(ground)]
    return made


def wave(seed: Seed, width: int, aspect: float, *, rough: float, sharp: bool = False) -> list[float]:
    """A line from -1 to 1 that goes round; ``rough`` near 1 is rock, near 0 a dune; ``sharp``: peaks."""
    line = [0.0] * width
    for octave in range(_OCTAVES):
        cycles = max(round(seed.between(0.8, 1.25) * 2.1**octave * aspect), octave + 1)
        phase, strength = seed.between(0, 2 * math.pi), rough**octave
        turn = 2 * math.pi * cycles / width
        steps = [math.sin(turn * x + phase) for x in range(width)]
        if sharp:
            steps = [math.asin(step) * 2 / math.pi for step in steps]
        line = [value + strength * step for value, step in zip(line, steps, strict=True)]
    low, high = min(line), max(line)
    return [2 * (value - low) / (high - low) - 1 for value in line]


def _hill(ground: Ground) -> Band:
    column = ground.colours()
    return Band(ground.last, ground.line(0.05, 0.66, 0.9, rough=0.42), column, ground.rims(column))


def _range(ground: Ground) -> list[Band]:
    """Rocks behind rocks."""
    back = _mountain(ground)
    first = round(ground.first + 0.42 * ground.deep)
    return [back, _mountain(attrs.evolve(ground, seed=ground.scene.seed("rocks"), first=first, near=ground.near + 0.1))]


def _mountain(ground: Ground) -> Band:
    """A rocky ridge with snow on whatever of it is high."""
    palette = ground.scene.palette
    tops = ground.line(0.04, 0.74, 1.3, rough=_ROCK, sharp=True)
    grain = wave(ground.seed, ground.width, 11 * ground.width / ground.unit, rough=0.8, sharp=True)
    tops = [top + 0.006 * ground.unit * (bump + 1) for top, bump in zip(tops, grain, strict=True)]
    snowline = ground.first + 0.36 * ground.deep
    depths = [max(0, int((snowline - top) * (0.85 + 0.6 * bump))) for top, bump in zip(tops, grain, strict=True)]
    column = ground.colours()
    snow = mix(_SNOW, palette.far, 0.55) if palette.dark else mix(_SNOW, palette.horizon, 0.2)
    return Band(ground.last, tops, column, [(depths, fade(column, snow, 0.8))])


def _dune(ground: Ground) -> Band:
    """Sand, lit where it faces the light."""
    column = ground.colours(_SAND)
    tops = ground.line(0.05, 0.7, 0.8, rough=0.3)
    far = ground.width // 24
    lean = [tops[x - far] - tops[(x + far) % ground.width] for x in range(ground.width)]
    lit = [int(max(0.0, 1.1 * rise)) for rise in lean]
    light = mix(ground.scene.palette.light, _SAND, 0.4)
    return Band(ground.last, tops, column, [(lit, fade(column, light, 0.26)), *ground.rims(column, 0.6)])


def _wood(ground: Ground, *, sparse: bool = False) -> Band:
    """A ridge with firs on it."""
    tops = ground.line(0.62, 0.82, 1.0, rough=0.42)
    wooded = list(tops)
    size = ground.deep * 0.5
    x = 0.0
    while x < ground.width:
        tall = size * ground.seed.between(0.55, 1.15)
        half = tall * ground.seed.between(0.2, 0.27)
        for place in range(int(x - half), int(x + half) + 1):
            off = abs(place - x) / half
            step = (off * 3) % 1  # three tiers of branches: the outline falls, and steps back out, and falls again
            root = tops[int(x)] + 2
            at = place % ground.width
            wooded[at] = min(wooded[at], root - tall * (1 - off) - tall * 0.09 * step)
        gap = ground.seed.between(0.6, 1.6)
        x += half * (gap if not sparse or ground.seed.unit() < 0.6 else 7 * gap)  # noqa: PLR2004 - some stand together
    column = ground.colours()
    return Band(ground.last, wooded, column, ground.rims(column, 0.5))


def _islands(ground: Ground) -> Band:
    """What lies on the horizon of a sea: flat, far, and not everywhere."""
    line = wave(ground.seed, ground.width, ground.width / ground.unit * 0.8, rough=0.4)
    sunk, high = ground.seed.between(0.1, 0.4), 0.14 * ground.unit
    sea = _find_horizon(ground)
    tops = [sea + 2 - high * max(0.0, value - sunk) for value in line]
    return Band(
        ground.last, tops, shade(ground.height, ((0.0, mix(ground.scene.palette.far, ground.scene.palette.near, 0.3)),))
    )


def _horizon(ground: Ground) -> Band:
    """Where a sea ends."""
    return Band(ground.last, [_find_horizon(ground)] * ground.width, _water(ground))


def _find_horizon(ground: Ground) -> float:
    return ground.last - 0.012 * ground.unit


def _water(ground: Ground) -> bytes:
    palette = ground.scene.palette
    deep = mix(palette.zenith, palette.near, 0.35)
    upper, lower = (mix(palette.horizon, deep, share) for share in (0.35 + 0.5 * ground.near, 0.5 + 0.5 * ground.near))
    return shade(ground.height, ((ground.first / ground.height, upper), (ground.last / ground.height, lower)))


def _waves(ground: Ground, strength: float) -> Band:
    """A row of waves: pointed crests, with foam on the highest."""
    deep = ground.deep
    crests = _find_crests(ground)
    tops = [ground.first + 1 + deep * (0.62 - 0.55 * strength * crest) for crest in crests]
    column = _water(ground)
    foam = [int(0.1 * deep * strength * max(0.0, crest - 0.45)) + 1 for crest in crests]
    clear = [int(deep * (0.1 + 0.22 * strength * crest)) for crest in crests]
    light = mix(ground.scene.palette.light, ground.scene.palette.horizon, 0.5)
    shine = 0.45 if ground.scene.palette.dark else 0.75
    return Band(
        ground.last,
        tops,
        column,
        [(clear, fade(column, light, 0.12)), (foam, fade(column, mix(_FOAM, light, 0.4), shine))],
    )


def _find_crests(ground: Ground) -> list[float]:
    """From 0 in the troughs to 1 on the crests."""
    aspect = ground.width / ground.unit
    long = max(round(ground.seed.between(4.0, 5.2) * aspect * (1.6 - ground.near)), 1)
    swell = wave(ground.seed, ground.width, 0.7 * aspect, rough=0.3)
    phase = ground.seed.between(0, math.pi)
    turn = math.pi * long / ground.width
    return [
        (1 - abs(math.sin(turn * x + phase + 0.35 * high))) ** 1.4 * (0.6 + 0.4 * high) for x, high in enumerate(swell)
    ]


def _street(ground: Ground) -> Band:
    """A row of houses, with light in some of their windows."""
    column = ground.colours(_STONE)
    tops = [ground.first + 0.8 * ground.deep] * ground.width
    boxes: list[Box] = []
    for left, right, top in _houses(ground):
        tops[left:right] = [float(top)] * (right - left)
        boxes += _windows(ground, left, right, top)
    return Band(ground.last, tops, column, (), boxes)


def _houses(ground: Ground) -> Iterator[tuple[int, int, int]]:
    """Left, right and roof of each house."""
    deep, x = ground.deep, 0.0
    while x < ground.width:
        wide = ground.unit * ground.seed.between(0.03, 0.07) * (0.7 + 0.6 * ground.near)
        tower = ground.seed.unit() > 0.8  # noqa: PLR2004 - one in five is a tower
        tall = ground.seed.between(0.68, 0.94) if tower else ground.seed.between(0.25, 0.6)
        left, right = round(x), min(round(x + wide), ground.width)
        yield left, right, round(ground.last - deep * tall)
        x += wide + (0.3 * wide * ground.seed.unit() if ground.seed.unit() > 0.7 else 0)  # noqa: PLR2004 - some stand apart


def _windows(ground: Ground, left: int, right: int, top: int) -> Iterator[Box]:
    step = max(round(ground.unit * 0.011 * (0.7 + 0.6 * ground.near)), 4)
    size = step // 2
    share = 0.4 if ground.scene.palette.dark else 0.12
    colour = mix(_LAMP, ground.scene.palette.light, 0.3)
    for y in range(top + step, ground.last - step, step):
        for x in range(left + size, right - size - 1, step):
            if ground.seed.unit() < share:
                yield Box((x, x + size, y, y + size), colour)
