"""A node asks for the credit that its requests need, and no other gets less than the limit covers."""

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from gateway.cluster.credit.keeper import RECALL_PAUSES_S, SWEEP_INTERVAL_S
from gateway.cluster.credit.queue import MIN_RECALL_ROUNDS
from gateway.cluster.credit.recalls import MIN_INTERVAL_S
from gateway.domain.balance import DAY_S, OwnerId, Reservation, UtcDay, parse_day
from gateway.domain.credit import CreditGrant, CreditRequest
from gateway.domain.leased_balance import IDLE_S, LeasedBalance
from gateway.errors import QuotaExceeded, StoreUnavailable
from tests.support.billing_services import NOON, caller_of, capped
from tests.support.credit_cluster import MemoryNode
from tests.support.credit_memory import MemoryCredit

KEY: OwnerId = ("key", 7)
ACCOUNT: OwnerId = ("account", 1)
TODAY = parse_day(NOON)
CAPPED = caller_of(key=capped(1_000))


@pytest.fixture
def credit() -> MemoryCredit:
    made = MemoryCredit()
    made.open(KEY, 1_000, TODAY)
    return made


async def extend(reservation: Reservation, nanos: int, node: MemoryNode, *others: MemoryNode) -> None:
    """Extend a reservation at ``node`` while all nodes work."""
    extending = asyncio.ensure_future(node.balances.extend(reservation, nanos))
    while not extending.done():
        for each in (node, *others):
            each.pulse += MIN_INTERVAL_S
            await each.step()
    await extending


async def refused(task: "asyncio.Task[Reservation]") -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as caught:
        await task
    return caught.value


