"""What a prompt's picture shows: a landscape, an hour and its colours, each chosen by the words or by their hash.

Everything here is pure: the same prompt and number give the same scene, at any size.
"""

import math
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Literal, TypeVar

import attrs
from attrs import frozen

Colour = tuple[int, int, int]
Kind = Literal["hills", "mountains", "forest", "sea", "lake", "desert", "city"]
_T = TypeVar("_T")

_MASK = (1 << 64) - 1
_WORD = re.compile(r"[^\W_]+")
_OCTAVES = 5


class Seed:
    """Numbers that look thrown and are not: every one follows from the words (Steele's "SplitMix64")."""

    def __init__(self, *words: object) -> None:
        text = "\0".join(map(str, words)).encode(errors="replace")
        self._state = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")

    def unit(self) -> float:
        """From 0 up to 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((self._state ^ (self._state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) / (1 << 64)

    def between(self, low: float, high: float) -> float:
        """From ``low`` up to ``high``."""
        return low + (high - low) * self.unit()

    def pick(self, choices: Sequence[_T]) -> _T:
        """One of ``choices``."""
        return choices[int(self.unit() * len(choices))]


@frozen
class Palette:
    """The colours of an hour: three of the sky from above, the sun's or moon's, the land's far away and near."""

    zenith: Colour
    middle: Colour
    horizon: Colour
    light: Colour
    far: Colour
    near: Colour
    dark: bool = False

    def tinted(self, tint: Colour) -> "Palette":
        """The same in another colour's light, of which the light itself and what is near take the least."""
        return Palette(
            zenith=mix(self.zenith, tint, 0.42),
            middle=mix(self.middle, tint, 0.46),
            horizon=mix(self.horizon, tint, 0.36),
            light=mix(self.light, tint, 0.12),
            far=mix(self.far, tint, 0.42),
            near=mix(self.near, tint, 0.2),
            dark=self.dark,
        )

    def earthen(self, colour: Colour) -> "Palette":
        """The same on ground of another colour; by night that hardly shows."""
        share = 0.2 if self.dark else 0.62
        deep = mix(colour, (60, 36, 28), 0.55)
        return attrs.evolve(self, far=mix(self.far, colour, share), near=mix(self.near, deep, share))


@frozen(kw_only=True)
class Scene:
    """What is to be drawn. Lengths are shares of the picture's height, ``light_x`` of its width.

    Attributes:
        kind: the landscape.
        hour: of the day, or its weather.
        palette: its colours.
        light_x: where the sun or moon stands, and so ``light_y``; ``light_r`` is its radius.
        ground: where the land or the water begins.
        layers: how many ridges stand behind each other.
        clouds: how many.
        birds: how many.
        stars: how many, in a picture a million pixels large.
        words: what everything else is to be derived from.
    """

    kind: Kind
    hour: str
    palette: Palette
    light_x: float
    light_y: float
    light_r: float
    ground: float
    layers: int
    clouds: int
    birds: int
    stars: int
    words: tuple[str, int]

    def seed(self, part: str) -> Seed:
        """The numbers of one part of the picture; no part moves another's."""
        return Seed(part, *self.words)


