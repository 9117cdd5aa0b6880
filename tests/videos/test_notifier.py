"""A notifier wakes the listeners of one job, and no others."""

import asyncio

import pytest

from gateway.events import Events
from gateway.videos.events import JobChanged
from gateway.videos.notifier import JobNotifier


async def test_everybody_who_listens_for_a_name_hears_it_and_nobody_else() -> None:
    events = Events()
    notifier = JobNotifier(events)
    async with notifier.listen("a") as one, notifier.listen("a") as two, notifier.listen("b") as other:
        events.publish(JobChanged("a"))
        assert (one.is_set(), two.is_set(), other.is_set()) == (True, True, False)
        one.clear()
        events.publish(JobChanged("b"))
        assert (one.is_set(), two.is_set(), other.is_set()) == (False, True, True)


async def test_what_is_rung_before_somebody_waits_is_heard() -> None:
    events = Events()
    notifier = JobNotifier(events)
    async with notifier.listen("a") as bell:
        events.publish(JobChanged("a"))
        async with asyncio.timeout(1):
            await bell.wait()


async def test_a_bell_that_nobody_hears_costs_nothing() -> None:
    events = Events()
    notifier = JobNotifier(events)
    events.publish(JobChanged("a"))
    async with notifier.listen("a") as bell:
        assert not bell.is_set()
    assert notifier._listeners == {}


async def test_nothing_is_left_of_who_has_left_however_it_left() -> None:
    events = Events()
    notifier = JobNotifier(events)
    async with notifier.listen("a") as stays:
        with pytest.raises(RuntimeError):
            async with notifier.listen("a"):
                raise RuntimeError

        async def wait() -> None:
            async with notifier.listen("a") as bell:
                await bell.wait()

        leaves = asyncio.create_task(wait())
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        events.publish(JobChanged("a"))
        assert stays.is_set()
        assert len(notifier._listeners["a"]) == 1
    assert notifier._listeners == {}


async def test_one_may_leave_while_the_bell_is_rung() -> None:
    """What a bell wakes runs later: nobody's set of bells changes under it."""
    events = Events()
    notifier = JobNotifier(events)

    async def wait() -> bool:
        async with notifier.listen("a") as bell:
            return await bell.wait()

    waiting = [asyncio.create_task(wait()) for _ in range(10)]
    await asyncio.sleep(0)
    events.publish(JobChanged("a"))
    assert await asyncio.gather(*waiting) == [True] * 10
    assert notifier._listeners == {}
