"""The last so many figures, and what lies where among them."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.statistics import RingBuffer, find_percentile
from tests.support.table_rows import table_rows

FIGURES = st.lists(st.integers(-1, 2**40), max_size=40)


@given(FIGURES, st.integers(1, 9))
def test_the_last_so_many_are_kept(figures: list[int], most: int) -> None:
    recent = RingBuffer(most)
    for figure in figures:
        recent.add(figure)
    assert sorted(recent) == sorted(figures[-most:])
    assert len(recent) == min(len(figures), most)


@given(FIGURES.filter(len), st.integers(1, 100))
def test_a_percentile_is_the_least_that_so_many_are_not_above(figures: list[int], percent: int) -> None:
    ordered = sorted(figures)
    found = find_percentile(ordered, percent)
    assert 100 * sum(figure <= found for figure in ordered) >= percent * len(ordered)
    assert 100 * sum(figure < found for figure in ordered) < percent * len(ordered)


@table_rows(("percent", "found"), [(1, 10), (50, 20), (51, 30), (99, 40), (100, 40)])
def test_percentiles_of_a_few(percent: int, found: int) -> None:
    assert find_percentile([10, 20, 30, 40], percent) == found