_HOURS: Mapping[str, Palette] = MappingProxyType(
    {
        "dawn": Palette(
            (78, 104, 168), (206, 166, 196), (255, 220, 178),
            (255, 246, 222), (168, 156, 186), (42, 48, 82),
        ),
        "day": Palette(
            (42, 112, 200), (116, 182, 234), (226, 240, 244),
            (255, 252, 232), (148, 186, 198), (24, 82, 66),
        ),
        "sunset": Palette(
            (50, 38, 98), (206, 84, 98), (255, 188, 96),
            (255, 236, 172), (176, 84, 100), (34, 16, 44),
        ),
        "dusk": Palette(
            (22, 26, 70), (106, 72, 138), (248, 158, 140),
            (255, 226, 200), (106, 76, 124), (20, 18, 42),
        ),
        "night": Palette(
            (5, 9, 30), (17, 32, 70), (62, 92, 138),
            (244, 242, 226), (38, 58, 94), (5, 9, 19), dark=True,
        ),
        "storm": Palette(
            (46, 56, 68), (104, 118, 128), (190, 196, 188),
            (236, 234, 218), (112, 126, 130), (24, 34, 38),
        ),
    }
)  # fmt: skip
_HOUR_WORDS = {
    "dawn": "dawn sunrise morning spring fresh early",
    "day": "day noon sunny summer bright blue happy",
    "sunset": "sunset evening autumn fall fire warm",
    "dusk": "dusk twilight dream magic romantic",
    "night": "night midnight moon star stars starry space galaxy dark cosmos universe",
    "storm": "storm rain rainy fog foggy cloudy winter gloomy thunder",
}
_KIND_WORDS: dict[Kind, str] = {
    "hills": "hill hills meadow field fields valley countryside farm",
    "mountains": "mountain mountains alps peak peaks snow winter ski glacier",
    "forest": "forest tree trees wood woods jungle pine fox bear deer",
    "sea": "sea ocean beach wave waves island sail sailing ship boat coast harbour harbor water",
    "lake": "lake river pond reflection otter duck fish swan canoe",
    "desert": "desert dune dunes sand camel sahara mars",
    "city": "city town street skyline building buildings tower robot car urban",
}
_TINTS: Mapping[str, Colour] = MappingProxyType(
    {
        "red": (214, 38, 44),
        "orange": (250, 130, 30),
        "yellow": (250, 214, 60),
        "gold": (228, 176, 54),
        "golden": (228, 176, 54),
        "green": (52, 168, 84),
        "teal": (20, 150, 150),
        "blue": (36, 96, 214),
        "purple": (128, 60, 190),
        "violet": (128, 60, 190),
        "pink": (250, 132, 178),
        "white": (244, 246, 250),
        "black": (10, 10, 14),
    }
)
_GROUNDS: Mapping[Kind, tuple[float, float]] = MappingProxyType(
    {
        "hills": (0.52, 0.62),
        "mountains": (0.5, 0.58),
        "forest": (0.5, 0.6),
        "sea": (0.56, 0.64),
        "lake": (0.56, 0.64),
        "desert": (0.56, 0.66),
        "city": (0.62, 0.7),
    }
)


def imagine(prompt: str, index: int = 0) -> Scene:
    """What the picture of a prompt shows; ``index`` is its number among those that were asked for together."""
    words = _WORD.findall(prompt.lower())
    # What the words say holds for all the pictures of a prompt; what they leave open is each one's own.
    seed = Seed("scene", prompt, index)
    meant = _steer(words, _KIND_WORDS)
    kind = seed.pick(tuple(_KIND_WORDS)) if meant is None else meant
    hour = _steer(words, _HOUR_WORDS) or seed.pick(tuple(_HOURS))
    palette = _HOURS[hour]
    for tint in (_TINTS[word] for word in words if word in _TINTS):
        palette = palette.tinted(tint)
    ground = seed.between(*_GROUNDS[kind])
    low = hour in {"sunset", "dusk", "dawn"}
    return Scene(
        kind=kind,
        hour=hour,
        palette=palette,
        light_x=seed.between(0.18, 0.82),
        light_y=ground - seed.between(0.06, 0.2) if low else seed.between(0.14, 0.28),
        light_r=seed.between(0.05, 0.085) if low else seed.between(0.035, 0.055),
        ground=ground,
        layers=3 + int(seed.unit() * 3),
        clouds=int(seed.between(0, 3)) if palette.dark else 2 + int(seed.between(0, 5)) + 4 * (hour == "storm"),
        birds=0 if palette.dark else int(seed.between(0, 8)),
        stars=int(seed.between(350, 800)) if palette.dark else 60 * (hour == "dusk"),
        words=(prompt, index),
    )


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """The colour between two; ``share`` is the other's."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def ridge(seed: Seed, width: int, aspect: float, *, rough: float, sharp: bool = False) -> list[float]:
    """A ridge from left to right, between about -1 and 1; ``rough`` near 1 is rock, near 0 a dune; ``sharp``: peaks."""
    waves = []
    for octave in range(_OCTAVES):
        pitch = seed.between(0.7, 1.3) * 2.1**octave * aspect
        waves.append((2 * math.pi * pitch / width, seed.between(0, 2 * math.pi), rough**octave))
    whole = sum(strength for _, _, strength in waves) / 1.4
    sin, asin = math.sin, math.asin
    if sharp:
        waves = [(pitch, phase, strength * 2 / math.pi) for pitch, phase, strength in waves]
        return [sum([how * asin(sin(pitch * x + phase)) for pitch, phase, how in waves]) / whole for x in range(width)]
    return [sum([how * sin(pitch * x + phase) for pitch, phase, how in waves]) / whole for x in range(width)]


def _steer(words: Sequence[str], meanings: Mapping[_T, str]) -> _T | None:
    """What the first word with a meaning means."""
    for word in words:
        for meaning, known in meanings.items():
            if word in known.split():
                return meaning
    return None
