"""Behind the fence no request begins; in front of it rows may wait for a while."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.cluster.deployment import Cluster
from gateway.cluster.membership.fence import FencedWriteQueue, read_boot_time
from gateway.cluster.membership.node import ClusterNode
from gateway.cluster.membership.store_clock import MAX_ROUND_TRIP_S, MAX_SLEW_DIFFERENCE_S, StoreClock
from gateway.cluster.membership.times import TIMES
from gateway.deployment import SingleProcess
from gateway.errors import StoreUnavailable
from tests.support.request_records import make_row


def open_queue(most: int = 4) -> FencedWriteQueue:
    queue = FencedWriteQueue(most)
    queue.valid_until_s = read_boot_time() + 1000
    return queue


def test_a_node_that_was_never_in_touch_takes_nothing() -> None:
    queue = FencedWriteQueue()
    assert (queue.full, queue.crowded, queue.can_recover) == (True, True, False)
    with pytest.raises(StoreUnavailable) as caught:
        queue.check_room()
    assert caught.value.retry_after_s == 2


def test_the_fence_is_where_the_last_beat_has_put_it() -> None:
    queue = open_queue()
    assert (queue.full, queue.crowded, queue.can_recover) == (False, False, True)
    queue.check_room()
    queue.valid_until_s = read_boot_time()
    assert queue.full


def test_rows_that_cannot_be_stored_wait_until_half_of_the_queue_is_used() -> None:
    queue = open_queue()
    queue.put(make_row("1"))
    queue.failing = True
    assert (queue.failing, queue.full, queue.can_recover) == (True, False, False)
    queue.put(make_row("2"))
    assert queue.full
    queue.failing = False
    assert not queue.full


def test_rows_that_cannot_be_stored_for_long_end_new_work(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = open_queue()
    queue.failing = True
    later_s = read_boot_time() + TIMES.ride_through_s
    monkeypatch.setattr("gateway.cluster.membership.fence.read_boot_time", lambda: later_s)
    queue.failing = True  # the next batch fails, too
    assert queue.full


async def test_a_node_is_told_once_when_its_fence_passes_and_when_it_closes() -> None:
    queue, fenced = FencedWriteQueue(), asyncio.Event()
    queue.when_fenced += [fenced.set, lambda: states.append(queue.fenced)]
    states: list[bool] = []
    queue.open_until(read_boot_time() + 1000)
    queue.open_until(read_boot_time() + 0.01)  # the fence is moved: only the last position counts
    assert states == []
    async with asyncio.timeout(30):
        await fenced.wait()
    assert states == [True]
    queue.open_until(read_boot_time() + 1000)
    queue.close()
    assert states == [True, True]


class Times:
    """The clock of a machine and a steady one; the first is set at will."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = 1000.0, 0.0

    def pass_by(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


def test_the_clock_is_the_stores_at_once_and_comes_to_it_slowly_from_then_on() -> None:
    times = Times()
    clock = StoreClock(lambda: times.wall_s, lambda: times.steady_s)
    assert clock.now() == 1000.0
    clock.adjust(1_600_000, 0.1)
    assert clock.now() == pytest.approx(1599.95 + 0.1)
    times.pass_by(10)
    clock.adjust(round((times.wall_s + 601) * 1000), 0.0)
    assert clock.now() == pytest.approx(times.wall_s + 600.05)
    times.pass_by(50)
    assert clock.now() == pytest.approx(times.wall_s + 600.55)
    times.pass_by(50)
    assert clock.now() == pytest.approx(times.wall_s + 601)
    clock.adjust(0, MAX_ROUND_TRIP_S + 0.01)
    times.pass_by(50)
    assert clock.now() == pytest.approx(times.wall_s + 601), "an answer that took long tells nothing"


def test_a_clock_of_the_machine_that_is_set_changes_nothing_and_a_machine_that_stood_still_is_corrected_at_once() -> (
    None
):
    times = Times()
    clock = StoreClock(lambda: times.wall_s, lambda: times.steady_s)
    clock.adjust(5_000_000, 0.0)
    times.wall_s += 86_400
    assert (clock.now(), clock.offset_s) == (5000.0, 4000.0 - 86_400)
    times.pass_by(10)
    assert clock.now() == 5010.0
    clock.adjust(round((5010 + MAX_SLEW_DIFFERENCE_S) * 1000), 0.0)
    assert clock.now() == 5010.0, "within a minute it comes slowly"
    clock.adjust(6_000_000, 0.0)
    assert clock.now() == 6000.0


def test_leases_of_jobs_go_on_while_the_machine_is_suspended_and_those_of_one_process_know_no_set_clock() -> None:
    times = Times()
    store = StoreClock(lambda: times.wall_s, lambda: times.steady_s)
    store.adjust(5_000_000, 0.0)
    shared = Cluster(cast("ClusterNode", SimpleNamespace(clock=store))).find_job_clock()
    alone = SingleProcess(lambda: times.wall_s).find_job_clock()
    times.pass_by(3600)
    assert shared() == 8600.0
    assert alone() < 1000.0 + 3600
