"""What the leader does begins and ends with its leadership; who does what is the same at every node."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.membership.leadership import Leadership
from gateway.domain.partition import pick_node


async def test_a_job_runs_while_the_node_leads_and_begins_anew_the_next_time() -> None:
    leadership, steps = Leadership(), asyncio.Queue[str]()

    async def work() -> None:
        steps.put_nowait("begun")
        try:
            await asyncio.Event().wait()
        finally:
            steps.put_nowait("ended")

    running = asyncio.create_task(leadership.run(work))
    for _ in range(2):
        await asyncio.sleep(0)
        assert steps.empty(), "it does not lead"
        leadership.begin()
        assert await asyncio.wait_for(steps.get(), 5) == "begun"
        leadership.end()
        assert await asyncio.wait_for(steps.get(), 5) == "ended"
    leadership.begin()
    assert await asyncio.wait_for(steps.get(), 5) == "begun"
    running.cancel()
    assert await asyncio.wait_for(steps.get(), 5) == "ended"


async def test_an_error_of_the_job_is_the_runners() -> None:
    leadership = Leadership()
    leadership.begin()

    async def work() -> None:
        raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        await leadership.run(work)


@given(st.sets(st.text(max_size=8), min_size=1, max_size=8), st.lists(st.text(max_size=12), max_size=30))
def test_a_node_that_leaves_moves_only_its_own_share(nodes: set[str], names: list[str]) -> None:
    before = {name: pick_node(name, nodes) for name in names}
    gone = min(nodes)
    for name, node in before.items():
        after = pick_node(name, nodes - {gone})
        assert after == node if node != gone else after != gone


def test_names_are_spread_and_no_node_does_nothing() -> None:
    nodes = [f"{number:016x}" for number in range(4)]
    shares = Counter(pick_node(f"channel{number}", nodes) for number in range(1000))
    assert set(shares) == set(nodes)
    assert min(shares.values()) > 180
    assert pick_node("channel", []) is None
