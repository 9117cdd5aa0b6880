"""A tripped channel that nobody calls is found well again, or left alone for longer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from gateway.domain.channel import Channel
from gateway.domain.circuit_breaker import MIN_SHARE, BreakerSettings
from gateway.domain.model_info import ModelInfo
from gateway.errors import ProviderAuthError, ProviderBadResponse
from gateway.routing.channel_state import ChannelState
from gateway.routing.load_balancer import DEFAULT_SETTINGS, PROBE_EVERY_S, LoadBalancer, RetrySettings
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.model_listing import fetch_models
from gateway.routing.probe_worker import LOOK_EVERY_S, ChannelProber
from gateway.upstream.client import PooledHttpClient
from tests.support.scripted_upstream import FIN, RST, STALL, Received, ScriptedUpstream, Step, answer
from tests.support.worker_loop import run_hurried

COOLDOWN_S = 5.0
RULES = BreakerSettings(failures=1, cooldown_s=COOLDOWN_S, max_cooldown_s=300.0, ramp_s=10.0)
DUE_S = PROBE_EVERY_S
PLACE = ("openai_chat", "m")
UP = Channel("closed", "custom", "http://127.0.0.1:9/v1", ("provider-key",), models=("m",))
LISTING = {"object": "list", "data": [{"id": "m"}]}


class ProbeScenario:
    """Channels and how they stand; the switchboard's clock is turned by hand and its dice say the middle."""

    def __init__(self, upstream: PooledHttpClient, *channels: Channel) -> None:
        self.now = 1_000.0
        self.timeout_s = 20.0
        self.upstream = upstream
        self.catalog, self.board = (
            ModelCatalog(clock=lambda: self.now),
            LoadBalancer(lambda: self.now, lambda: 0.5, settings=DEFAULT_SETTINGS, shared=None),
        )
        self.board.settings = RetrySettings(RULES)
        self.use(*channels)
        self.job = ChannelProber(self.catalog, self.board, self.fetch, find_share=lambda: 1.0)

    async def fetch(self, channel: Channel) -> Sequence[ModelInfo]:
        return await fetch_models(self.upstream, channel, now_s=1, timeout_s=self.timeout_s)

    def use(self, *channels: Channel) -> None:
        self.catalog.set_channels(channels)
        self.board.set_channels(channels)

    def line(self, name: str = "closed") -> ChannelState:
        return self.board.channels[name]

    def trip(self, name: str = "closed") -> None:
        """A call over the channel fails."""
        slot = self.board.acquire(self.line(name), PLACE, 1, retry=False)
        self.board.record_failure(slot, ProviderBadResponse("it broke", phase="connect"))
        self.board.release(slot)
        assert self.line(name).breaker.state == "open"

    def look(self, name: str = "closed") -> tuple[str, float, int]:
        """State, seconds of cooldown left, trips."""
        breaker = self.line(name).breaker
        return breaker.state, max(0.0, breaker.until - self.now), breaker.trips


@pytest.fixture
async def upstream() -> AsyncIterator[PooledHttpClient]:
    opened = PooledHttpClient()
    yield opened
    await opened.close()


def at(up: ScriptedUpstream, name: str = "closed", **more: Any) -> Channel:
    return attrs.evolve(UP, name=name, base_url=up.base_url, **more)


async def test_a_channel_that_is_down_is_asked_for_its_models_after_a_few_seconds(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(LISTING)]) as up:
        scenario = ProbeScenario(upstream, at(up, headers=(("X-Ours", "1"),)))
        scenario.trip()
        for wait in (0.0, DUE_S - 0.001):
            scenario.now += wait
            await scenario.job.probe()
            assert (len(up.received), scenario.look()[0]) == (0, "open")
        scenario.now += 0.001
        await scenario.job.probe()
        (asked,) = up.received
        assert (asked.method, asked.path, asked.headers["authorization"]) == (
            "GET",
            "/v1/models",
            "Bearer provider-key",
        )
        assert asked.headers["x-ours"] == "1"
        assert scenario.look()[0] == "closed"
        await scenario.job.probe()
        assert len(up.received) == 1


