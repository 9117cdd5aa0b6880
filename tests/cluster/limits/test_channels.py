"""Channels whose limits several gateways keep together: who may make an attempt, and where a request goes instead."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.cluster.limits.channels import MAX_CHANNELS, SharedChannelLimits
from gateway.cluster.limits.limiter import SharedRateLimiter
from gateway.domain.channel import Channel
from gateway.errors import NoHealthyChannel, ProviderBadResponse, ShuttingDown
from gateway.proxy.failover import Proxy
from gateway.routing.channel_state import ChannelSlot
from gateway.routing.target import Attempt
from gateway.storage.valkey.limits import ValkeyLimitServer
from tests.support.contexts import make_context
from tests.support.limit_servers import LONG_S, running, running_redis
from tests.support.routing_calls import CALLER, RouterScenario, call_of, channel


class Gateway:
    """Routes requests, and makes attempts that end when ``go_on`` is set; ``names`` are the channels they took."""

    def __init__(self, limiter: SharedRateLimiter, *channels: Channel) -> None:
        self.floor = RouterScenario(*channels)
        self.balancer = self.floor.board
        self.balancer.shared = SharedChannelLimits(limiter)
        self.proxy = Proxy(None, self.balancer, clock=lambda: 0.0)  # type: ignore[arg-type]
        self.names: list[str] = []
        self.go_on = asyncio.Event()
        self.failing = ""

    async def call(self) -> str:
        context = make_context(CALLER)
        context.target_list = self.floor.route(CALLER, call_of())
        return await self.proxy.with_failover(context, self._send)

    async def _send(self, attempt: Attempt) -> str:
        self.names.append(attempt.channel.name)
        if attempt.channel.name == self.failing:
            raise ProviderBadResponse("broken", phase="headers")
        await self.go_on.wait()
        return attempt.channel.name

    def take(self) -> ChannelSlot:
        return self.floor.begin()[1].slot

    def count_running(self) -> int:
        return sum(state.running for state in self.balancer.channels.values())


@asynccontextmanager
async def two_gateways(*channels: Channel) -> AsyncIterator[tuple[Gateway, Gateway]]:
    async with running_redis() as redis, AsyncExitStack() as stack:
        made = [
            SharedRateLimiter(ValkeyLimitServer(redis.url), lambda: 0.0, timeout_s=LONG_S, node=node)
            for node in ("a", "b")
        ]
        left, right = [Gateway(await stack.enter_async_context(running(limiter)), *channels) for limiter in made]
        yield left, right


async def start(gateway: Gateway, calls: int) -> list[asyncio.Task[str]]:
    """Begin calls, and return them when each of them is refused or with its provider."""
    before = len(gateway.names)
    tasks = [asyncio.create_task(gateway.call()) for _ in range(calls)]
    async with asyncio.timeout(30):
        while sum(task.done() for task in tasks) + len(gateway.names) - before < calls:  # noqa: ASYNC110 - a test looks
            await asyncio.sleep(0.005)
    return tasks


async def test_a_full_channel_sends_requests_to_the_next_one_and_then_away() -> None:
    best, other = channel("best", "m", priority=1, max_concurrency=2), channel("other", "m", max_concurrency=1)
    async with two_gateways(best, other) as (left, right):
        [first] = await start(left, 1)
        tasks = await start(right, 2)
        assert (left.names, sorted(right.names)) == (["best"], ["best", "other"])
        refused = await start(left, 1)
        with pytest.raises(NoHealthyChannel) as caught:
            await refused[0]
        assert caught.value.retry_after_s == 1
        assert (left.count_running(), right.count_running()) == (1, 2)  # what was refused holds nothing
        left.go_on.set()
        assert await first == "best"
        assert await left.call() == "best"
        right.go_on.set()
        await asyncio.gather(*tasks)
        assert (left.count_running(), right.count_running()) == (0, 0)


async def test_a_retry_goes_where_other_gateways_leave_room() -> None:
    names = [("ill", 3), ("full", 2), ("free", 1)]
    channels = [channel(name, "m", priority=priority, max_concurrency=1) for name, priority in names]
    async with two_gateways(*channels) as (left, right):
        left.balancer.channels["ill"].offered = False
        holding = await start(left, 1)
        assert left.names == ["full"]
        right.failing = "ill"
        right.go_on.set()
        assert await right.call() == "free"
        assert right.names == ["ill", "free"]
        left.go_on.set()
        await asyncio.gather(*holding)


async def test_requests_a_minute_are_counted_once_for_all() -> None:
    async with two_gateways(channel("slow", "m", rpm=40)) as gateways:
        outcomes: list[bool] = []
        for gateway in gateways:
            gateway.go_on.set()
            for _ in range(4):
                try:
                    outcomes.append(await gateway.call() == "slow")
                except NoHealthyChannel:
                    outcomes.append(False)
        assert sum(outcomes) == 4  # a tenth of forty at once
        right = gateways[1]
        assert right.balancer.channels["slow"].tat <= right.floor.time  # it sent nothing


async def test_parts_of_one_attempt_take_the_places_that_are_left() -> None:
    async with two_gateways(channel("c", "m", max_concurrency=4, rpm=100)) as (left, right):
        limits = left.balancer.shared
        assert limits
        slot = left.take()
        assert await limits.acquire(slot)
        assert await slot.widen(2) == 2
        other = right.take()
        assert right.balancer.shared
        assert await right.balancer.shared.acquire(other)
        assert await other.widen(2) == 0
        assert right.balancer.channels["c"].running == 1
        left.balancer.release(slot)
        right.balancer.release(other)
        last = right.take()
        assert await right.balancer.shared.acquire(last)
        assert await last.widen(5) == 3  # one of ten requests at once is left, but parts are counted and not refused
        right.balancer.release(last)


async def test_a_batch_leaves_places_that_another_gateway_has_not_taken() -> None:
    one = channel("c", "m", max_concurrency=4)
    async with two_gateways(one) as (left, right):
        tasks = await start(left, 2)
        tasks += await start(right, 1)  # it learns that three run
        right.floor.route(CALLER, call_of())
        with pytest.raises(NoHealthyChannel):
            right.floor.route(CALLER, call_of()).leave_room()
        left.go_on.set()
        await asyncio.gather(*tasks[:2])

        def has_room() -> bool:  # what refuses is asked anew
            try:
                right.floor.route(CALLER, call_of()).leave_room()
            except NoHealthyChannel:
                return False
            return True

        async with asyncio.timeout(30):
            while not has_room():  # noqa: ASYNC110 - a test looks
                await asyncio.sleep(0.01)
        right.go_on.set()
        await asyncio.gather(*tasks)


async def test_a_shutdown_ends_a_request_that_asks_for_room() -> None:
    async with two_gateways(channel("c", "m", max_concurrency=4)) as (left, _):
        task = asyncio.create_task(left.call())
        await asyncio.sleep(0)
        assert left.proxy.running == 1
        left.proxy.abort()
        with pytest.raises(ShuttingDown):
            await task
        assert left.count_running() == 0


def test_limits_of_channels_that_come_and_go_are_not_kept_for_ever() -> None:
    limits = SharedChannelLimits(SharedRateLimiter(ValkeyLimitServer("redis://127.0.0.1:1"), lambda: 0.0))
    found = [limits._find_subjects(channel(f"c{number}", "m", rpm=1)) for number in range(MAX_CHANNELS + 1)]
    assert limits._find_subjects(channel(f"c{MAX_CHANNELS}", "m", rpm=1)) is found[-1]
    assert len(limits._subjects) == 1
