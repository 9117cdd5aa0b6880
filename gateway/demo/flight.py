"""What flies through a film: birds by day, and now and then a falling star by night."""

import math
from collections.abc import Iterator

from attrs import frozen

from gateway.demo.h264 import SQUARE
from gateway.demo.motion import Shift, shift_square
from gateway.demo.planes import Planes, to_samples
from gateway.demo.scenery import Scene, Seed

_BEATS = 2.1  # of a wing in a second
_STAR_EVERY_S = 2.6
_STAR_S = 0.8
_TRAIL = 48
_HALF = SQUARE // 2
_BLUE, _RED = SQUARE * SQUARE, SQUARE * SQUARE + _HALF * _HALF  # where a square's colour differences begin

Dab = tuple[int, int, float]
"""A pixel's place, and how much of it is covered."""


@frozen
class Bird:
    """A bird: where it is at first, how fast it flies, in pixels and seconds, how wide a wing is, and when it beats."""

    x: float
    y: float
    speed: float
    span: int
    phase: float

    def draw(self, time_s: float, width: int) -> Iterator[Dab]:
        """Its pixels."""
        beat = math.sin(2 * math.pi * (_BEATS * time_s + self.phase))
        middle = self.x + self.speed * time_s
        high = self.y + 0.35 * self.span * math.sin(1.3 * time_s + 6 * self.phase) + 0.25 * self.span * beat
        for off in range(-self.span, self.span + 1):
            part = abs(off) / self.span
            lift = self.span * ((0.25 + 0.6 * beat) * part + 0.55 * part * (1 - part))
            top = high - lift
            thick = 0.6 + 0.16 * self.span * (1 - part)
            for y in range(math.floor(top), math.ceil(top + thick)):
                yield round(middle + off) % width, y, 0.9 * (min(y + 1, top + thick) - max(y, top))


class Flock:
    """Whatever flies in a scene.

    Args:
        scene: what is filmed.
        seen: its first picture.
        sky: how many rows of squares are sky.
    """

    def __init__(self, scene: Scene, seen: Planes, sky: int) -> None:
        self._scene, self._seen, self._sky = scene, seen, sky
        self._width, self._height = len(seen.luma[0]), len(seen.luma)
        palette = scene.palette
        self._colour = to_samples(palette.light if palette.dark else palette.near)
        self._birds = tuple(self._hatch())

    def paint(self, time_s: float, shift: Shift) -> dict[tuple[int, int], bytes]:
        """The squares (row, column) in which something flies by then, when the sky is shifted so far."""
        squares: dict[tuple[int, int], bytearray] = {}
        for x, y, share in self._draw(time_s):
            place = (y // SQUARE, x // SQUARE)
            if not 0 <= y < self._sky * SQUARE:
                continue
            if place not in squares:
                squares[place] = bytearray(shift_square(self._seen, *place, shift))
            _dab(squares[place], x % SQUARE, y % SQUARE, share, self._colour)
        return {place: bytes(square) for place, square in squares.items()}

    def _draw(self, time_s: float) -> Iterator[Dab]:
        for bird in self._birds:
            yield from bird.draw(time_s, self._width)
        if self._scene.palette.dark:
            yield from self._fall(time_s)

    def _hatch(self) -> Iterator[Bird]:
        seed = self._scene.seed("birds")
        speed = seed.between(0.035, 0.06) * self._width * seed.pick((1, -1))
        x, y = seed.between(0.25, 0.75) * self._width, seed.between(0.14, 0.26) * self._height
        for _ in range(self._scene.birds):
            yield Bird(
                x=x + seed.between(-0.13, 0.13) * self._width,
                y=y + seed.between(-0.07, 0.07) * self._height,
                speed=speed * seed.between(0.9, 1.1),
                span=max(round(seed.between(0.009, 0.016) * math.sqrt(self._width * self._height)), 3),
                phase=seed.unit(),
            )

    def _fall(self, time_s: float) -> Iterator[Dab]:
        """A falling star, if there is one: brightest at its head."""
        number, since = divmod(time_s, _STAR_EVERY_S)
        gone = (since - 0.5) / _STAR_S
        if not 0 < gone < 1:
            return
        seed = Seed("star", *self._scene.words, int(number))
        x, y = seed.between(0.15, 0.85) * self._width, seed.between(0.04, 0.16) * self._height
        side, step = seed.pick((1, -1)), min(self._width, self._height) / 280
        bright = math.sin(math.pi * gone)
        for at in range(_TRAIL):
            far = gone * 2.4 * _TRAIL - at
            if far > 0:
                share = bright * (1 - at / _TRAIL) ** 1.5
                yield int(x + side * far * step) % self._width, int(y + 0.45 * far * step), share


def _dab(square: bytearray, x: int, y: int, share: float, colour: tuple[int, int, int]) -> None:
    luma, blue, red = colour
    half = y // 2 * _HALF + x // 2
    for at, target, part in (
        (y * SQUARE + x, luma, share),
        (_BLUE + half, blue, share / 3),
        (_RED + half, red, share / 3),
    ):
        square[at] += int((target - square[at]) * part)
