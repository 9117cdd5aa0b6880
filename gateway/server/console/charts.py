"""The geometry of charts: stacked bars and lines over time, which a template renders as SVG.

A plot is one unit wide for each bucket, and ``HEIGHT`` high. It is stretched to the width of the page; the texts
around it are not. The bars of a series are one outline, filled down to the axis and drawn over the series above: that
takes half the bytes of separate bars. A mask makes the gaps between bars. ``static/charts.js`` adds a tooltip, zooming
and hiding of series; without it a chart is complete.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from gateway.frozen import frozen

HEIGHT = 160
TOP = 10
"""Space above the plot, in pixels."""
_TICK_COUNT = 4
_MAX_LABELS = 6
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MIN_POSITIVE = 1e-9
"""Values below this count as zero."""

FormatValue = Callable[[float | None], str]


@frozen
class Series:
    """A series of values, one for each bucket; None where there is no value.

    ``kind`` is the CSS class, ``total`` the written value of the whole period, and ``href`` leads to its requests.
    """

    name: str
    kind: str
    values: Sequence[float | None]
    total: str = ""
    href: str = ""


@frozen
class Shape:
    """All bars, or the whole line, of one series: an SVG path."""

    kind: str
    path: str
    is_line: bool


@frozen
class Tick:
    """A label of an axis. ``at`` is in pixels from the top, or in percent of the plot's width."""

    at: float
    text: str


@frozen
class Chart:
    """A chart's complete geometry, ready to draw.

    ``rows`` are the labels of the vertical axis, ``marks`` those of the horizontal one. ``texts`` has the written
    values of each series.
    """

    name: str
    title: str
    shapes: Sequence[Shape]
    rows: Sequence[Tick]
    marks: Sequence[Tick]
    legend: Sequence[Series]
    texts: Sequence[Sequence[str]]
    bucket_count: int


@frozen
class ChartContent:
    """What a chart shows: ``series`` of values for each of ``labels``, written by ``format_value``.

    With ``whole_numbers``, the axis has no fractions.
    """

    name: str
    title: str
    labels: Sequence[str]
    series: Sequence[Series]
    format_value: FormatValue
    whole_numbers: bool = False


def draw_bars(content: ChartContent) -> Chart:
    """Compute a chart of stacked bars: the first of the series is at the bottom."""
    columns = zip(*(line.values for line in content.series), strict=True)
    sums = [sum(value or 0 for value in values) for values in columns]
    top = find_top(max(sums, default=0.0), whole_numbers=content.whole_numbers)
    bars = _stack_bars(content.series, len(content.labels), top)
    shapes = [Shape(line.kind, path, is_line=False) for line, path in bars]
    return _add_axes(content, shapes[::-1], top)  # a lower series hides what others have of its bars


def draw_lines(content: ChartContent) -> Chart:
    """Compute a chart of lines. A line is broken where a value is missing."""
    values = [value for line in content.series for value in line.values if value is not None]
    top = find_top(max(values, default=0.0), whole_numbers=content.whole_numbers)
    lines = [Shape(line.kind, _draw_line(line.values, top), is_line=True) for line in content.series]
    return _add_axes(content, lines, top)


def _add_axes(content: ChartContent, shapes: Sequence[Shape], top: float) -> Chart:
    labels, format_value = content.labels, content.format_value
    interval = max(1, math.ceil(len(labels) / _MAX_LABELS))
    heights = [top * number / _TICK_COUNT for number in range(_TICK_COUNT + 1)]
    return Chart(
        content.name,
        content.title,
        [shape for shape in shapes if shape.path],
        rows=[Tick(round(TOP + HEIGHT * (1 - height / top), 1), format_value(height)) for height in heights],
        marks=[
            Tick(round(100 * (index + 0.5) / len(labels), 2), label)
            for index, label in enumerate(labels)
            if index % interval == 0
        ],
        legend=content.series,
        texts=[list(map(format_value, line.values)) for line in content.series],
        bucket_count=len(labels),
    )


def _stack_bars(series: Sequence[Series], count: int, top: float) -> Iterator[tuple[Series, str]]:
    ends, written_ends = [float(HEIGHT)] * count, [float(HEIGHT)] * count
    for line in series:
        is_seen = False
        for index, value in enumerate(line.values):
            height = max(value or 0, 0) / top * HEIGHT
            if height:
                bottom = written_ends[index]
                ends[index] -= height
                written_ends[index] = _round_end(ends[index], bottom)
                is_seen = is_seen or written_ends[index] < bottom
        yield line, _draw_outline(written_ends) if is_seen else ""


def _draw_outline(ends: Sequence[float]) -> str:
    """Return the outline of bars from the axis up to ``ends``, as an SVG path. Each bar is one unit wide."""
    steps = pairwise((float(HEIGHT), *ends))
    edges = (f"v{_format_number(end - last)}h1" if end != last else "h1" for last, end in steps)
    return f"M0 {HEIGHT}{''.join(edges)}V{HEIGHT}"


def _round_end(end: float, bottom: float) -> float:
    """Round the end of a bar that begins at ``bottom`` to a whole pixel; to a tenth if less than one would be left."""
    rounded = float(round(end))
    return rounded if bottom - rounded >= 1 else min(round(end, 1), bottom)


def _draw_line(values: Sequence[float | None], top: float) -> str:
    parts: list[str] = []
    last_y: int | None = None
    for index, value in enumerate(values):
        if value is None:
            last_y = None
            continue
        y = round(HEIGHT * (1 - value / top))
        is_last = index + 1 == len(values) or values[index + 1] is None
        if last_y is not None:
            parts.append(f"l1{'' if y < last_y else ' '}{y - last_y}")
        elif is_last:  # a single value is a short stroke
            parts.append(f"M{_format_number(index + 0.25)} {y}h.5")
        else:
            parts.append(f"M{index}.5 {y}")
        last_y = y
    return "".join(parts)


def _format_number(number: float) -> str:
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return text.replace("0.", ".", 1) if abs(number) < 1 else text


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