async def test_a_channel_that_is_well_is_not_asked(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(LISTING)]) as up:
        scenario = ProbeScenario(upstream, at(up))
        scenario.now += 3_600
        await scenario.job.probe()
        assert up.received == []


async def test_a_channel_that_a_call_is_trying_is_left_to_it(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(LISTING)]) as up:
        scenario = ProbeScenario(upstream, at(up))
        scenario.trip()
        scenario.now += DUE_S
        slot = scenario.board.acquire(scenario.line(), PLACE, 1, retry=False)
        await scenario.job.probe()
        assert (up.received, scenario.look()[0]) == ([], "half_open")
        scenario.board.release(slot)
        await scenario.job.probe()
        assert (len(up.received), scenario.look()[0]) == (1, "closed")


@pytest.mark.parametrize(
    "well",
    [
        pytest.param(answer(LISTING), id="a list"),
        pytest.param(answer({"object": "list", "data": []}), id="an empty list"),
        pytest.param(answer({"error": {"message": "no such path"}}, 404), id="no list"),
        pytest.param(answer({"error": {"message": "who are you?"}}, 401), id="a refused key"),
        pytest.param(answer({"error": {"message": "slow down"}}, 429), id="a rate limit"),
    ],
)
async def test_whoever_answers_is_well_whatever_it_says_of_its_models(upstream: PooledHttpClient, well: bytes) -> None:
    async with ScriptedUpstream([well]) as up:
        scenario = ProbeScenario(upstream, at(up))
        scenario.trip()
        scenario.now += DUE_S
        with capture_logs() as reported:
            await scenario.job.probe()
        assert scenario.look()[0] == "closed"
        assert [line["event"] for line in reported] == ["channel_recovered"]


@pytest.mark.parametrize(
    "ill",
    [
        pytest.param([answer({"error": {"message": "no"}}, 500)], id="500"),
        pytest.param([answer(b"", 503)], id="503"),
        pytest.param([answer(b"<html>maintenance</html>")], id="HTML"),
        pytest.param([answer({"error": {"message": "no"}})], id="error with 200"),
        pytest.param([answer(b"", 302, location="http://127.0.0.1:1/")], id="redirect"),
        pytest.param([b"no HTTP at all\r\n\r\n", FIN], id="no HTTP"),
        pytest.param([answer(LISTING)[:-3], FIN], id="cut in the body"),
        pytest.param([RST], id="reset"),
        pytest.param([STALL], id="silence"),
    ],
)
async def test_whoever_does_not_answer_rests_on_for_longer(upstream: PooledHttpClient, ill: list[Step]) -> None:
    async with ScriptedUpstream(ill) as up:
        scenario = ProbeScenario(upstream, at(up))
        scenario.timeout_s = 0.5 if ill == [STALL] else scenario.timeout_s
        scenario.trip()
        scenario.now += DUE_S
        await scenario.job.probe()
        assert scenario.look() == ("open", 2 * COOLDOWN_S, 2)
        scenario.now += DUE_S
        await scenario.job.probe()
        assert scenario.look() == ("open", 2 * COOLDOWN_S - DUE_S, 2)  # within its cooldown that is no news
        scenario.now += DUE_S
        await scenario.job.probe()
        assert scenario.look() == ("open", 4 * COOLDOWN_S, 3)
        assert up.received


async def test_a_channel_that_cools_down_for_long_is_asked_every_few_seconds(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(b"", 500)], [answer(b"", 500)], [answer(LISTING)]) as up:
        scenario = ProbeScenario(upstream, at(up))
        scenario.trip()
        scenario.line().breaker.until = scenario.now + 300
        asked = []
        for _ in range(30):
            scenario.now += 1
            await scenario.job.probe()
            asked.append(len(up.received))
        assert asked == [0] * 4 + [1] * 5 + [2] * 5 + [3] * 16
        assert scenario.look()[0] == "closed"


