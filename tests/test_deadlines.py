"""One timer for many deadlines, on a loop whose clock jumps."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.deadlines import GAP_S, DeadlineTimer, Timeout
from tests.support.skip_rules import run_skipping
from tests.support.table_rows import table_rows

TIMES = st.lists(st.floats(0, 100, allow_nan=False), min_size=1, max_size=30)


class Waiting:
    """Waits until ``due_at``, and then ``again`` for so long."""

    def __init__(self, sweep: DeadlineTimer, due_at: float, again: float | None = None) -> None:
        self.sweep, self.due_at, self.again = sweep, due_at, again
        self.met: list[float] = []

    def expire(self, now: float) -> None:
        self.met.append(now)
        if self.again is None:
            self.sweep.leave(self)
        else:
            self.due_at, self.again = now + self.again, None


@given(times=TIMES)
def test_everybody_is_met_once_and_in_time(times: list[float]) -> None:
    async def scene() -> list[Waiting]:
        sweep = DeadlineTimer()
        everybody = [Waiting(sweep, time) for time in times]
        for one in everybody:
            sweep.enter(one)
        await asyncio.sleep(101)
        assert not len(sweep)
        return everybody

    for one in run_skipping(scene()):
        (met,) = one.met
        assert one.due_at <= met <= one.due_at + GAP_S * len(times) + 1e-6


def test_who_puts_it_off_is_met_again_and_who_left_is_not() -> None:
    async def scene() -> None:
        sweep = DeadlineTimer()
        again, gone = Waiting(sweep, 1.0, 5.0), Waiting(sweep, 2.0)
        sweep.enter(again)
        sweep.enter(gone)
        sweep.leave(gone)
        await asyncio.sleep(10)
        assert [round(met, 3) for met in again.met] == [1.0, 6.0]
        assert gone.met == []

    run_skipping(scene())


def test_a_nearer_deadline_is_met_though_the_timer_was_armed_for_a_far_one() -> None:
    async def scene() -> None:
        sweep = DeadlineTimer()
        sweep.enter(Waiting(sweep, 600.0))
        await asyncio.sleep(1)
        near = Waiting(sweep, 2.0)
        sweep.enter(near)
        await asyncio.sleep(2)
        assert len(near.met) == 1

    run_skipping(scene())


def test_one_that_is_met_may_send_another_away() -> None:
    async def scene() -> None:
        sweep = DeadlineTimer()
        second = Waiting(sweep, 1.0)

        class First(Waiting):
            def expire(self, now: float) -> None:
                super().expire(now)
                sweep.leave(second)

        first = First(sweep, 1.0)
        sweep.enter(first)
        sweep.enter(second)
        await asyncio.sleep(2)
        assert len(first.met) + len(second.met) in {1, 2}  # either may be looked at first
        assert not len(sweep)

    run_skipping(scene())


@table_rows("patience_s", [0.0, 3.0, 700.0])
def test_patience_runs_out_as_a_timeout_does(patience_s: float) -> None:
    async def scene() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError), Timeout(DeadlineTimer(), patience_s):
            await asyncio.sleep(1_000)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        return loop.time() - began

    assert run_skipping(scene()) == pytest.approx(patience_s, abs=0.01)


def test_who_is_done_in_time_hears_nothing_of_it() -> None:
    async def scene() -> None:
        sweep = DeadlineTimer()
        with Timeout(sweep, 5):
            await asyncio.sleep(1)
        assert not len(sweep)
        await asyncio.sleep(100)

    run_skipping(scene())


@table_rows("cancelled_at", [1.0, 5.0], ids=["before", "at the very moment it runs out"])
def test_a_cancel_from_elsewhere_is_not_lost(cancelled_at: float) -> None:
    async def wait(sweep: DeadlineTimer) -> None:
        with Timeout(sweep, 5):
            await asyncio.sleep(1_000)

    async def scene() -> None:
        sweep = DeadlineTimer()
        waiting = asyncio.create_task(wait(sweep))
        asyncio.get_running_loop().call_later(cancelled_at, waiting.cancel)
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            await waiting
        assert waiting.cancelled() or (cancelled_at == 5.0 and waiting.cancelling())
        assert not len(sweep)

    run_skipping(scene())


def test_a_fault_goes_before_the_timeout() -> None:
    async def scene() -> None:
        sweep = DeadlineTimer()
        with pytest.raises(KeyError), Timeout(sweep, 5):
            raise KeyError("its own")
        assert not len(sweep)

    run_skipping(scene())


def test_an_end_is_no_cancel_for_who_waits_no_more() -> None:
    async def scene() -> None:
        patience = Timeout(DeadlineTimer(), 5)
        with patience:
            patience.end()
        await asyncio.sleep(1)

    run_skipping(scene())


def test_one_that_fails_is_not_the_end_for_the_others() -> None:
    async def scene() -> None:
        sweep, loop = DeadlineTimer(), asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_reported: None)

        class Broken(Waiting):
            def expire(self, now: float) -> None:
                sweep.leave(self)
                raise KeyError(now)

        sweep.enter(Broken(sweep, 1.0))
        later = Waiting(sweep, 2.0)
        sweep.enter(later)
        await asyncio.sleep(5)
        assert len(later.met) == 1

    run_skipping(scene())
