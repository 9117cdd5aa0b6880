"""A client that shows one unknown key after another waits; other clients do not."""

import asyncio

import pytest

from gateway.auth.unknown_keys import DELAY_S, FREE_ATTEMPTS, MAX_ADDRESSES, MAX_DELAYED, WINDOW_S, UnknownKeys
from gateway.errors import RateLimited

HOME, AWAY = "192.0.2.1", "192.0.2.2"


class Time:
    """A clock that only a test moves, and sleepers that only a test wakes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.waking = asyncio.Event()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.waking.wait()


async def show(keys: UnknownKeys, address: str, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(keys.delay_request(address)) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_twenty_a_minute_are_answered_at_once_and_more_are_held_back() -> None:
    time = Time()
    keys = UnknownKeys(time, time.sleep)
    assert all(task.done() for task in await show(keys, HOME, FREE_ATTEMPTS))
    held = await show(keys, HOME, MAX_DELAYED)
    assert not any(task.done() for task in held)
    assert time.slept == [DELAY_S] * MAX_DELAYED
    with pytest.raises(RateLimited) as caught:
        await keys.delay_request(HOME)
    assert caught.value.retry_after_s == WINDOW_S
    assert all(task.done() for task in await show(keys, AWAY, FREE_ATTEMPTS))
    time.waking.set()
    await asyncio.gather(*held)
    await keys.delay_request(HOME)


async def test_a_minute_later_all_is_forgotten() -> None:
    time = Time()
    keys = UnknownKeys(time, time.sleep)
    await show(keys, HOME, FREE_ATTEMPTS)
    time.now = WINDOW_S
    assert all(task.done() for task in await show(keys, HOME, FREE_ATTEMPTS))


async def test_an_address_of_ipv6_is_its_64_bits() -> None:
    time = Time()
    keys = UnknownKeys(time, time.sleep)
    for number in range(FREE_ATTEMPTS):
        await keys.delay_request(f"2001:db8::{number:x}")
    (task,) = await show(keys, "2001:db8::ffff:1", 1)
    assert not task.done()
    await keys.delay_request("2001:db8:0:1::1")
    time.waking.set()
    await task


async def test_what_is_remembered_is_bounded() -> None:
    time = Time()
    keys = UnknownKeys(time, time.sleep)
    for number in range(MAX_ADDRESSES + 100):
        await keys.delay_request(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(keys) == MAX_ADDRESSES
