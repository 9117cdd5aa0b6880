"""A notifier wakes the listeners of one job, and no others."""

import asyncio

import pytest

from gateway.videos.notifier import JobNotifier


async def test_everybody_who_listens_for_a_name_hears_it_and_nobody_else() -> None:
    notifier = JobNotifier()
    async with notifier.listen("a") as one, notifier.listen("a") as two, notifier.listen("b") as other:
        notifier.notify("a")
        assert (one.is_set(), two.is_set(), other.is_set()) == (True, True, False)
        one.clear()
        notifier.notify("b")
        assert (one.is_set(), two.is_set(), other.is_set()) == (False, True, True)


async def test_what_is_rung_before_somebody_waits_is_heard() -> None:
    notifier = JobNotifier()
    async with notifier.listen("a") as bell:
        notifier.notify("a")
        async with asyncio.timeout(1):
            await bell.wait()


async def test_a_bell_that_nobody_hears_costs_nothing() -> None:
    notifier = JobNotifier()
    notifier.notify("a")
    async with notifier.listen("a") as bell:
        assert not bell.is_set()
    assert notifier._events == {}


async def test_nothing_is_left_of_who_has_left_however_it_left() -> None:
    notifier = JobNotifier()
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
        notifier.notify("a")
        assert stays.is_set()
        assert len(notifier._events["a"]) == 1
    assert notifier._events == {}


async def test_one_may_leave_while_the_bell_is_rung() -> None:
    """What a bell wakes runs later: nobody's set of bells changes under it."""
    notifier = JobNotifier()

    async def wait() -> bool:
        async with notifier.listen("a") as bell:
            return await bell.wait()

    waiting = [asyncio.create_task(wait()) for _ in range(10)]
    await asyncio.sleep(0)
    notifier.notify("a")
    assert await asyncio.gather(*waiting) == [True] * 10
    assert notifier._events == {}
