"""The geometry of charts: nothing is drawn outside, and what is drawn is what it says."""

import re
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.server.console.charts import HEIGHT, ChartContent, Series, draw_bars, draw_lines, find_top

AMOUNTS = st.floats(min_value=0, max_value=1e12, allow_nan=False)
NOTHING = "\N{EN DASH}"


def write(value: float | None) -> str:
    return NOTHING if value is None else f"${value:g}"


def fill(labels: Sequence[str], *series: Series) -> ChartContent:
    return ChartContent("spend", "Spent", labels, series, write)


NUMBER = r"-?(?:\d+(?:\.\d+)?|\.\d+)"


def read_outline(path: str) -> list[float]:
    """The heights of the columns of an outline, which begins and ends at the axis."""
    heights, height = [], 0.0
    inner = path.removeprefix(f"M0 {HEIGHT}").removesuffix(f"V{HEIGHT}")
    commands = re.findall(rf"(?:v({NUMBER}))?h1", inner)
    assert len(inner) == sum(len(f"v{one}h1") if one else len("h1") for one in commands)
    for step in commands:
        height -= float(step or 0)
        heights.append(height)
    return heights


@given(values=st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=60))
def test_every_bar_stands_within_the_plot_and_stacks_do_not_overlap(values: list[tuple[float, float]]) -> None:
    lower, upper = [one for one, _ in values], [two for _, two in values]
    labels = [str(index) for index in range(len(values))]
    chart = draw_bars(fill(labels, Series("a", "series-1", lower), Series("b", "bad", upper)))
    axis_end = find_top(max(one + two for one, two in values))
    sums = {"series-1": lower, "bad": [one + two for one, two in values]}
    assert [shape.kind for shape in chart.shapes] in (["bad", "series-1"], ["bad"], ["series-1"], [])
    for shape in chart.shapes:
        heights = read_outline(shape.path)
        assert len(heights) == chart.bucket_count == len(values)
        for height, amount in zip(heights, sums[shape.kind], strict=True):
            assert -0.01 <= height <= HEIGHT + 0.01
            assert abs(height - amount / axis_end * HEIGHT) <= 0.51, "a stack ends at its sum's pixel"
    drawn = dict(
        zip((shape.kind for shape in chart.shapes), map(read_outline, (s.path for s in chart.shapes)), strict=True)
    )
    if len(drawn) == len(sums):
        assert all(low <= high + 0.01 for low, high in zip(drawn["series-1"], drawn["bad"], strict=True))


@given(values=st.lists(st.none() | AMOUNTS, min_size=1, max_size=60))
def test_a_line_has_every_value_and_is_broken_where_there_is_none(values: list[float | None]) -> None:
    labels = [str(index) for index in range(len(values))]
    chart = draw_lines(fill(labels, Series("p50", "series-1", values)))
    path = "".join(shape.path for shape in chart.shapes)
    runs = "".join(" " if value is None else "x" for value in values).split()
    assert path.count("M") == len(runs)
    assert path.count("l") == sum(len(run) - 1 for run in runs)
    axis_end, y = find_top(max((value for value in values if value is not None), default=0.0)), 0.0
    shown = [(index, value) for index, value in enumerate(values) if value is not None]
    points = re.findall(rf"([Ml])({NUMBER}) ?({NUMBER})", path)
    for (index, value), (command, x_text, y_text) in zip(shown, points, strict=True):
        y = float(y_text) + (y if command == "l" else 0)
        assert float(x_text) in ({1} if command == "l" else {index + 0.5, index + 0.25})
        assert y == round(HEIGHT * (1 - value / axis_end))


@given(most=AMOUNTS, whole=st.booleans())
def test_the_axis_ends_above_the_highest_value_and_not_far_above_it(most: float, *, whole: bool) -> None:
    top = find_top(most, whole_numbers=whole)
    assert top >= most * (1 - 1e-9)
    assert top <= max(most * 2.6, 4 if whole or most < 1e-8 else 0)
    if whole:
        assert top % 4 == 0


def test_the_numbers_are_told_for_who_cannot_see_them() -> None:
    chart = draw_bars(fill(["Mon", "Tue"], Series("spent", "series-1", [0.5, None])))
    assert chart.texts == [["$0.5", NOTHING]]


def test_a_chart_of_nothing_has_axes() -> None:
    chart = draw_bars(fill([]))
    assert chart.shapes == []
    assert len(chart.rows) == 5


def test_marks_leave_room_for_each_other() -> None:
    labels = [str(day) for day in range(90)]
    chart = draw_bars(fill(labels, Series("a", "series-1", [1.0] * 90)))
    assert len(chart.marks) <= 6
    assert all(two.at - one.at > 100 / 7 for one, two in pairwise(chart.marks))
