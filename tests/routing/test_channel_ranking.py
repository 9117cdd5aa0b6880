"""An order as priorities: what can be had is, and what cannot is refused with what is in its way."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.channel_order import MAX_PRIORITY, MIN_PRIORITY, NoCapacity, assign_priorities
from tests.support.table_rows import table_rows

TAKEN = st.lists(st.none() | st.integers(-4, 4) | st.integers(MIN_PRIORITY, MAX_PRIORITY), max_size=8)


def find_rank(taken: list[int | None]) -> tuple[list[int], list[int]]:
    """The priorities, or what is in their way."""
    try:
        return assign_priorities(taken), []
    except NoCapacity as found:
        return [], list(found.places)


@given(TAKEN)
def test_each_place_is_below_the_one_before_it_and_what_is_taken_stays(taken: list[int | None]) -> None:
    ranked, refused = find_rank(taken)
    if refused:
        assert all(taken[place] is not None for place in refused)
        return
    assert [priority for priority, fixed in zip(ranked, taken, strict=True) if fixed is not None] == [
        fixed for fixed in taken if fixed is not None
    ]
    for (one, other), (before, after) in zip(pairwise(ranked), pairwise(taken), strict=True):
        assert one > other or (one == other and before is not None and after is not None)
    assert all(MIN_PRIORITY <= priority <= MAX_PRIORITY for priority in ranked)


@table_rows(
    ("taken", "ranked"),
    [
        ([], []),
        ([None, None, None], [2, 1, 0]),
        ([None, 5, None], [6, 5, 4]),
        ([5, None, None, 2], [5, 4, 3, 2]),
        ([0, 0], [0, 0]),
        ([None, 0, 0, None], [1, 0, 0, -1]),
        ([7, None, 1], [7, 2, 1]),
    ],
)
def test_orders_that_can_be_had(taken: list[int | None], ranked: list[int]) -> None:
    assert assign_priorities(taken) == ranked


@table_rows(
    ("taken", "places"),
    [
        ([0, None, 0], [0, 2]),
        ([None, 3, None, None, 1], [1, 4]),
        ([0, 1], [0, 1]),
        ([None, MAX_PRIORITY], [1]),
        ([MIN_PRIORITY, None], [0]),
    ],
)
def test_what_is_in_the_way_of_an_order_is_named(taken: list[int | None], places: list[int]) -> None:
    with pytest.raises(NoCapacity) as refused:
        assign_priorities(taken)
    assert refused.value.places == places