async def test_a_caller_without_a_limit_asks_nothing(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    reservation = node.balances.reserve_now(caller_of(), 10**12)
    assert reservation is not None
    node.settle(caller_of(), reservation, 10**12)
    assert node.authority.asked == []


async def test_a_request_that_costs_nothing_asks_nothing(credit: MemoryCredit) -> None:
    assert MemoryNode(credit, "a").balances.reserve_now(CAPPED, 0) is not None


async def test_requests_that_wait_are_asked_for_together_and_later_ones_need_no_question(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    tasks = [node.begin(CAPPED, 30) for _ in range(5)]
    await node.step()
    assert [(await task).nanos for task in tasks] == [30] * 5
    (want,) = node.authority.asked
    assert (want.balance, want.min_nanos, want.needed_nanos, want.desired_nanos) == (KEY, 30, 150, 270)
    assert node.balances.reserve_now(CAPPED, 30) is not None  # of the slice
    assert len(node.authority.asked) == 1


async def test_key_and_account_are_asked_for_at_once(credit: MemoryCredit) -> None:
    credit.open(ACCOUNT, 40, TODAY)
    node, both = MemoryNode(credit, "a"), caller_of(capped(40), capped(1_000))
    first, second = node.begin(both, 40), node.begin(both, 40)
    await node.step()
    await node.step()
    assert (await first).nanos == 40
    assert "quota of the account" in (await refused(second)).message
    assert {want.balance for want in node.authority.asked} == {KEY, ACCOUNT}


@pytest.mark.parametrize("covered", [1, 7, 37])
async def test_a_limit_admits_exactly_what_it_covers(covered: int) -> None:
    credit = MemoryCredit()
    credit.open(KEY, covered * 10 + 9, TODAY)
    nodes, caller = [MemoryNode(credit, name, 3) for name in "abc"], caller_of(key=capped(covered * 10 + 9))
    tasks = [node.begin(caller, 10) for _ in range(covered + 5) for node in nodes]
    while not all(task.done() for task in tasks):
        for node in nodes:
            node.pulse += 0.2
            await node.step()
    admitted = [task for task in tasks if task.exception() is None]
    assert len(admitted) == covered
    assert all(isinstance(task.exception(), QuotaExceeded) for task in tasks if task not in admitted)


async def test_a_refusal_says_what_is_left_and_what_runs_anywhere(credit: MemoryCredit) -> None:
    node, other = MemoryNode(credit, "a"), MemoryNode(credit, "b")
    running = other.begin(CAPPED, 940)
    await other.step()
    await running
    waiting = node.begin(CAPPED, 100)
    for _ in range(len(RECALL_PAUSES_S) + 1):
        await node.step()
        node.pulse += 1
    error = await refused(waiting)
    assert "$0.000001 is left, $0.00000094 of it held for running requests" in error.message
    assert (error.status, error.room_nanos) == (403, 60)


async def test_idle_credit_elsewhere_is_recalled_before_a_refusal(credit: MemoryCredit) -> None:
    node, other = MemoryNode(credit, "a"), MemoryNode(credit, "b")
    first = other.begin(CAPPED, 50)
    await other.step()
    await first
    assert other.find(KEY).room_nanos == 200  # its slice
    waiting = node.begin(CAPPED, 900)
    await node.step()
    assert not waiting.done()
    await other.step()
    assert other.find(KEY).room_nanos == 0
    await node.step()  # at once: the other has reported it
    assert (await waiting).nanos == 900


async def test_a_node_that_never_answers_is_waited_for_a_while(credit: MemoryCredit) -> None:
    node, silent = MemoryNode(credit, "a"), MemoryNode(credit, "b")
    first = silent.begin(CAPPED, 50)
    await silent.step()
    await first
    waiting = node.begin(CAPPED, 990)
    for pause_s in (0.0, *RECALL_PAUSES_S[:-1]):
        node.pulse += pause_s
        await node.step()
        assert not waiting.done()
    node.pulse += RECALL_PAUSES_S[-1]
    await node.step()
    await refused(waiting)


async def test_credit_that_comes_back_while_the_store_answers_is_asked_for_again(
    credit: MemoryCredit, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = MemoryNode(credit, "a"), MemoryNode(credit, "b")
    first = other.begin(CAPPED, 50)
    await other.step()
    await first
    waiting = node.begin(CAPPED, 900)
    for _ in range(MIN_RECALL_ROUNDS):
        await node.step()
        node.pulse += MIN_INTERVAL_S
    take = node.authority.take

    async def take_slowly(requests: Sequence[CreditRequest], day: UtcDay) -> Sequence[CreditGrant]:
        """The other node returns its credit when the store has decided, and before the decision arrives."""
        grants = await take(requests, day)
        node.pulse += 0.01
        await other.step()
        return grants

    with monkeypatch.context() as patched:
        patched.setattr(node.authority, "take", take_slowly)
        await node.step()
    assert not waiting.done()
    await node.step()
    assert (await waiting).nanos == 900


async def test_a_node_that_answers_late_is_waited_for(credit: MemoryCredit) -> None:
    node, late = MemoryNode(credit, "a"), MemoryNode(credit, "b")
    first = late.begin(CAPPED, 50)
    await late.step()
    await first
    waiting = node.begin(CAPPED, 900)
    for pause_s in (0.0, 0.1, 0.1, 0.2, 0.4):
        node.pulse += pause_s
        await node.step()
    await late.step()
    await node.step()
    assert (await waiting).nanos == 900


async def test_a_request_is_refused_as_soon_as_every_node_has_answered_twice(credit: MemoryCredit) -> None:
    node, others = MemoryNode(credit, "a", 3), [MemoryNode(credit, name, 3) for name in "bc"]
    for other in others:
        running = other.begin(CAPPED, 500)
        await other.step()
        await running
    waiting = node.begin(CAPPED, 10)
    for began_s in (0.0, MIN_INTERVAL_S):
        node.pulse = began_s
        await node.step()
        assert not waiting.done()
        for other in others:
            await other.step()
        await node.step()
    await refused(waiting)


async def test_refusals_are_remembered_longer_and_longer_until_something_changes(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    all_of_it = node.begin(CAPPED, 1_000)
    await node.step()
    held = await all_of_it

    async def ask() -> int:
        before = len(node.authority.asked)
        task = node.begin(CAPPED, 5)
        await node.step()
        await refused(task)
        return len(node.authority.asked) - before

    assert [await ask() for _ in range(3)] == [1, 0, 0]
    node.pulse += 0.3
    assert [await ask() for _ in range(2)] == [1, 0]
    node.pulse += 0.3
    assert await ask() == 0
    node.settle(CAPPED, held, 400)
    assert node.balances.reserve_now(CAPPED, 5) is not None


async def test_a_look_before_the_body_refuses_only_what_is_used_up(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    node.balances.check(CAPPED)
    first = node.begin(CAPPED, 1_000)
    await node.step()
    second = node.begin(CAPPED, 5)
    await node.step()
    await refused(second)
    node.balances.check(CAPPED)  # it is reserved, not spent
    node.settle(CAPPED, await first, 1_000)
    third = node.begin(CAPPED, 5)
    await node.step()
    await refused(third)
    with pytest.raises(QuotaExceeded):
        node.balances.check(CAPPED)


async def test_credit_is_asked_for_ahead_and_returned_when_it_is_idle(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a", live=1)
    first = node.begin(CAPPED, 10)
    await node.step()
    await first
    for _ in range(3):
        assert node.balances.reserve_now(CAPPED, 10) is not None
    assert node.find(KEY).room_nanos == 10
    await node.step()
    assert node.find(KEY).room_nanos >= 40
    node.pulse += IDLE_S + SWEEP_INTERVAL_S
    await node.step()
    assert node.find(KEY).room_nanos == 0
    assert credit.balances[KEY].room == 960


async def test_a_lowered_limit_returns_what_is_idle(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    first = node.begin(CAPPED, 100)
    await node.step()
    await first
    credit.balances[KEY].limit = 150
    waiting = node.begin(caller_of(key=capped(150)), 60)
    await node.step()
    await refused(waiting)
    assert credit.balances[KEY].room == 50


async def test_a_balance_whose_limit_is_gone_in_the_store_needs_no_credit(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    del credit.balances[KEY]
    waiting = node.begin(CAPPED, 10**9)
    await node.step()
    assert (await waiting).nanos == 10**9


async def test_what_was_spent_without_a_limit_is_known_before_credit_is_asked_for(credit: MemoryCredit) -> None:
    node, free = MemoryNode(credit, "a"), caller_of()
    for nanos in (300, 200):
        held = node.balances.reserve_now(free, 500)
        assert held is not None
        node.settle(free, held, nanos)
        if nanos == 300:
            credit.balances[KEY].settled = 300  # stored before the limit was made
            node.unposted.clear()
    waiting = node.begin(CAPPED, 501)
    await node.step()
    await refused(waiting)
    assert (await asyncio.gather(node.begin(CAPPED, 500), node.step()))[0].nanos == 500


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_answer_that_was_lost_is_read_back(credit: MemoryCredit, moment: str) -> None:
    node = MemoryNode(credit, "a")
    first = node.begin(CAPPED, 100)
    await node.step()
    node.settle(CAPPED, await first, 70)
    node.authority.fails = moment
    second = node.begin(CAPPED, 600)
    with pytest.raises(StoreUnavailable):
        await node.step()
    node.keeper.reread_leases()
    await node.step()
    assert (await second).nanos == 600
    lease = credit.balances[KEY].leases["a"]
    assert lease.granted == node.find(KEY).granted_nanos
    node.post()
    assert lease.granted - lease.posted == node.find(KEY).room_nanos + 600


async def test_a_client_that_leaves_takes_nothing_along(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    left, late = node.begin(CAPPED, 100), node.begin(CAPPED, 100)
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    await node.keeper.step()  # the second is granted, and its client leaves before it runs
    late.cancel()
    await asyncio.gather(left, late, return_exceptions=True)
    assert (node.find(KEY).held_nanos, node.balances.reservations) == (0, set())


async def test_a_store_that_does_not_answer_is_an_error_in_time(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    node.keeper.wait_s = 0.01
    with pytest.raises(StoreUnavailable):
        await node.begin(CAPPED, 10)
    await node.step()
    assert node.authority.asked == []


async def test_at_the_fence_every_wait_ends_and_nothing_is_reserved_or_asked_for(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    waiting = [node.begin(CAPPED, 10) for _ in range(3)]
    overdraft = asyncio.ensure_future(node.keeper.take_overdrafts([KEY]))
    await asyncio.sleep(0)
    node.keeper.end_waits()
    ended = await asyncio.gather(*waiting, overdraft, return_exceptions=True)
    assert [type(each) for each in ended] == [StoreUnavailable] * 4
    await node.step()
    assert (node.authority.asked, node.balances.reservations) == ([], set())


async def test_what_a_provider_charges_above_a_reservation_is_an_overrun_of_the_lease(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a", live=10)
    first = node.begin(CAPPED, 100)
    await node.step()
    assert node.balances.settle(await first, 700, node.now).overrun_nanos == 700 - node.find(KEY).granted_nanos
    node.unposted.update({KEY: 700})
    node.post()
    second = node.begin(CAPPED, 301)
    await node.step()
    await node.step()
    await refused(second)
    assert (await asyncio.gather(node.begin(CAPPED, 300), node.step()))[0].nanos == 300


async def test_a_node_that_has_more_than_its_lease_reads_it_back(credit: MemoryCredit) -> None:
    node, other = MemoryNode(credit, "a"), MemoryNode(credit, "b")
    node.balances.release((await asyncio.gather(node.begin(CAPPED, 100), node.step()))[0])
    node.settle(CAPPED, (await asyncio.gather(node.begin(CAPPED, 50), node.step()))[0], 50)  # it is not posted yet
    del credit.balances[KEY].leases["a"]
    assert (await asyncio.gather(other.begin(CAPPED, 900), other.step()))[0].nanos == 900
    waiting = node.begin(CAPPED, node.find(KEY).room_nanos + 1)
    for _ in range(9):
        node.pulse += 1
        await node.step()
    await refused(waiting)
    assert credit.balances[KEY].leases["a"].granted == node.find(KEY).room_nanos + 50 <= 100


async def test_requests_that_waited_extend_by_what_the_others_have_left(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")

    async def admit() -> Reservation:
        reservation = await node.hold(CAPPED, 100)
        reservation.extend(10_000)
        return reservation

    tasks = [asyncio.ensure_future(admit()) for _ in range(5)]
    await node.step()
    reserved = [(await task).nanos for task in tasks]
    assert sum(reserved) == node.find(KEY).held_nanos <= node.find(KEY).granted_nanos


async def test_a_request_that_waits_for_more_too_long_goes_on_with_its_reservation(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    reservation = (await asyncio.gather(node.begin(CAPPED, 100), node.step()))[0]
    node.keeper.wait_s = 0.0  # the time is over in the turn in which the answer comes
    extending = asyncio.ensure_future(node.balances.extend(reservation, 300))
    await asyncio.sleep(0)
    await node.keeper.step()
    await extending
    assert (reservation.charge, node.find(KEY).held_nanos) == (None, reservation.nanos)
    assert reservation in node.balances.reservations


async def test_a_statement_is_about_some_hundred_balances_at_most(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    callers = [caller_of(key=capped(1_000), id=number) for number in range(100, 1_300)]
    for caller in callers:
        credit.open(("key", caller.key.id), 1_000, TODAY)
    tasks = [node.begin(caller, 10) for caller in callers]
    await node.step()
    assert {(await task).nanos for task in tasks} == {10}
    node.pulse += IDLE_S + SWEEP_INTERVAL_S
    await node.step()
    assert node.authority.sizes == [500, 500, 200] * 2
    assert sum(found.counted for found in credit.balances.values()) == 10 * len(callers)


async def test_a_credit_is_known_to_every_node(credit: MemoryCredit) -> None:
    nodes = [MemoryNode(credit, name) for name in "abc"]
    node, other, _ = nodes
    await asyncio.gather(node.begin(CAPPED, 1_000), node.step())
    for each in nodes[1:]:
        task = each.begin(CAPPED, 5)
        for _ in range(len(RECALL_PAUSES_S) + 1):
            each.pulse += 1
            await each.step()
        await refused(task)
    credit.add_credit(KEY, 100, TODAY)
    other.balances.note_credit(*KEY, 100)
    await other.step()
    for each in nodes[1:]:
        assert (await asyncio.gather(each.begin(CAPPED, 5), each.step()))[0].nanos == 5


async def test_the_worker_wakes_serves_and_ends(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    worker = asyncio.create_task(node.keeper.run())
    node.authority.fails = "after"
    async with asyncio.timeout(20):
        assert (await node.hold(CAPPED, 10)).nanos == 10
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_a_day_begins_with_what_is_held(credit: MemoryCredit) -> None:
    credit.open(KEY, 100, TODAY, "daily")
    daily = caller_of(key=capped(100, "daily"))
    node = MemoryNode(credit, "a")
    first = node.begin(daily, 100)
    await node.step()
    held = await first
    node.now += DAY_S
    tomorrow = node.begin(daily, 10)
    await node.step()
    assert (await refused(tomorrow)).status == 429
    node.settle(daily, held, 30)
    node.post()
    assert (await asyncio.gather(node.begin(daily, 70), node.step()))[0].nanos == 70


async def test_a_long_answer_reserves_what_the_store_has(credit: MemoryCredit) -> None:
    node, other = MemoryNode(credit, "a"), MemoryNode(credit, "b")
    first = node.begin(CAPPED, 100)
    await node.step()
    reservation = await first
    await extend(reservation, 700, node)
    assert (reservation.nanos, reservation.extra_nanos) == (700, 600)
    await extend(reservation, 5_000, node)
    assert (reservation.nanos, reservation.extra_nanos) == (1_000, 900)
    assert (credit.balances[KEY].room, node.find(KEY).room_nanos) == (0, 0)
    waiting = other.begin(CAPPED, 1)
    for _ in range(len(RECALL_PAUSES_S) + 1):
        await other.step()
        other.pulse += 1
    await refused(waiting)
    node.settle(CAPPED, reservation, 40)
    node.post()
    node.keeper.recall(node.find(KEY))
    await node.step()
    assert credit.balances[KEY].room == 960


@pytest.mark.parametrize("left", [700, 100])
async def test_of_requests_that_may_exceed_a_limit_one_runs_at_any_node(credit: MemoryCredit, left: int) -> None:
    node, other = nodes = [MemoryNode(credit, name) for name in "ab"]
    if left < 1_000:
        node.settle(CAPPED, (await asyncio.gather(node.begin(CAPPED, 1_000 - left), node.step()))[0], 1_000 - left)
    first, second = [(await asyncio.gather(each.begin(CAPPED, 10), each.step()))[0] for each in nodes]
    assert other.find(KEY).room_nanos > 0  # its slice
    await extend(first, 5_000, node, other)
    assert first.nanos == left - 10  # with what was idle at the other
    with pytest.raises(QuotaExceeded, match=r"may cost up to \$0\.000005"):
        await extend(second, 5_000, other, node)
    assert other.find(KEY).held_nanos == 0
    node.settle(CAPPED, first, 20)
    third = (await asyncio.gather(other.begin(CAPPED, 10), other.step(), node.step(), other.step()))[0]
    await extend(third, 5_000, other, node)  # the first has ended
    assert third.nanos > 10
    other.balances.release(third)
    await other.step()
    assert credit.claimed == {}


async def test_a_request_that_fits_into_what_is_idle_elsewhere_runs_beside_one_that_exceeds(
    credit: MemoryCredit,
) -> None:
    node, other = MemoryNode(credit, "a"), MemoryNode(credit, "b")
    begun = [(await asyncio.gather(node.begin(CAPPED, nanos), node.step()))[0] for nanos in (10, 10, 900)]
    first, second, large = begun
    await extend(first, 5_000, node, other)
    node.balances.release(large)
    late = (await asyncio.gather(other.begin(CAPPED, 10), other.step(), node.step(), other.step()))[0]
    await extend(late, 800, other, node)
    assert (late.nanos, late.overdrafts) == (800, ())
    with pytest.raises(QuotaExceeded):
        await extend(second, 5_000, node, other)  # the first runs at this very node


async def test_a_client_that_leaves_while_its_request_gets_more_keeps_the_reservation_for_settlement() -> None:
    """Whenever it leaves, the settlement releases what is reserved, and the keeper does not."""
    for steps in range(20):
        credit = MemoryCredit()
        credit.open(KEY, 1_000, TODAY)
        node, other = MemoryNode(credit, "a"), MemoryNode(credit, "b")
        first, large = [(await asyncio.gather(node.begin(CAPPED, each), node.step()))[0] for each in (10, 900)]
        await extend(first, 5_000, node, other)  # at no other node a request may exceed the limit
        node.balances.release(large)
        late = (await asyncio.gather(other.begin(CAPPED, 10), other.step(), node.step(), other.step()))[0]
        extending = asyncio.ensure_future(other.balances.extend(late, 800))
        for number in range(steps):
            await asyncio.sleep(0)
            each = (node, other)[number % 2]
            each.pulse += MIN_INTERVAL_S
            await each.keeper.step()
        if extending.done():
            break
        extending.cancel()
        await asyncio.gather(extending, return_exceptions=True)
        assert other.find(KEY).held_nanos == late.nanos >= 10, steps
    assert extending.done()
    assert (late.nanos, steps > 3) == (800, True)


async def test_a_client_that_leaves_ends_its_claim(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    reservation = (await asyncio.gather(node.begin(CAPPED, 10), node.step()))[0]
    extending = asyncio.ensure_future(node.balances.extend(reservation, 5_000))
    await node.step()  # what the store has
    await asyncio.sleep(0)
    extending.cancel()
    await asyncio.gather(extending, return_exceptions=True)
    node.balances.release(reservation)
    await node.step()
    assert (credit.claimed, node.balances._overdrafts) == ({}, set())


async def test_credit_that_was_given_up_and_is_read_back_is_not_returned_as_well(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    task = node.begin(CAPPED, 100)
    await node.step()
    node.balances.release(await task)
    node.balances.note_credit(*KEY, -1)  # it gives up what is idle
    node.keeper.reread_leases()
    await node.step()
    own, lease = node.find(KEY), credit.balances[KEY].leases["a"]
    assert own.granted_nanos == lease.granted > 0


async def test_a_node_that_was_held_for_dead_reserves_nothing_before_its_leases_are_read_back(
    credit: MemoryCredit,
) -> None:
    node, other = MemoryNode(credit, "a"), MemoryNode(credit, "b")
    task = node.begin(CAPPED, 100)
    await node.step()
    node.balances.release(await task)
    await node.authority.end_leases()  # the leader settled them
    node.keeper.distrust_leases()
    assert node.balances.reserve_now(CAPPED, 1) is None
    task = other.begin(CAPPED, 1_000)
    await other.step()
    await task
    task = node.begin(CAPPED, 1)
    for _ in range(9):
        node.pulse += 1
        await node.step()
    await refused(task)


async def test_a_request_of_a_balance_that_the_node_has_twice_is_refused_at_once(credit: MemoryCredit) -> None:
    """No answer would reach the second one: its request would wait in vain."""
    node = MemoryNode(credit, "a")
    await node.step()
    waiting = node.begin(CAPPED, 30)
    await asyncio.sleep(0)
    twin = LeasedBalance("key", owner_id=7)
    with capture_logs() as log, pytest.raises(StoreUnavailable, match="not known"):
        await node.keeper.wait([twin], 30, lambda: None, release=None)
    assert [entry["event"] for entry in log] == ["credit_balance_not_known"]
    await node.step()
    assert (await waiting).nanos == 30


async def test_a_request_that_waits_in_vain_leaves_what_is_known_in_the_log(credit: MemoryCredit) -> None:
    node = MemoryNode(credit, "a")
    node.keeper.wait_s = 0.01
    with capture_logs() as log, pytest.raises(StoreUnavailable):
        await node.begin(CAPPED, 30)
    (entry,) = log
    assert entry["event"] == "credit_not_answered"
    assert entry["error"] == "key 7: granted 0, used 0, held 0 (nano-USD), lease unknown: False"
    assert "0 recalls" in entry["reason"]
