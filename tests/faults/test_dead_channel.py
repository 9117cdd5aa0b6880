"""U17 under load: channels that die, flap, hang or are full, and the callers who hardly notice.

Counts and shares are what is promised. How long anything takes is the machine's; it is told under the table of faults.
Where a promise is about time, it is one that no machine breaks by being slow: that something was not done sooner.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import attrs
import pytest

from gateway.domain.circuit_breaker import JITTER, CircuitBreaker
from gateway.domain.rate_limit import compute_smooth_burst
from gateway.routing.channel_state import INSISTING_RPM, ChannelState
from gateway.routing.load_balancer import DEFAULT_SETTINGS
from gateway.server.context import SERVICES
from tests.support.fast_provider import Reaction, Seen, SwiftUpstream, dead, failing, hanging, slow, well
from tests.support.fault_scene import site
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.outcome_table import Notes
from tests.support.started_gateways import StartGateway

pytestmark = pytest.mark.slow

RATE = 200
"""Calls a second, where the machine can."""
QUICK = {"cooldown_s": 0.5, "max_cooldown_s": 4.0, "warm_up_s": 2.0}
NAMES = ("one", "two", "three")


@attrs.frozen
class Result:
    """How one call went. ``generations``: how often each channel had tripped when it was made."""

    status: int
    attempts: int
    code: str | None
    ms: float
    generations: tuple[int, ...]


class Traffic:
    """Calls at a steady pace, made whether or not those before them are answered.

    Attributes:
        results: in the order in which the calls ended.
    """

    def __init__(self, gateway: RunningGateway, client: aiohttp.ClientSession) -> None:
        self._gateway = gateway
        self._client = client
        self._calls: set[asyncio.Task[None]] = set()
        self.results: list[Result] = []

    async def pace(self, calls: int, *, stream: bool = False, until: Callable[[], object] = lambda: False) -> None:
        """Make so many more; fewer where ``until`` holds before."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(calls):
            await asyncio.sleep(max(0.0, began + number / RATE - loop.time()))
            if until():
                break
            task = asyncio.create_task(self._call(stream=stream))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def finish(self) -> None:
        """Wait for those that are not answered yet."""
        await asyncio.gather(*self._calls)

    async def _call(self, *, stream: bool) -> None:
        began = asyncio.get_running_loop().time()
        generations = tuple(own_of(line).generation for line in lines_of(self._gateway).values())
        async with self._client.post(self._gateway.url + CHAT, json={**HELLO, "stream": stream}) as response:
            body = await response.read()
        code = None
        if response.status != 200 or b'"error"' in body:
            code = body.rpartition(b'"code":"')[2].partition(b'"')[0].decode()
        ms = (asyncio.get_running_loop().time() - began) * 1000
        attempts = int(response.headers.get("x-gateway-attempts", "0"))
        self.results.append(Result(response.status, attempts, code, ms, generations))

    def after_trip(self, *channels: int) -> list[Result]:
        """Of calls that were made when each of these had tripped."""
        return [result for result in self.results if all(result.generations[index] for index in channels)]


def lines_of(gateway: RunningGateway) -> dict[str, ChannelState]:
    return gateway.app[SERVICES].routing.load_balancer.channels  # type: ignore[no-any-return]


def own_of(line: ChannelState) -> CircuitBreaker:
    """The breaker of the one account that calls."""
    circuit = line.circuits.get(("openai_chat", "m"))
    return CircuitBreaker() if circuit is None else circuit.get_own(1)


def count_trials(line: ChannelState, began: float) -> int:
    """How often it was tried while it was down, at the most; and that is not sooner than its cooldowns allow.

    ``began``: a moment of the loop before it tripped first.
    """
    trips = own_of(line).generation
    rested_s = sum(min(QUICK["cooldown_s"] * 2**trip, QUICK["max_cooldown_s"]) for trip in range(trips - 1))
    assert asyncio.get_running_loop().time() - began >= (1 - JITTER) * rested_s
    return trips  # each trial but the last has come to a trip: the first trip came of none


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


@asynccontextmanager
async def traffic_to(
    gateway_with: StartGateway, ups: Sequence[dict[str, Any]], **routing: float
) -> AsyncIterator[tuple[RunningGateway, Traffic]]:
    gateway = await gateway_with(site(*ups, routing={**QUICK, **routing}))
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as client:
        traffic = Traffic(gateway, client)
        yield gateway, traffic
        await traffic.finish()
    rows = await gateway.app[SERVICES].billing.accounting.reconcile()
    assert rows["ok"], rows["problems"]
    load_balancer = gateway.app[SERVICES].routing.load_balancer
    assert (load_balancer.running, load_balancer.retrying) == (0, 0)
    assert {line.running for line in lines_of(gateway).values()} == {0}


