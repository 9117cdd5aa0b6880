"""The catalogue follows what providers list."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.domain.channel import Channel
from gateway.domain.fault import UpstreamError
from gateway.domain.plan import Plan
from gateway.flow.models import Catalog
from gateway.jobs.sync_models import JITTER, SYNC_INTERVAL_S, SyncModels
from gateway.upstream.client import AiohttpUpstream
from gateway.upstream.port import Reply
from tests.fakes.upstream import FIN, ScriptedUpstream, Step, answer
from tests.jobs.loop import run_hurried

NOW = 1_750_000_000


@pytest.fixture
async def upstream() -> AsyncIterator[AiohttpUpstream]:
    opened = AiohttpUpstream()
    yield opened
    await opened.close()


def listing(*ids: str, **extra: Any) -> list[Step]:
    return [answer({"object": "list", "data": [{"id": name, "object": "model", **extra} for name in ids]})]


def make(up: ScriptedUpstream, name: str = "up", provider: str = "custom", **extra: Any) -> Channel:
    return Channel(name, provider, up.base_url, ("provider-key",), sync=True, **extra)


def build(upstream: AiohttpUpstream, *channels: Channel) -> tuple[Catalog, SyncModels]:
    catalog = Catalog(clock=lambda: NOW)
    catalog.add_channels(channels)
    return catalog, SyncModels(catalog, upstream, clock=lambda: NOW)


def names(catalog: Catalog) -> list[str]:
    return [listed.id for listed in catalog.list_models()]


async def test_models_that_a_provider_lists_are_offered(upstream: AiohttpUpstream) -> None:
    async with ScriptedUpstream(listing("b", "a"), listing("a", "b", "c", created=5)) as up:
        catalog, sync = build(upstream, make(up))
        assert names(catalog) == []
        await sync.sync()
        assert names(catalog) == ["a", "b"]
        await sync.sync()
        assert [(listed.id, listed.created_s) for listed in catalog.list_models()] == [("a", NOW), ("b", NOW), ("c", 5)]
    (first, _) = up.received
    assert (first.method, first.path) == ("GET", "/v1/models")
    assert first.headers["authorization"] == "Bearer provider-key"
    assert first.body == b""


async def test_a_model_goes_after_two_absences_in_a_row(upstream: AiohttpUpstream) -> None:
    scripts = [listing("a", "b"), listing("a"), listing("a", "b"), listing("a"), listing("a")]
    async with ScriptedUpstream(*scripts) as up:
        catalog, sync = build(upstream, make(up))
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
    upstream: AiohttpUpstream, failure: list[Step]
) -> None:
    async with ScriptedUpstream(listing("a"), failure, listing(), failure, failure, listing()) as up:
        catalog, sync = build(upstream, make(up))
        seen = []
        while len(up.received) < 6:
            await sync.sync()
            seen.append("".join(names(catalog)))
        assert seen == ["a", "a", "a", "a", "a", ""]


async def test_a_provider_that_is_not_there_disturbs_no_other(upstream: AiohttpUpstream) -> None:
    async with ScriptedUpstream(listing("a")) as up, ScriptedUpstream(listing("z")) as gone:
        dead = make(gone, "dead")
        await gone.__aexit__()
        catalog, sync = build(upstream, dead, make(up))
        await sync.sync()
        assert names(catalog) == ["a"]
        assert catalog.find_offer(dead) is None


async def test_the_channels_globs_filter_what_is_offered(upstream: AiohttpUpstream) -> None:
    async with ScriptedUpstream(listing("gpt-4o", "gpt-4o-mini", "o1", "o3", "tts-1")) as up:
        catalog, sync = build(upstream, make(up, models=("gpt-*", "o[12]")))
        await sync.sync()
        assert names(catalog) == ["gpt-4o", "gpt-4o-mini", "o1"]


async def test_a_vendors_own_ids_become_the_names_callers_use(upstream: AiohttpUpstream) -> None:
    async with ScriptedUpstream(listing("models/gemini-2.5-pro", "models/other")) as up:
        catalog, sync = build(upstream, make(up, provider="gemini", models=("gemini-*",)))
        await sync.sync()
        assert [(listed.id, listed.owned_by) for listed in catalog.list_models()] == [("gemini-2.5-pro", "gemini")]


async def test_only_synchronised_channels_are_asked(upstream: AiohttpUpstream) -> None:
    async with ScriptedUpstream(listing("a")) as up:
        still = Channel("still", "custom", up.base_url, models=("declared",))
        catalog, sync = build(upstream, still)
        await sync.sync()
        assert up.received == []
        assert names(catalog) == ["declared"]


async def test_two_channels_are_asked_side_by_side(upstream: AiohttpUpstream) -> None:
    met = asyncio.Barrier(2)

    async def meet(_received: object) -> None:
        await met.wait()

    async with asyncio.timeout(3), ScriptedUpstream([meet, *listing("a")]) as one, ScriptedUpstream(
        [meet, *listing("b")]
    ) as two:  # fmt: skip
        catalog, sync = build(upstream, make(one, "one"), make(two, "two"))
        await sync.sync()
        assert names(catalog) == ["a", "b"]


class Absent:
    """A way out that leads nowhere, and remembers when it was tried."""

    def __init__(self) -> None:
        self.tried_at: list[float] = []

    async def send(self, _plan: Plan) -> Reply:
        self.tried_at.append(asyncio.get_running_loop().time())
        raise UpstreamError("nobody there")

    async def close(self) -> None:
        return None


def test_it_asks_at_start_and_then_regularly_whether_or_not_it_is_answered() -> None:
    async def main() -> None:
        absent = Absent()
        catalog = Catalog(clock=lambda: NOW)
        catalog.add_channels([Channel("up", "custom", "http://127.0.0.1:1/v1", sync=True)])
        job = asyncio.create_task(SyncModels(catalog, absent, clock=lambda: NOW).run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(absent.tried_at) == 1
        await asyncio.sleep(20 * SYNC_INTERVAL_S)
        pauses = [later - earlier for earlier, later in zip(absent.tried_at, absent.tried_at[1:], strict=False)]
        assert len(pauses) >= 17
        assert all(SYNC_INTERVAL_S * (1 - JITTER) <= pause <= SYNC_INTERVAL_S * (1 + JITTER) + 1 for pause in pauses)
        assert len({round(pause) for pause in pauses}) > 1
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    run_hurried(main())
