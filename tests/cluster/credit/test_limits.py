"""Limits that are removed, set again or changed while nodes have credit of them."""

import asyncio

import pytest

from gateway.cluster.credit.keeper import RECALL_PAUSES_S
from gateway.domain.balance import OwnerId, parse_day
from gateway.errors import QuotaExceeded
from tests.support.billing_services import NOON, caller_of, capped
from tests.support.credit_cluster import MemoryNode
from tests.support.credit_memory import MemoryCredit

KEY: OwnerId = ("key", 7)
TODAY = parse_day(NOON)
CAPPED = caller_of(key=capped(1_000))


@pytest.fixture
def credit() -> MemoryCredit:
    made = MemoryCredit()
    made.open(KEY, 1_000, TODAY)
    return made


async def test_a_limit_that_is_removed_and_set_again_leaves_its_leases_to_nodes_that_see_it_or_not(
    credit: MemoryCredit,
) -> None:
    nodes = [MemoryNode(credit, name) for name in "abc"]
    for node in nodes:
        node.settle(CAPPED, (await asyncio.gather(node.begin(CAPPED, 50), node.step()))[0], 40)
    credit.change_limit(KEY, None, TODAY)
    _, aware, busy = nodes
    for node in (aware, busy):
        node.balances.check(caller_of())
        await node.step()
        assert credit.balances[KEY].leases[node.name].granted == 40  # what is idle is given up
    held = busy.balances.reserve_now(caller_of(), 10**6)
    assert held is not None
    busy.settle(CAPPED, held, 120)
    for node in nodes:
        node.post()
    credit.change_limit(KEY, 1_000, TODAY)
    again = caller_of(key=capped(1_000))
    admitted = 0
    for node in nodes:
        node.balances.check(again)
        while True:
            task = node.begin(again, 10)
            while not task.done():
                for each in nodes:
                    each.pulse += 0.2
                    await each.step()
            if task.exception() is not None:
                break
            node.settle(again, await task, 10)
            node.post()
            admitted += 10
            assert credit.balances[KEY].counted <= 1_000
    assert admitted == 1_000 - 3 * 40 - 120


async def test_a_limit_that_changes_while_a_request_waits_is_asked_for_once(credit: MemoryCredit) -> None:
    node, other = MemoryNode(credit, "a"), MemoryNode(credit, "b")
    await asyncio.gather(other.begin(CAPPED, 900), other.step())
    old = node.begin(CAPPED, 300)
    await node.step()
    credit.change_limit(KEY, 100_000, TODAY)
    raised = caller_of(key=capped(100_000))
    new = [node.begin(raised, 300) for _ in range(3)]
    node.pulse += 0.05
    await node.step()
    assert [(await task).nanos for task in (old, *new)] == [300] * 4
    assert len(node.authority.asked) == 2
    assert node.find(KEY).quota.limit_nanos == 100_000


async def test_a_request_that_waits_is_judged_by_the_newest_limit(credit: MemoryCredit) -> None:
    node, other = MemoryNode(credit, "a"), MemoryNode(credit, "b")
    await asyncio.gather(other.begin(CAPPED, 900), other.step())
    waiting = node.begin(CAPPED, 300)
    await node.step()
    credit.change_limit(KEY, 950, TODAY, "daily")
    node.balances.check(caller_of(key=capped(950, "daily")))
    for _ in range(len(RECALL_PAUSES_S) + 1):
        node.pulse += 1
        await node.step()
    with pytest.raises(QuotaExceeded) as caught:
        await waiting
    assert caught.value.status == 429


async def test_what_was_reserved_without_a_limit_is_no_fault_of_a_new_one(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    held = node.balances.reserve_now(caller_of(), 300)
    assert held is not None
    waiting = node.begin(CAPPED, 701)
    await asyncio.sleep(0)
    assert list(await node.keeper.check()) == []
    await node.step()
    assert list(await node.keeper.check()) == []
    waiting.cancel()