@asynccontextmanager
async def three(behaviour: Callable[[Seen], Reaction] = well) -> AsyncIterator[list[SwiftUpstream]]:
    async with SwiftUpstream(behaviour) as one, SwiftUpstream(behaviour) as two, SwiftUpstream(behaviour) as last:
        yield [one, two, last]


def equals(ups: Sequence[SwiftUpstream], **more: Any) -> list[dict[str, Any]]:
    return [channel(up.base_url, name, **more) for up, name in zip(ups, NAMES, strict=True)]


async def test_one_of_three_dies_and_heals_and_hardly_a_caller_notices(
    gateway_with: StartGateway, notes: Notes
) -> None:
    async with three() as ups, traffic_to(gateway_with, equals(ups)) as (gateway, traffic):
        first, line = ups[0], lines_of(gateway)["one"]
        loop, rules = asyncio.get_running_loop(), gateway.app[SERVICES].routing.load_balancer.settings.rules
        await traffic.pace(100)
        assert min(len(up.seen) for up in ups) >= 15, "equals are asked alike"

        first.die()
        died = loop.time()
        await traffic.pace(300)
        await traffic.finish()
        assert {result.status for result in traffic.results} == {200}
        later = traffic.after_trip(0)
        noticed = sum(result.attempts > 1 for result in later)
        assert len(later) > 200
        assert noticed <= count_trials(line, died)

        first.behaviour = well
        trips, before, healed = own_of(line).trips, len(first.seen), loop.time()
        left_s = own_of(line).until - healed
        await traffic.pace(2000, until=lambda: own_of(line).state == "closed")
        assert own_of(line).trips == trips, "within the cooldown that it was in"
        recovered_s = first.seen[before].at - healed
        counts = [len(up.seen) for up in ups]
        await traffic.pace(100, until=lambda: own_of(line).share(loop.time(), rules) > 0.5)
        window = [len(up.seen) - count for up, count in zip(ups, counts, strict=True)]
        expected = 0.2 * sum(window)  # of its share of 33 %, which grows while the machine takes its time
        assert window[0] <= expected + 3 * math.sqrt(0.8 * expected), "no burst"
        await traffic.pace(300)
        counts = [len(up.seen) for up in ups]
        await traffic.pace(200)
        await traffic.finish()
        shares = [(len(up.seen) - count) / 200 for up, count in zip(ups, counts, strict=True)]
        assert shares[0] > 0.2, "its whole share again"
        assert {result.status for result in traffic.results} == {200}
        notes.add_figure(
            f"one of three dies: {noticed} of {len(later)} calls after its trip noticed ({noticed / len(later):.2%}),"
            f" none of {len(traffic.results)} failed; healed, it was asked after {recovered_s:.2f} s ({left_s:.2f} s of"
            f" cooldown were left), had {window[0] / sum(window):.0%} of the next 100 calls, and then {shares[0]:.0%}"
        )