async def test_who_asks_to_be_left_alone_is_not_probed_meanwhile(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(LISTING)]) as up:
        scenario = ProbeScenario(upstream, at(up))
        scenario.line().breaker.trip(scenario.now, RULES, reason="busy", rng=0.5, provider_retry_after_s=60.0)
        for passed, asked in ((59.9, 0), (0.1, 1)):
            scenario.now += passed
            await scenario.job.probe()
            assert len(up.received) == asked


async def test_what_fails_at_one_model_is_tried_at_once_when_the_provider_is_back(upstream: PooledHttpClient) -> None:
    """But not if the provider was there all the time: then the model alone is broken."""
    for listings, waits in (([answer(b"", 500), answer(LISTING)], False), ([answer(LISTING)], True)):
        async with ScriptedUpstream(*[[listing] for listing in listings]) as up:
            scenario = ProbeScenario(upstream, at(up))
            slot = scenario.board.acquire(scenario.line(), PLACE, 1, retry=False)
            scenario.board.record_failure(slot, ProviderBadResponse("it broke"))
            scenario.board.release(slot)
            ((_, _, breaker),) = scenario.line().list_tripped()
            breaker.until = scenario.now + 100
            for _ in range(2):
                scenario.now += PROBE_EVERY_S
                await scenario.job.probe()
            assert len(up.received) == 2
            assert (scenario.line().find_obstacle(PLACE, 1, scenario.now) is not None) == waits


async def test_whoever_is_not_there_rests_on_and_never_longer_than_the_longest_cooldown(
    upstream: PooledHttpClient,
) -> None:
    scenario = ProbeScenario(upstream, UP)
    scenario.trip()
    for trips in range(2, 12):
        scenario.now = max(scenario.line().breaker.until, scenario.now + PROBE_EVERY_S)
        await scenario.job.probe()
        assert scenario.look() == ("open", min(COOLDOWN_S * 2 ** (trips - 1), RULES.max_cooldown_s), trips)
    assert scenario.look()[1] == RULES.max_cooldown_s


async def test_a_channel_that_passed_comes_up_carefully(upstream: PooledHttpClient) -> None:
    """A small share first; one failure takes it down again, for longer; only a call answered well forgets."""
    async with ScriptedUpstream([answer(LISTING)]) as up:
        scenario = ProbeScenario(upstream, at(up))
        scenario.board.settings = RetrySettings(attrs.evolve(RULES, failures=3))
        for _ in range(3):
            slot = scenario.board.acquire(scenario.line(), PLACE, 1, retry=False)
            scenario.board.record_failure(slot, ProviderBadResponse("it broke", phase="connect"))
            scenario.board.release(slot)
        scenario.now += DUE_S
        await scenario.job.probe()
        assert (scenario.look()[0], scenario.line().breaker.share(scenario.now, RULES)) == ("closed", MIN_SHARE)
        scenario.trip()
        assert scenario.look() == ("open", 2 * COOLDOWN_S, 2)


async def test_a_disabled_channel_is_not_asked(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(LISTING)]) as up:
        scenario = ProbeScenario(upstream, at(up))
        scenario.trip()
        scenario.use(at(up, status="disabled"))
        scenario.now += DUE_S
        await scenario.job.probe()
        assert (up.received, scenario.look()[0]) == ([], "open")


async def test_a_channel_whose_provider_has_no_list_is_left_to_its_callers(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(LISTING)]) as up:
        scenario = ProbeScenario(upstream, at(up, provider="azure_openai"))
        scenario.trip()
        scenario.now += 3_600
        await scenario.job.probe()
        assert (up.received, scenario.look()) == ([], ("open", 0.0, 1))  # nor is it held against it


