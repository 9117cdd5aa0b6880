"""The geometry of charts: nothing is drawn outside, and what is drawn is what it says."""

import re
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.server.console.charts import BUCKET, HEIGHT, ChartContent, Series, draw_bars, draw_lines, find_top

AMOUNTS = st.floats(min_value=0, max_value=1e12, allow_nan=False)
NOTHING = "\N{EN DASH}"


def write(value: float | None) -> str:
    return NOTHING if value is None else f"${value:g}"


def fill(labels: Sequence[str], *series: Series) -> ChartContent:
    return ChartContent("spend", "Spent", labels, series, write)


@given(values=st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=60))
def test_every_bar_stands_within_the_plot_and_stacks_do_not_overlap(values: list[tuple[float, float]]) -> None:
    lower, upper = [one for one, _ in values], [two for _, two in values]
    labels = [str(index) for index in range(len(values))]
    chart = draw_bars(fill(labels, Series("a", "series-1", lower), Series("b", "bad", upper)))
    tops: dict[int, float] = {}
    for shape in chart.shapes:
        for x_text, foot_text, height_text in re.findall(r"M(\d+) ([\d.]+)v-([\d.]+)", shape.path):
            x, foot, height = int(x_text), float(foot_text), float(height_text)
            assert x % BUCKET == BUCKET // 2
            assert x < chart.width == BUCKET * len(values)
            assert -0.1 <= foot - height <= foot <= HEIGHT
            assert abs(tops.get(x, HEIGHT) - foot) < 0.2
            tops[x] = foot - height
    axis_end = find_top(max(one + two for one, two in values))
    for index, (one, two) in enumerate(values):
        exact = HEIGHT * (1 - (one + two) / axis_end)
        assert abs(tops.get(BUCKET * index + BUCKET // 2, HEIGHT) - exact) <= 0.51, "a stack ends at its sum's pixel"


@given(values=st.lists(st.none() | AMOUNTS, min_size=1, max_size=60))
def test_a_line_has_every_value_and_is_broken_where_there_is_none(values: list[float | None]) -> None:
    labels = [str(index) for index in range(len(values))]
    chart = draw_lines(fill(labels, Series("p50", "series-1", values)))
    path = "".join(shape.path for shape in chart.shapes)
    runs = "".join(" " if value is None else "x" for value in values).split()
    assert path.count("M") == len(runs)
    assert path.count("L") == sum(len(run) - 1 for run in runs)
    assert all(0 <= float(y) <= HEIGHT for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path))


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
