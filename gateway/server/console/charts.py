"""The geometry of charts: stacked bars over time, which a template renders as SVG."""

import math
from collections.abc import Callable, Iterator, Sequence

from gateway.frozen import frozen

WIDTH, HEIGHT = 720, 220
_LEFT_MARGIN, _RIGHT_MARGIN, _TOP_MARGIN, _BOTTOM_MARGIN = 72, 8, 14, 30
_TICK_COUNT = 4
_MAX_LABELS = 7
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_GAP_SHARE = 0.2
_MAX_BAR_WIDTH = 36.0
_MIN_POSITIVE = 1e-9
"""Values below this count as zero."""


@frozen
class Series:
    """A series of values, one for each point in time. ``kind`` is the CSS class."""

    name: str
    kind: str
    values: Sequence[float]


@frozen
class Bar:
    """One segment of a stacked bar."""

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
    left: int = _LEFT_MARGIN
    right: int = WIDTH - _RIGHT_MARGIN
    top: int = _TOP_MARGIN
    bottom: int = HEIGHT - _BOTTOM_MARGIN


def draw_chart(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    format_value: Callable[[float], str],
    *,
    whole_numbers: bool = False,
) -> Chart:
    """Compute a chart with stacked bars, one for each label in ``labels``.

    The ``series`` are drawn from the bottom of each stack to its top. With ``whole_numbers``, the axis has no
    fractions.
    """
    sums = [sum(values) for values in zip(*(line.values for line in series), strict=True)] if series else []
    top = find_top(max(sums, default=0.0), whole_numbers=whole_numbers)
    step = (WIDTH - _LEFT_MARGIN - _RIGHT_MARGIN) / max(len(labels), 1)
    scale = (HEIGHT - _TOP_MARGIN - _BOTTOM_MARGIN) / top
    label_interval = max(1, math.ceil(len(labels) / _MAX_LABELS))
    heights = (top * tick_index / _TICK_COUNT for tick_index in range(_TICK_COUNT + 1))
    return Chart(
        title,
        [bar for index in range(len(labels)) for bar in _stack(series, index, step, scale)],
        [
            ChartColumn(
                round(_LEFT_MARGIN + index * step, 2),
                round(step, 2),
                f"{label}: {_format_column(series, index, format_value)}",
            )
            for index, label in enumerate(labels)
        ],
        rows=[Tick(round(HEIGHT - _BOTTOM_MARGIN - height * scale, 2), format_value(height)) for height in heights],
        marks=[
            Tick(round(_LEFT_MARGIN + (index + 0.5) * step, 2), label)
            for index, label in enumerate(labels)
            if index % label_interval == 0
        ],
        legend=series,
        table=[(label, [format_value(line.values[index]) for line in series]) for index, label in enumerate(labels)],
    )


def _stack(series: Sequence[Series], index: int, step: float, scale: float) -> Iterator[Bar]:
    width = min(step * (1 - _GAP_SHARE), _MAX_BAR_WIDTH)
    x, y = _LEFT_MARGIN + index * step + (step - width) / 2, float(HEIGHT - _BOTTOM_MARGIN)
    for line in series:
        height = max(line.values[index], 0) * scale
        if height:
            y -= height
            yield Bar(round(x, 2), round(y, 2), round(width, 2), round(height, 2), line.kind)


def _format_column(series: Sequence[Series], index: int, format_value: Callable[[float], str]) -> str:
    return (
        ", ".join(f"{line.name} {format_value(line.values[index])}" for line in series if line.values[index])
        or "\N{EN DASH}"
    )


def find_top(max_value: float, *, whole_numbers: bool = False) -> float:
    """Return the end of an axis: a round number of at least ``max_value`` that the ticks divide evenly."""
    if max_value < _MIN_POSITIVE:
        return float(_TICK_COUNT) if whole_numbers else 1.0
    magnitude = 10.0 ** math.floor(math.log10(max_value / _TICK_COUNT))
    steps = (magnitude * step for step in _STEPS if not whole_numbers or (magnitude * step).is_integer())
    return _TICK_COUNT * next(
        (step for step in steps if step * _TICK_COUNT >= max_value * (1 - 1e-9)),
        max(math.ceil(max_value / _TICK_COUNT), 1),
    )
