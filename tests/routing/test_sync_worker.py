"""The catalogue follows what providers list."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from gateway.domain.channel import Channel
from gateway.domain.http_request import HttpRequest
from gateway.domain.model_info import ModelInfo
from gateway.errors import ProviderBadResponse
from gateway.routing.channel_tester import ChannelTester
from gateway.routing.channels import ChannelService, DiscoveredChannel
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.model_listing import fetch_models
from gateway.routing.sync_worker import JITTER, ModelSyncer
from gateway.upstream.client import PooledHttpClient
from gateway.upstream.interface import HttpClient, HttpResponse
from tests.support.repositories import Repositories
from tests.support.scripted_upstream import FIN, ScriptedUpstream, Step, answer
from tests.support.worker_loop import run_hurried

NOW = 1_750_000_000
INTERVAL_S = 600.0


@pytest.fixture
async def upstream() -> AsyncIterator[PooledHttpClient]:
    opened = PooledHttpClient()
    yield opened
    await opened.close()


def listing(*ids: str, **extra: Any) -> list[Step]:
    return [answer({"object": "list", "data": [{"id": name, "object": "model", **extra} for name in ids]})]


def make(up: ScriptedUpstream, name: str = "up", provider: str = "custom", **extra: Any) -> Channel:
    return Channel(name, provider, up.base_url, ("provider-key",), sync=True, **extra)


async def nothing_found() -> Sequence[DiscoveredChannel]:
    return ()


async def answer_chat(_channel: Channel, _model: str) -> int:
    return 7


def make_service(catalog: ModelCatalog, upstream: HttpClient) -> ChannelService:
    async def fetch(channel: Channel) -> Sequence[ModelInfo]:
        return await fetch_models(upstream, channel, now_s=NOW, timeout_s=20.0)

    load_balancer = LoadBalancer(lambda: 0.0, settings=DEFAULT_SETTINGS, shared=None)
    return ChannelService(
        catalog,
        Repositories(),
        tester=ChannelTester(load_balancer, fetch, answer_chat, lambda: NOW),
        discover=nothing_found,
        clock=lambda: NOW,
        leads=lambda: True,
        note_listing=None,
    )


async def build(upstream: HttpClient, *channels: Channel) -> tuple[ModelCatalog, ModelSyncer]:
    catalog = ModelCatalog(clock=lambda: NOW)
    service = make_service(catalog, upstream)
    await service.declare(channels)
    return catalog, ModelSyncer(catalog, service, interval=lambda: INTERVAL_S)


def names(catalog: ModelCatalog) -> list[str]:
    return [listed.id for listed in catalog.list_models()]


async def test_models_that_a_provider_lists_are_offered(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream(listing("b", "a"), listing("a", "b", "c", created=5)) as up:
        catalog, sync = await build(upstream, make(up))
        assert names(catalog) == []
        await sync.sync()
        assert names(catalog) == ["a", "b"]
        await sync.sync()
        assert [(listed.id, listed.created_s) for listed in catalog.list_models()] == [("a", NOW), ("b", NOW), ("c", 5)]
    (first, _) = up.received
    assert (first.method, first.path) == ("GET", "/v1/models")
    assert first.headers["authorization"] == "Bearer provider-key"
    assert first.body == b""


async def test_a_model_goes_after_two_absences_in_a_row(upstream: PooledHttpClient) -> None:
    scripts = [listing("a", "b"), listing("a"), listing("a", "b"), listing("a"), listing("a")]
    async with ScriptedUpstream(*scripts) as up:
        catalog, sync = await build(upstream, make(up))
        seen = []
        for _ in scripts:
            await sync.sync()
            seen.append("".join(names(catalog)))
        assert seen == ["ab", "ab", "ab", "ab", "a"]


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param([answer({"error": {"message": "no"}}, 500)], id="500"),
        pytest.param([answer({"error": {"message": "no"}}, 401)], id="401"),
        pytest.param([answer({"error": {"message": "no"}}, 429)], id="429"),
        pytest.param([answer(b"", 302, location="http://127.0.0.1:1/")], id="redirect"),
        pytest.param([answer(b"<html>")], id="HTML"),
        pytest.param([answer({"error": {"message": "no"}})], id="error with 200"),
        pytest.param([answer({"data": None})], id="no list"),
        pytest.param([b"no HTTP at all\r\n\r\n", FIN], id="no HTTP"),
        pytest.param([answer({"data": []})[:-3], FIN], id="cut in the body"),
    ],
)
async def test_a_failed_listing_removes_nothing_and_counts_as_no_absence(
    upstream: PooledHttpClient, failure: list[Step]
) -> None:
    async with ScriptedUpstream(listing("a"), failure, listing(), failure, failure, listing()) as up:
        catalog, sync = await build(upstream, make(up))
        seen = []
        while len(up.received) < 6:
            await sync.sync()
            seen.append("".join(names(catalog)))
        assert seen == ["a", "a", "a", "a", "a", ""]


async def test_a_provider_that_is_not_there_disturbs_no_other(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream(listing("a")) as up, ScriptedUpstream(listing("z")) as gone:
        dead = make(gone, "dead")
        await gone.__aexit__()
        catalog, sync = await build(upstream, dead, make(up))
        await sync.sync()
        assert names(catalog) == ["a"]
        assert catalog.find_offer(dead) is None


async def test_the_channels_globs_filter_what_is_offered(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream(listing("gpt-4o", "gpt-4o-mini", "o1", "o3", "tts-1")) as up:
        catalog, sync = await build(upstream, make(up, models=("gpt-*", "o[12]")))
        await sync.sync()
        assert names(catalog) == ["gpt-4o", "gpt-4o-mini", "o1"]


async def test_a_vendors_own_ids_become_the_names_callers_use(upstream: PooledHttpClient) -> None:
    theirs = {"models": [{"name": "models/gemini-2.5-pro"}, {"name": "models/other"}]}
    async with ScriptedUpstream([answer(theirs)]) as up:
        catalog, sync = await build(upstream, make(up, provider="gemini", models=("gemini-*",)))
        await sync.sync()
        assert [(listed.id, listed.owned_by) for listed in catalog.list_models()] == [("gemini-2.5-pro", "system")]


async def test_only_synchronized_channels_are_asked(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream(listing("a")) as up:
        still = Channel("still", "custom", up.base_url, models=("declared",))
        catalog, sync = await build(upstream, still)
        await sync.sync()
        assert up.received == []
        assert names(catalog) == ["declared"]


async def test_two_channels_are_asked_side_by_side(upstream: PooledHttpClient) -> None:
    met = asyncio.Barrier(2)

    async def meet(_received: object) -> None:
        await met.wait()

    async with asyncio.timeout(3), ScriptedUpstream([meet, *listing("a")]) as one, ScriptedUpstream(
        [meet, *listing("b")]
    ) as two:  # fmt: skip
        catalog, sync = await build(upstream, make(one, "one"), make(two, "two"))
        await sync.sync()
        assert names(catalog) == ["a", "b"]


class Absent:
    """A way out that leads nowhere, and remembers when it was tried."""

    def __init__(self) -> None:
        self.tried_at: list[float] = []

    async def send(self, _plan: HttpRequest) -> HttpResponse:
        self.tried_at.append(asyncio.get_running_loop().time())
        raise ProviderBadResponse("nobody there")

    async def close(self) -> None:
        return None


def test_it_asks_at_start_and_then_regularly_whether_or_not_it_is_answered() -> None:
    async def main() -> None:
        absent = Absent()
        _, sync = await build(absent, Channel("up", "custom", "http://127.0.0.1:1/v1", sync=True))
        job = asyncio.create_task(sync.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(absent.tried_at) == 1
        await asyncio.sleep(20 * INTERVAL_S)
        pauses = [later - earlier for earlier, later in pairwise(absent.tried_at)]
        assert len(pauses) >= 17
        assert all(INTERVAL_S * (1 - JITTER) <= pause <= INTERVAL_S * (1 + JITTER) + 1 for pause in pauses)
        assert len({round(pause) for pause in pauses}) > 1
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    run_hurried(main())


def test_an_interval_that_is_changed_holds_from_the_next_round_on() -> None:
    async def main() -> None:
        absent, interval = Absent(), [600.0]
        catalog = ModelCatalog(clock=lambda: NOW)
        channels = make_service(catalog, absent)
        await channels.declare([Channel("up", "custom", "http://127.0.0.1:1/v1", sync=True)])
        job = asyncio.create_task(ModelSyncer(catalog, channels, interval=lambda: interval[0]).run())
        await asyncio.sleep(10)
        interval[0] = 30.0
        await asyncio.sleep(600 * (1 + JITTER) + 300)
        first, *later = [after - before for before, after in pairwise(absent.tried_at)]
        assert 600 * (1 - JITTER) <= first <= 600 * (1 + JITTER) + 1
        assert len(later) >= 8
        assert all(30 * (1 - JITTER) <= pause <= 30 * (1 + JITTER) + 1 for pause in later)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    run_hurried(main())


async def test_a_disabled_channel_is_not_asked(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream(listing("a")) as up:
        catalog, sync = await build(upstream, make(up, status="disabled"))
        await sync.sync()
        assert up.received == []
        assert names(catalog) == []


async def test_what_came_and_what_went_is_told_and_kept(upstream: PooledHttpClient) -> None:
    scripts = [listing("a", "b"), listing("b", "c"), listing("b", "c"), listing("b", "c")]
    async with ScriptedUpstream(*scripts) as up:
        catalog, sync = await build(upstream, make(up))
        with capture_logs() as reported:
            for _ in scripts:
                await sync.sync()
        (channel,) = catalog.channels
    lines = [(line["models"], line["came"], line["went"]) for line in reported if line["event"] == "models_synced"]
    assert lines == [(2, 2, []), (2, 1, []), (2, 0, ["a"])]
    synced = catalog.find_sync_status(channel)
    assert (synced.added, synced.removed, synced.error, synced.at_s) == ((), ("a",), None, NOW)


async def test_a_failed_listing_is_told_and_kept_and_shows_no_secret(upstream: PooledHttpClient) -> None:
    raw = answer({"error": {"message": "the key provider-key at http://10.0.0.1/v1 is wrong"}}, 500)
    async with ScriptedUpstream(listing("a"), [raw], [raw], listing("a")) as up:
        catalog, sync = await build(upstream, make(up))
        (channel,) = catalog.channels
        await sync.sync()
        with capture_logs() as reported:
            await sync.sync()
        (line,) = reported
        error = catalog.find_sync_status(channel).error
        assert (line["event"], line["log_level"], line["channel"]) == ("models_not_synced", "warning", "up")
        assert line["error"] == error == "The provider failed with status 500: the key [masked] at [address] is wrong"
        await sync.sync()
        await sync.sync()
        assert catalog.find_sync_status(channel).error is None


async def test_a_key_that_is_refused_is_passed_over_for_the_next(upstream: PooledHttpClient) -> None:
    refused = [answer({"error": {"message": "no"}}, 401)]
    async with ScriptedUpstream(refused, listing("a")) as up:
        channel = attrs.evolve(make(up), api_keys=("first-key", "second-key"))
        catalog, sync = await build(upstream, channel)
        await sync.sync()
        assert names(catalog) == ["a"]
        asked_with = [received.headers["authorization"] for received in up.received]
    assert asked_with == ["Bearer first-key", "Bearer second-key"]


async def test_a_channel_that_was_changed_while_it_was_asked_is_asked_again_and_not_told_of_the_old(
    upstream: PooledHttpClient,
) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def wait(_received: object) -> None:
        asked.set()
        await go.wait()

    async with asyncio.timeout(3), ScriptedUpstream([wait, *listing("gpt-1", "tts-1")], listing("gpt-1")) as up:
        catalog = ModelCatalog(clock=lambda: NOW)
        channels = make_service(catalog, upstream)
        before = make(up)
        await channels.declare([before])
        syncing = asyncio.create_task(ModelSyncer(catalog, channels, interval=lambda: INTERVAL_S).sync())
        await asked.wait()
        await channels.declare([attrs.evolve(before, models=("gpt-*",))])
        go.set()
        await syncing
        assert catalog.find_offer(before) is None
        await ModelSyncer(catalog, channels, interval=lambda: INTERVAL_S).sync()
        assert names(catalog) == ["gpt-1"]