async def test_channels_are_asked_side_by_side(upstream: PooledHttpClient) -> None:
    met = asyncio.Barrier(2)

    async def meet(_received: Received) -> None:
        await met.wait()

    script: list[Step] = [meet, answer(LISTING)]
    async with asyncio.timeout(3), ScriptedUpstream(script) as one, ScriptedUpstream(script) as two:
        scenario = ProbeScenario(upstream, at(one, "one"), at(two, "two"))
        scenario.trip("one")
        scenario.trip("two")
        scenario.now += DUE_S
        await scenario.job.probe()
        assert [scenario.look(name)[0] for name in ("one", "two")] == ["closed", "closed"]


@pytest.mark.parametrize("probed", [answer(LISTING), answer(b"", 500)], ids=["well", "ill"])
@pytest.mark.parametrize("called", ["well", "ill", "left", "under way"])
async def test_what_a_call_found_meanwhile_counts_more_than_what_a_probe_finds(
    upstream: PooledHttpClient, probed: bytes, called: str
) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def wait(_received: Received) -> None:
        asked.set()
        await go.wait()

    async with asyncio.timeout(3), ScriptedUpstream([wait, probed]) as up:
        scenario = ProbeScenario(upstream, at(up))
        scenario.trip()
        scenario.now += DUE_S
        probing = asyncio.create_task(scenario.job.probe())
        await asked.wait()
        slot = scenario.board.acquire(scenario.line(), PLACE, 1, retry=False)
        if called == "well":
            scenario.board.record_success(slot)
        elif called == "ill":
            scenario.board.record_failure(slot, ProviderBadResponse("it broke", phase="connect"))
        if called != "under way":
            scenario.board.release(slot)
        before = scenario.look()
        go.set()
        await probing
        if called == "left":  # which is no verdict: then the probe's is the only one
            assert scenario.look()[0] == ("closed" if probed == answer(LISTING) else "open")
        else:
            assert scenario.look() == before


async def test_a_channel_that_went_while_it_was_asked_is_missed_by_nobody(upstream: PooledHttpClient) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def wait(_received: Received) -> None:
        asked.set()
        await go.wait()

    async with asyncio.timeout(3), ScriptedUpstream([wait, answer(b"", 500)]) as up:
        scenario = ProbeScenario(upstream, at(up))
        scenario.trip()
        scenario.now += DUE_S
        probing = asyncio.create_task(scenario.job.probe())
        await asked.wait()
        scenario.use(attrs.evolve(UP, name="other"))
        go.set()
        await probing
        assert scenario.look("other") == ("closed", 0.0, 0)


def test_it_looks_every_second_for_ever() -> None:
    """In a time that is the loop's: down at 0 s, due every 5 s, and up when it answers."""

    async def main() -> None:
        loop, asked_at = asyncio.get_running_loop(), []
        catalog, board = (
            ModelCatalog(clock=loop.time),
            LoadBalancer(loop.time, lambda: 0.5, settings=DEFAULT_SETTINGS, shared=None),
        )
        board.settings = RetrySettings(RULES)
        catalog.set_channels([UP])
        board.set_channels([UP])

        async def fetch(_channel: Channel) -> Sequence[ModelInfo]:
            asked_at.append(loop.time() - began)
            if len(asked_at) < 3:
                raise ProviderBadResponse("not yet")
            raise ProviderAuthError("who are you?")

        line = board.channels["closed"]
        slot = board.acquire(line, PLACE, 1, retry=False)
        board.record_failure(slot, ProviderBadResponse("it broke", phase="connect"))
        board.release(slot)
        began = loop.time()
        job = asyncio.create_task(ChannelProber(catalog, board, fetch, find_share=lambda: 1.0).run())
        await asyncio.sleep(200)
        due = 0.0
        for at_s in asked_at:
            due += PROBE_EVERY_S
            assert due <= at_s <= due + LOOK_EVERY_S + 0.5
            due = at_s
        assert (len(asked_at), line.breaker.state) == (3, "closed")
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    run_hurried(main())