async def test_calls_under_way_on_a_channel_that_dies_are_made_on_another(
    gateway_with: StartGateway, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, though they are lost at one moment, and more than may be tried again at once."""
    monkeypatch.setattr("gateway.proxy.failover.RETRY_WAIT_S", 60.0)  # on a busy machine an answer takes a second
    async with three(slow(0.2)) as ups, traffic_to(gateway_with, equals(ups)) as (gateway, traffic):
        await traffic.pace(100)
        await traffic.pace(200, until=lambda: ups[0].running > 5)
        load_balancer = gateway.app[SERVICES].routing.load_balancer
        lost, running = ups[0].running, load_balancer.running
        ups[0].die()
        await traffic.pace(60)
        await traffic.finish()
        failed = [result for result in traffic.results if result.status != 200]
        again = sum(result.attempts > 1 for result in traffic.results)
        notes.add_figure(
            f"a channel dies under {lost} of {running} calls: {again} were made again, {len(failed)} callers failed"
        )
        assert lost > 5
        assert failed == []


@pytest.mark.parametrize("death", [dead, failing(500)], ids=["reset", "status 500"])
async def test_where_all_are_dead_callers_hear_so_and_no_retry_storm_begins(
    gateway_with: StartGateway, notes: Notes, death: Callable[[Seen], Reaction], request: pytest.FixtureRequest
) -> None:
    async with three(death) as ups, traffic_to(gateway_with, equals(ups)) as (gateway, traffic):
        began = asyncio.get_running_loop().time()
        lines = lines_of(gateway).values()
        await traffic.pace(200, until=lambda: all(own_of(line).generation for line in lines))
        await traffic.pace(150)
        await traffic.finish()
        check_no_storm(traffic, ups, notes, f"dead ({request.node.callspec.id})")
        later = traffic.after_trip(0, 1, 2)
        assert len(later) > 100
        refused = [result for result in later if result.attempts == 0]
        assert {(result.status, result.code) for result in refused} == {(503, "no_available_channel")}
        insisting = len(lines) * (compute_smooth_burst(INSISTING_RPM) + (asyncio.get_running_loop().time() - began) + 1)
        assert len(later) - len(refused) <= sum(count_trials(line, began) for line in lines) + insisting, (
            "one a cooldown and channel, and those that nobody else could serve"
        )


async def test_where_all_hang_before_their_first_event_there_is_no_retry_storm(
    gateway_with: StartGateway, notes: Notes
) -> None:
    """Dozens are under way before the first of them has waited long enough to say so."""
    async with three(hanging) as ups:
        declared = equals(ups, first_byte_timeout_s=0.25)
        async with traffic_to(gateway_with, declared) as (_, traffic):
            await traffic.pace(200, stream=True)
            await traffic.finish()
        check_no_storm(traffic, ups, notes, "hanging")
        assert {result.code for result in traffic.results} == {"upstream_timeout", "no_available_channel"}


def check_no_storm(traffic: Traffic, ups: Sequence[SwiftUpstream], notes: Notes, what: str) -> None:
    """Retries are within the budget, by the count of those who were called."""
    requests, calls = len(traffic.results), sum(len(up.seen) for up in ups)
    refused = [result for result in traffic.results if result.attempts == 0]
    notes.add_figure(
        f"all {what}: {requests} requests made {calls} calls; {len(refused)} were told at once that there is no channel"
        f" (median {median(result.ms for result in refused):.1f} ms)"
    )
    attempts = sum(result.attempts for result in traffic.results)
    assert calls <= attempts, "an attempt that is given up while it connects is never seen"
    assert attempts <= 1.2 * requests + DEFAULT_SETTINGS.least_retries
    assert not any(result.status == 200 for result in traffic.results)


async def test_the_budget_alone_keeps_retries_down_where_nothing_trips(
    gateway_with: StartGateway, notes: Notes
) -> None:
    """Of the calls under way a fifth at most are retries, but for the few that are always free."""

    def mostly_failing(seen: Seen) -> Reaction:
        return well(seen) if seen.number % 12 == 0 else failing(500, wait_s=0.2)(seen)

    async with three(mostly_failing) as ups:
        tolerant = {"trip_failures": 1000, "trip_ratio": 1.0}
        async with traffic_to(gateway_with, equals(ups), **tolerant) as (gateway, traffic):
            load_balancer = gateway.app[SERVICES].routing.load_balancer
            under_way: list[tuple[int, int]] = []

            def look() -> bool:
                under_way.append((load_balancer.retrying, load_balancer.running))
                return False

            await traffic.pace(200, until=look)
            await traffic.finish()
        assert not any(own_of(line).trips for line in lines_of(gateway).values())
        retrying, running = (sum(counts) / len(under_way) for counts in zip(*under_way, strict=True))
        calls = sum(len(up.seen) for up in ups)
        notes.add_figure(
            f"nothing trips: {len(traffic.results)} requests made {calls} calls; {retrying:.1f} retries were among"
            f" {running:.1f} calls under way"
        )
        assert calls == sum(result.attempts for result in traffic.results)
        assert 0 < retrying <= 0.2 * running + 1
        assert max(now for now, _ in under_way) <= 0.2 * max(of for _, of in under_way) + 1


async def test_a_channel_that_flaps_is_left_alone_for_longer_each_time(
    gateway_with: StartGateway, notes: Notes
) -> None:
    """It answers its trial and fails the next call: once it is down that is enough, and no caller hears of it."""
    cooldown_s = 0.1
    came: dict[int, list[float]] = {}

    def flapping(seen: Seen) -> Reaction:
        if own_of(line).state != "open":  # else it was on its way
            came.setdefault(own_of(line).generation, []).append(seen.at)
        # An answer, and no reset: on a connection that was used before, that would be tried once more unseen.
        return well(seen) if seen.number >= 3 and (seen.number - 3) % 2 == 0 else failing(500)(seen)

    async with SwiftUpstream() as good, SwiftUpstream(flapping) as bad:
        ups = [channel(bad.base_url, "bad", priority=1), channel(good.base_url, "good")]
        routing = {"cooldown_s": cooldown_s, "max_cooldown_s": 60, "warm_up_s": 60}
        async with traffic_to(gateway_with, ups, **routing) as (gateway, traffic):
            line = lines_of(gateway)["bad"]
            await traffic.pace(3000, until=lambda: own_of(line).trips == 5)
            await traffic.finish()
        assert {result.status for result in traffic.results} == {200}
        # Of each time it was down: from the last call that came before, to its trial. A slow machine makes that longer.
        rests = [came[generation + 1][0] - came[generation][-1] for generation in range(max(came))]
        notes.add_figure(f"a flapping channel was left alone for {', '.join(f'{rest:.2f}' for rest in rests)} s")
        assert len(rests) >= 4
        # A cooldown is up to a fifth shorter than its mean.
        assert all(rest >= (1 - JITTER) * cooldown_s * 2**trip for trip, rest in enumerate(rests))


async def test_a_channel_that_hangs_is_given_up_for_another_after_its_time(
    gateway_with: StartGateway, notes: Notes
) -> None:
    async with three() as ups:
        ups[0].behaviour = hanging
        async with traffic_to(gateway_with, equals(ups, first_byte_timeout_s=0.5)) as (gateway, traffic):
            began = asyncio.get_running_loop().time()
            await traffic.pace(500, stream=True)
            await traffic.finish()
            later = traffic.after_trip(0)
            noticed = sum(result.attempts > 1 for result in later)
            failed = [result for result in traffic.results if result.status != 200]
            hung = sum(result.attempts > 1 for result in traffic.results)
            notes.add_figure(
                f"one of three hangs: {len(ups[0].seen)} calls hung, {hung} were made again, {len(failed)} of"
                f" {len(traffic.results)} failed; after its trip {noticed} of {len(later)} noticed"
            )
            assert failed == []
            assert hung >= 3
            assert noticed <= count_trials(lines_of(gateway)["one"], began)


async def test_no_more_calls_run_on_a_channel_than_it_takes_and_the_rest_go_on(
    gateway_with: StartGateway, notes: Notes
) -> None:
    most = 5
    async with SwiftUpstream(slow(0.05)) as narrow, SwiftUpstream() as wide:
        ups = [channel(narrow.base_url, "narrow", priority=1, max_concurrency=most), channel(wide.base_url, "wide")]
        async with traffic_to(gateway_with, ups) as (_, traffic):
            await traffic.pace(200)
            await traffic.pace(2000, until=lambda: len(narrow.seen) >= 30)
            await traffic.finish()
        assert {(result.status, result.attempts) for result in traffic.results} == {(200, 1)}
        assert narrow.most_running == most
        assert len(narrow.seen) >= 30
        assert len(narrow.seen) + len(wide.seen) == len(traffic.results)
        notes.add_figure(
            f"max_concurrency {most}: {narrow.most_running} at once at the most, {len(narrow.seen)} of 200 calls;"
            f" {len(wide.seen)} went on"
        )


async def test_no_more_calls_a_minute_go_to_a_channel_than_it_takes_and_the_rest_go_on(
    gateway_with: StartGateway, notes: Notes
) -> None:
    rpm = 600
    async with SwiftUpstream() as narrow, SwiftUpstream() as wide:
        ups = [channel(narrow.base_url, "narrow", priority=1, rpm=rpm), channel(wide.base_url, "wide")]
        async with traffic_to(gateway_with, ups) as (_, traffic):
            began = asyncio.get_running_loop().time()
            await traffic.pace(200)
            await traffic.finish()
        assert {(result.status, result.attempts) for result in traffic.results} == {(200, 1)}
        # Two more, for calls that were let through apart and arrive together.
        over = [
            seen
            for seen in narrow.seen
            if seen.number + 1 > compute_smooth_burst(rpm) + (seen.at - began) * rpm / 60 + 2
        ]
        assert over == []
        assert len(narrow.seen) >= compute_smooth_burst(rpm)
        assert len(narrow.seen) + len(wide.seen) == 200
        notes.add_figure(
            f"rpm {rpm}: {len(narrow.seen)} of 200 calls, {compute_smooth_burst(rpm)} at once; {len(wide.seen)} went on"
        )


async def test_where_every_channel_is_full_the_rest_are_told_at_once(gateway_with: StartGateway) -> None:
    patient = {"first_byte_timeout_s": 20, "total_timeout_s": 30}  # a busy machine is no dead channel
    async with (
        three(slow(0.1)) as ups,
        traffic_to(gateway_with, equals(ups, max_concurrency=3, **patient)) as (_, traffic),
    ):
        await traffic.pace(150)
        await traffic.finish()
        answered = [result for result in traffic.results if result.status == 200]
        refused = [result for result in traffic.results if result.status != 200]
        assert {(result.status, result.code, result.attempts) for result in refused} == {
            (503, "no_available_channel", 0)
        }
        assert len(answered) == sum(len(up.seen) for up in ups) >= 9
        assert [up.most_running for up in ups] == [3, 3, 3]
