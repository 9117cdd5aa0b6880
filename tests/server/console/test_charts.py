"""The geometry of charts: nothing is drawn outside, and what is drawn is what it says."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.server.console.charts import HEIGHT, WIDTH, Series, draw_chart, find_top

AMOUNTS = st.floats(min_value=0, max_value=1e12, allow_nan=False)


@given(values=st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=60))
def test_every_bar_stands_within_the_axes_and_stacks_do_not_overlap(values: list[tuple[float, float]]) -> None:
    lower, upper = [one for one, _ in values], [two for _, two in values]
    places = [str(index) for index in range(len(values))]
    chart = draw_chart("t", places, [Series("a", "series-1", lower), Series("b", "bad", upper)], str)
    for bar in chart.bars:
        assert chart.left <= bar.x
        assert bar.x + bar.width <= WIDTH
        assert chart.top - 0.02 <= bar.y <= bar.y + bar.height <= chart.bottom + 0.02
    for one, two in pairwise(chart.bars):
        if one.x == two.x:
            assert abs(two.y + two.height - one.y) < 0.05


@given(most=AMOUNTS, whole=st.booleans())
def test_the_axis_ends_above_the_highest_value_and_not_far_above_it(most: float, *, whole: bool) -> None:
    top = find_top(most, whole_numbers=whole)
    assert top >= most * (1 - 1e-9)
    assert top <= max(most * 2.6, 4 if whole or most < 1e-8 else 0)
    if whole:
        assert top % 4 == 0


def test_the_numbers_are_told_for_who_cannot_see_them() -> None:
    chart = draw_chart("Spent", ["Mon", "Tue"], [Series("spent", "series-1", [0.5, 0])], lambda value: f"${value}")
    assert [column.title for column in chart.columns] == ["Mon: spent $0.5", "Tue: \N{EN DASH}"]
    assert chart.table == [("Mon", ["$0.5"]), ("Tue", ["$0"])]


def test_a_chart_of_nothing_has_axes() -> None:
    chart = draw_chart("t", [], [], str)
    assert chart.bars == []
    assert len(chart.rows) == 5


def test_marks_leave_room_for_each_other() -> None:
    places = [str(day) for day in range(90)]
    chart = draw_chart("t", places, [Series("a", "series-1", [1.0] * 90)], str)
    assert len(chart.marks) <= 7
    assert all(two.at - one.at > WIDTH / 10 for one, two in pairwise(chart.marks))
    assert chart.height == HEIGHT
