"""What stands on the ground of a scene: ridges behind each other, woods, snow and houses.

A ridge is its height at every ``x``, and a column of colours as tall as the picture, of which each ``x`` shows a part.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from attrs import frozen

from gateway.demo.png import interleave
from gateway.demo.scenery import Colour, Palette, Scene, Seed, mix, ridge

_SNOW: Colour = (246, 248, 252)
_SAND: Colour = (226, 168, 104)
_STONE: Colour = (122, 134, 160)
_LAMP: Colour = (255, 214, 128)
_FLAT = 0.12
_ROCK = 0.55


@frozen
class Ridge:
    """One ridge. Where it has a cap, that covers its first ``depths`` pixels.

    Attributes:
        tops: its height at every x, in pixels from above; what is behind the point shows the coast's softness.
        column: its colours at every y.
        cap: the colours of snow on it.
        depths: how deep the snow lies at every x, in pixels.
    """

    tops: Sequence[float]
    column: bytes
    cap: bytes | None = None
    depths: Sequence[int] = ()


@frozen
class Window:
    """A lit window: left, right, top and bottom in pixels, and its colour."""

    box: tuple[int, int, int, int]
    colour: Colour


def shade(height: int, stops: Sequence[tuple[float, Colour]]) -> bytes:
    """A column of colours that pass into each other between ``stops``, each of which is at a share of the height."""
    places = [(round(share * height), colour) for share, colour in stops]
    colours = [places[0][1]] * max(places[0][0], 0)
    for (top, above), (bottom, below) in pairwise(places):
        colours += [mix(above, below, step / (bottom - top)) for step in range(bottom - top)]
    colours += [places[-1][1]] * (height - len(colours))
    return bytes(value for colour in colours[:height] for value in colour)


def fade(column: bytes, colour: Colour, share: float) -> bytes:
    """A column as it looks with a veil of another colour before it."""
    channels = []
    for channel, target in enumerate(colour):
        table = bytes(round(value + (target - value) * share) for value in range(256))
        channels.append(column[channel::3].translate(table))
    return interleave(channels[0], channels[1], channels[2])


def raise_ridges(scene: Scene, width: int, height: int) -> list[Ridge]:
    """Every ridge of a scene, the farthest first."""
    match scene.kind:
        case "sea":
            raised = _islands(scene, width, height)
        case "lake":
            raised = _shore(scene, width, height)
        case "mountains":
            rocks = [_mountain(scene, width, height, at) for at in range(2)]
            raised = [*rocks, *_hills(scene, width, height, lift=0.1)]
        case "desert":
            raised = _hills(scene, width, height, rough=0.3, colour=_SAND)
        case "city":
            raised = _hills(scene, width, height, lift=0.02)[:1]
        case kind:
            raised = _hills(scene, width, height, wooded=kind == "forest")
    return raised


def _hills(
    scene: Scene,
    width: int,
    height: int,
    *,
    lift: float = 0.0,
    rough: float = 0.42,
    wooded: bool = False,
    colour: Colour | None = None,
) -> list[Ridge]:
    """Ridges from the horizon down to the lower edge, each nearer, darker and higher than the one behind it."""
    made = []
    palette = scene.palette if colour is None else scene.palette.earthen(colour)
    for at in range(scene.layers):
        near = at / max(scene.layers - 1, 1)
        seed = scene.seed(f"hill {at}")
        base = scene.ground + lift + (0.9 - scene.ground - lift) * near**1.25
        swing = seed.between(0.035, 0.07) * (1 + 0.5 * near)
        line = ridge(seed, width, width / height, rough=rough)
        tops = [(base - swing * (value + 0.3)) * height for value in line]
        if wooded:
            tops = _wood(tops, seed, height, near)
        made.append(Ridge(tops, _land(palette, near, base - swing, height)))
    return made


def _land(palette: Palette, near: float, top: float, height: int) -> bytes:
    """The colours of a ridge: its own above, and below them the haze before the next."""
    colour = mix(palette.far, palette.near, near**0.8)
    haze = mix(colour, palette.horizon, 0.42 * (1 - near) + 0.04)
    return shade(height, ((max(top, 0.0), colour), (min(top + 0.26, 1.0), haze)))


def _mountain(scene: Scene, width: int, height: int, at: int) -> Ridge:
    """A rocky ridge with snow on whatever of it is high."""
    seed = scene.seed(f"mountain {at}")
    palette = scene.palette
    line = ridge(seed, width, width / height * 1.5, rough=_ROCK, sharp=True)
    grain = ridge(seed, width, width / height * 11, rough=0.8, sharp=True)
    base = scene.ground + 0.02 + 0.1 * at
    swing = seed.between(0.2, 0.26) - 0.07 * at
    tops = [(base - swing * (0.5 + value) + 0.008 * bump) * height for value, bump in zip(line, grain, strict=True)]
    snowline = (base - swing * 0.72) * height
    depths = [max(0, int((snowline - top) * (0.8 + 0.7 * bump))) for top, bump in zip(tops, grain, strict=True)]
    column = _land(palette, 0.25 + 0.3 * at, base - swing, height)
    snow = mix(_SNOW, palette.far, 0.55) if palette.dark else mix(_SNOW, palette.horizon, 0.2)
    return Ridge(tops, column, fade(column, snow, 0.85 - 0.2 * at), depths)


def _wood(tops: list[float], seed: Seed, height: int, near: float) -> list[float]:
    """The same ridge with firs on it."""
    wooded = list(tops)
    width = len(tops)
    x = seed.between(-8, 0)
    size = height * (0.022 + 0.075 * near)
    while x < width:
        tall = size * seed.between(0.6, 1.25)
        half = tall * seed.between(0.2, 0.27)
        root = tops[min(max(int(x), 0), width - 1)] + 2
        for at in range(max(int(x - half), 0), min(int(x + half) + 1, width)):
            off = abs(at - x) / half
            # Three tiers of branches: the outline falls, and steps back out, and falls again.
            step = (off * 3) % 1
            wooded[at] = min(wooded[at], root - tall * (1 - off) - tall * 0.09 * step)
        x += half * seed.between(0.7, 1.7)
    return wooded


def _islands(scene: Scene, width: int, height: int) -> list[Ridge]:
    """What lies on the horizon of a sea: flat, far, and not everywhere."""
    made = []
    for at in range(1 + scene.layers % 2):
        seed = scene.seed(f"island {at}")
        line = ridge(seed, width, width / height * 0.8, rough=0.4)
        sunk = seed.between(0.1, 0.4)
        tops = [(scene.ground + 0.004 - _FLAT * max(0.0, value - sunk)) * height for value in line]
        tops = [height if top > scene.ground * height else top for top in tops]
        made.append(Ridge(tops, _land(scene.palette, 0.15 + 0.3 * at, scene.ground - 0.1, height)))
    return made


def _shore(scene: Scene, width: int, height: int) -> list[Ridge]:
    """Mountains and woods behind a lake."""
    rocks = [_mountain(scene, width, height, at) for at in range(2)]
    made = []
    for at in range(2):
        seed = scene.seed(f"shore {at}")
        line = ridge(seed, width, width / height, rough=0.4)
        near = 0.45 + 0.4 * at
        base = scene.ground - 0.045 * (1 - at) + 0.012
        tops = _wood([(base - 0.03 * (value + 0.7)) * height for value in line], seed, height, 0.15 + 0.2 * at)
        made.append(Ridge(tops, _land(scene.palette, near, base - 0.06, height)))
    return [*rocks, *made]


def raise_city(scene: Scene, width: int, height: int) -> tuple[list[Ridge], list[Window]]:
    """Rows of houses, the farthest first, and the windows that are lit in them."""
    ridges: list[Ridge] = []
    windows: list[Window] = []
    palette = scene.palette.earthen(_STONE)
    for at in range(3):
        seed = scene.seed(f"street {at}")
        near = (at + 1) / 3
        base = scene.ground + 0.08 * at
        tops = [base * height] * width
        lit: list[Window] = []
        for left, right, top in _houses(seed, width, height, base, near):
            tops[left:right] = [float(top)] * (right - left)
            lit += _lights(scene, seed, (left, right, top, round((base + 0.12) * height)), height)
        windows = [window for window in windows if _is_before(window, tops)] + lit
        ridges.append(Ridge(tops, _land(palette, near, base - 0.25, height)))
    return ridges, windows


def _houses(seed: Seed, width: int, height: int, base: float, near: float) -> Iterator[tuple[int, int, int]]:
    """Left, right and roof of each house of a street."""
    x = 0.0
    while x < width:
        wide = height * seed.between(0.028, 0.07) * (0.7 + 0.6 * near)
        tall = seed.between(0.05, 0.2) + (0.16 if seed.unit() > 0.82 else 0)  # noqa: PLR2004 - one in six is a tower
        left, right = round(x), min(round(x + wide), width)
        yield left, right, round((base - tall * (1.15 - 0.35 * near)) * height)
        if tall > 0.26:  # noqa: PLR2004 - a tower has a spire
            middle = (left + right) // 2
            yield middle - 1, min(middle + 1, width), round((base - tall * (1.15 - 0.35 * near) - 0.05) * height)
        x += wide + (height * 0.02 * seed.unit() if seed.unit() > 0.7 else 0)  # noqa: PLR2004 - some stand apart


def _lights(scene: Scene, seed: Seed, box: tuple[int, int, int, int], height: int) -> Iterator[Window]:
    left, right, top, bottom = box
    step = max(round(height * 0.014), 3)
    size = max(step // 2, 1)
    share = 0.42 if scene.palette.dark else 0.14
    colour = mix(_LAMP, scene.palette.light, 0.3)
    for y in range(top + step, bottom - size, step):
        for x in range(left + size, right - size - 1, step):
            if seed.unit() < share:
                yield Window((x, x + size, y, y + size), colour)


def _is_before(window: Window, tops: Sequence[float]) -> bool:
    """Whether a window is not hidden by a nearer street."""
    left, right, _, bottom = window.box
    return bottom < min(tops[left:right], default=0)
