"""The geometry of charts: stacked bars over time, which a template renders as SVG."""

import math
from collections.abc import Callable, Iterator, Sequence

from gateway.frozen import frozen

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 8, 14, 30
_TICKS = 4
_LABELS = 7
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_GAP = 0.2
_MAX_BAR = 36.0
_LEAST = 1e-9
"""Values below this count as zero."""


@frozen
class Series:
    """A series of values, one for each point in time. ``kind``: the CSS class."""

    name: str
    kind: str
    values: Sequence[float]


@frozen
class Bar:
    """One segment of a stack."""

    x: float
    y: float
    width: float
    height: float
    kind: str


@frozen
class ChartColumn:
    """The column of a point in time, with its tooltip."""

    x: float
    width: float
    title: str


@frozen
class Tick:
    """A label of an axis."""

    at: float
    text: str


@frozen
class Chart:
    """A chart's complete geometry, ready to draw."""

    title: str
    bars: Sequence[Bar]
    columns: Sequence[ChartColumn]
    rows: Sequence[Tick]
    marks: Sequence[Tick]
    legend: Sequence[Series]
    table: Sequence[tuple[str, Sequence[str]]]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


def draw(
    title: str, places: Sequence[str], series: Sequence[Series], write: Callable[[float], str], *, whole: bool = False
) -> Chart:
    """Compute a chart with stacked bars, one for each label in ``places``.

    ``series``: from the bottom of each stack to its top. ``whole``: values are integers, and the axis has no fractions.
    """
    sums = [sum(values) for values in zip(*(one.values for one in series), strict=True)] if series else []
    top = find_top(max(sums, default=0.0), whole=whole)
    step = (WIDTH - _LEFT - _RIGHT) / max(len(places), 1)
    scale = (HEIGHT - _TOP - _BOTTOM) / top
    every = max(1, math.ceil(len(places) / _LABELS))
    heights = (top * part / _TICKS for part in range(_TICKS + 1))
    return Chart(
        title,
        [bar for index in range(len(places)) for bar in _stack(series, index, step, scale)],
        [
            ChartColumn(
                round(_LEFT + index * step, 2), round(step, 2), f"{place}: {_format_column(series, index, write)}"
            )
            for index, place in enumerate(places)
        ],
        rows=[Tick(round(HEIGHT - _BOTTOM - height * scale, 2), write(height)) for height in heights],
        marks=[
            Tick(round(_LEFT + (index + 0.5) * step, 2), place)
            for index, place in enumerate(places)
            if index % every == 0
        ],
        legend=series,
        table=[(place, [write(one.values[index]) for one in series]) for index, place in enumerate(places)],
    )


def _stack(series: Sequence[Series], index: int, step: float, scale: float) -> Iterator[Bar]:
    width = min(step * (1 - _GAP), _MAX_BAR)
    x, y = _LEFT + index * step + (step - width) / 2, float(HEIGHT - _BOTTOM)
    for one in series:
        height = max(one.values[index], 0) * scale
        if height:
            y -= height
            yield Bar(round(x, 2), round(y, 2), round(width, 2), round(height, 2), one.kind)


def _format_column(series: Sequence[Series], index: int, write: Callable[[float], str]) -> str:
    return ", ".join(f"{one.name} {write(one.values[index])}" for one in series if one.values[index]) or "\N{EN DASH}"


def find_top(most: float, *, whole: bool = False) -> float:
    """Return the end of an axis: a round number of at least ``most`` that the ticks divide evenly."""
    if most < _LEAST:
        return float(_TICKS) if whole else 1.0
    size = 10.0 ** math.floor(math.log10(most / _TICKS))
    steps = (size * step for step in _STEPS if not whole or (size * step).is_integer())
    return _TICKS * next(
        (step for step in steps if step * _TICKS >= most * (1 - 1e-9)), max(math.ceil(most / _TICKS), 1)
    )
