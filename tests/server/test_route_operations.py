"""Routes at the operations that do more than ask and answer: videos, sessions, stored responses, token counts."""

import asyncio
import random
from typing import Any

import aiohttp
import pytest

from gateway.domain.request_log import RequestFilter, parse_attempts
from gateway.server.context import SERVICES
from tests.support.fault_scene import UNHURRIED, hear
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.openai_videos import BREAK, Answered, OpenAiVideos, Play
from tests.support.realtime_provider import COST, PRICES, RealtimeProvider
from tests.support.scripted_upstream import (
    COMPLETION,
    RST,
    SSE_HEAD,
    STALL,
    Received,
    Script,
    ScriptedUpstream,
    answer,
    chat_script,
    chunk,
    delta,
    event,
)
from tests.support.started_gateways import StartGateway
from tests.support.video_gateway import VIDEOS, VideoGateway, open_video_gateway

BUSY = answer({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 429)
VIDEO_BUSY = Answered({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 429)
NO_CREDIT = answer({"error": {"message": "pay first"}}, 402)
DOWN = answer({"error": {"message": "down"}}, 503)
PRICES_OF = {"dear": 100, "usual": 10, "cheap": 1}
"""USD for a million tokens; a thousand times as many nano-USD for one."""
COMPLETION_TOKENS = 12


def name_chain(*models: str, **more: Any) -> dict[str, Any]:
    return {"name": "fast", "step": [{"models": [model]} for model in models], **more}


def list_prices() -> list[dict[str, Any]]:
    return [
        {"model": model, "input_usd_per_million": price, "output_usd_per_million": price}
        for model, price in PRICES_OF.items()
    ]


def site(ups: dict[str, ScriptedUpstream], **more: Any) -> dict[str, Any]:
    """A channel for each model, with the route ``fast`` over them."""
    lines = [channel(up.base_url, f"of-{model}", models=[model], **UNHURRIED) for model, up in ups.items()]
    return {"channel": lines, "price": list_prices(), "route": [name_chain(*ups)], **more}


async def add_key(gateway: RunningGateway, quota_usd: float) -> tuple[int, dict[str, str]]:
    fields = {"name": "poor", "account": "acme", "quota_usd": quota_usd, "quota_period": "lifetime"}
    key = await gateway.app[SERVICES].auth.accounts.add_key(fields)
    return key["id"], {"Authorization": f"Bearer {key['secret']}"}


def video_site(dear: OpenAiVideos, cheap: OpenAiVideos) -> dict[str, Any]:
    prices = [{"model": "dear", "usd_per_second": 1.0}, {"model": "cheap", "usd_per_second": 0.1}]
    lines = [dear.channel("of-dear", models=["dear"]), cheap.channel("of-cheap", models=["cheap"])]
    return {"channel": lines, "price": prices, "route": [name_chain("dear", "cheap")]}


async def test_a_video_is_charged_at_the_step_that_made_it_and_its_stored_reservation_stays(
    gateway_with: StartGateway,
) -> None:
    async with (
        OpenAiVideos(Play(submit=[VIDEO_BUSY])) as dear,
        OpenAiVideos(Play(polls=["queued"], hint_ms=600_000)) as cheap,
        open_video_gateway(gateway_with, **video_site(dear, cheap)) as videos,
    ):
        heard = await videos.submit(model="fast", seconds="4")
        assert heard.status == 200, heard.body
        services = videos.gateway.app[SERVICES]
        job = await services.videos.jobs.get(heard.json["id"])
        assert (job.channel, job.upstream_model, job.cost_nanos) == ("of-cheap", "cheap", 400_000_000)
        held = services.videos.jobs.reservations.list_held()
        assert held == {job.id: job.held_nanos} == {job.id: 4_000_000_000}
        assert (await services.billing.accounting.reconcile())["ok"]
        await services.videos.jobs.cancel(job.id)


async def test_a_video_that_may_have_been_begun_is_begun_at_no_other_step(gateway_with: StartGateway) -> None:
    async with (
        OpenAiVideos(Play(submit=[BREAK])) as dear,
        OpenAiVideos(Play(polls=["completed"])) as cheap,
        open_video_gateway(gateway_with, **video_site(dear, cheap)) as videos,
    ):
        assert (await videos.submit(model="fast", seconds="4")).status == 502
        assert [method for method, _, _ in dear.asked] == ["POST"]
        assert not cheap.asked


async def remix(videos: VideoGateway, video_id: str) -> str:
    heard = await videos.ask("POST", f"{VIDEOS}/{video_id}/remix", json={"prompt": "a dog"})
    assert heard.status == 200, heard.body
    return str(heard.json["id"])


async def test_a_remix_goes_to_the_model_of_its_original_and_not_to_the_first_step(gateway_with: StartGateway) -> None:
    async with OpenAiVideos(Play(polls=["completed"])) as one, OpenAiVideos(Play(submit=[VIDEO_BUSY])) as other:
        config = video_site(one, other)
        config["channel"] = [one.channel("one", models=["dear", "cheap"]), other.channel("two", models=["dear"])]
        config["route"][0]["step"] = [
            {"models": ["dear"], "channels": ["two"]},
            {"models": ["cheap"], "on": ["rate_limited"]},
            {"models": ["dear"], "channels": ["one"]},
        ]
        async with open_video_gateway(gateway_with, **config) as videos:
            original = await videos.make(model="fast", seconds="4")
            again = await remix(videos, original)
            await videos.finish(again)
            jobs = [await videos.gateway.app[SERVICES].videos.jobs.get(each) for each in (original, again)]
            assert [(job.upstream_model, job.cost_nanos) for job in jobs] == [("cheap", 400_000_000)] * 2


async def test_a_realtime_session_pays_for_the_model_of_its_step(gateway_with: StartGateway) -> None:
    """Its first response is longer than the session's empty prompt, and would meet the condition of the first step."""
    dear = {name: 10 * price for name, price in PRICES.items()}
    async with RealtimeProvider() as provider:
        gateway = await gateway_with(
            {
                "channel": [provider.channel(models=["dear", "cheap"])],
                "price": [{"model": "dear", **dear}, {"model": "cheap", **PRICES}],
                "route": [
                    {
                        "name": "fast",
                        "step": [{"models": ["dear"], "if": {"min_prompt_tokens": 1}}, {"models": ["cheap"]}],
                    }
                ],
            }
        )
        async with gateway.client.ws_connect(f"{gateway.url}/v1/realtime?model=fast") as client:
            session = await provider.accept()
            assert session.path.endswith("model=cheap")
            await client.send_json({"type": "response.create"})
            await session.expect("response.create")
            await session.create()
            await session.finish()
            usage: dict[str, Any] = {"type": "tokens", "input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
            usage["input_token_details"] = {"audio_tokens": 10, "text_tokens": 0}
            await session.send("conversation.item.input_audio_transcription.completed", usage=usage, transcript="x")
            for _ in range(3):
                assert (await client.receive()).type is aiohttp.WSMsgType.TEXT
        rows = [row for row in await gateway.rows(3) if row.client_request_id is not None]
        assert {(row.model, row.route, row.served_model, row.cost_nanos) for row in rows} == {
            ("fast", "fast", "cheap", COST),
            ("cheap", "fast", "", 10 * 10_000 + 5 * 2_000),  # the transcript of what was said
        }


def respond(response_id: str) -> dict[str, Any]:
    message = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "hi"}]}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    return {"output": [message], "object": "response", "id": response_id, "status": "completed", "usage": usage}


async def test_a_response_is_continued_at_the_step_that_made_it(gateway_with: StartGateway) -> None:
    async with (
        ScriptedUpstream([BUSY], [answer(respond("resp_2"))]) as dear,
        ScriptedUpstream([answer(respond("resp_1"))]) as cheap,
    ):
        config = site({"dear": dear, "cheap": cheap})
        config["route"][0]["step"][1]["on"] = ["rate_limited"]
        gateway = await gateway_with(config)
        body = {"model": "fast", "input": "hi", "max_output_tokens": 8}
        async with gateway.post(body, "/v1/responses") as response:
            assert (response.status, (await response.json())["id"]) == (200, "resp_1")
        async with gateway.post({**body, "previous_response_id": "resp_1"}, "/v1/responses") as response:
            assert response.status == 200, await response.text()
            assert response.headers["x-gateway-step"] == "2"
        assert (len(dear.received), len(cheap.received)) == (1, 2)


async def test_a_background_response_begins_at_the_step_that_its_reservation_covers(gateway_with: StartGateway) -> None:
    async with (
        ScriptedUpstream([answer(respond("resp_1"))]) as dear,
        ScriptedUpstream([answer(respond("resp_2"))]) as cheap,
    ):
        gateway = await gateway_with(site({"dear": dear, "cheap": cheap}))
        _, headers = await add_key(gateway, 0.0005)
        body = {"model": "fast", "input": "hi", "max_output_tokens": 16, "background": True}
        async with gateway.post(body, "/v1/responses", headers=headers) as response:
            assert response.status == 200, await response.text()
        (row,) = await gateway.rows(1)
        assert (row.served_model, row.cost_nanos, row.overrun_nanos) == ("cheap", 5 * 1_000, 0)
        assert not dear.received


async def test_tokens_are_estimated_for_a_route_none_of_whose_steps_counts(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as dear, ScriptedUpstream([answer(COMPLETION)]) as cheap:
        gateway = await gateway_with(site({"dear": dear, "cheap": cheap}))
        body = {"model": "fast", "messages": [{"role": "user", "content": "hello there"}]}
        async with gateway.post(body, "/v1/messages/count_tokens") as response:
            assert response.status == 200, await response.text()
            assert (await response.json())["input_tokens"] > 0
        assert not dear.received
        assert not cheap.received


BROKEN: Script = [SSE_HEAD, chunk(event(delta("one"))), 0.01, RST]
WHOLE: list[Script] = [[answer(COMPLETION)], [BUSY], [NO_CREDIT], [DOWN], [RST], [STALL]]
STREAMED: list[Script] = [chat_script("hello"), [BUSY], [NO_CREDIT], [DOWN], BROKEN, [STALL]]


@pytest.mark.parametrize("seed", range(4))
async def test_no_walk_over_random_failures_and_disconnects_breaks_a_limit(
    gateway_with: StartGateway, seed: int
) -> None:
    """Prices, failures, disconnects and limits are drawn; whatever happens, the books agree and name the model."""
    rng = random.Random(seed)  # noqa: S311 - a scene, not a secret
    scripts = STREAMED if seed % 2 else WHOLE
    order = rng.sample(sorted(PRICES_OF), 3)
    async with (
        ScriptedUpstream(*(rng.choice(scripts) for _ in range(200))) as first,
        ScriptedUpstream(*(rng.choice(scripts) for _ in range(200))) as second,
        ScriptedUpstream(*(rng.choice(scripts) for _ in range(200))) as third,
    ):
        ups = dict(zip(order, (first, second, third), strict=True))
        config = site(ups, routing={"max_attempts": rng.randint(1, 4)})
        for line in config["channel"]:
            line["first_byte_timeout_s"] = line["total_timeout_s"] = 0.3
        gateway = await gateway_with(config)
        limit_usd = rng.choice([0.001, 0.004, 0.02])
        key, headers = await add_key(gateway, limit_usd)

        async def ask_one(leaves: bool) -> None:
            body = {**HELLO, "model": "fast", "max_tokens": 8, "stream": scripts is STREAMED}
            timeout = aiohttp.ClientTimeout(total=0.1 if leaves else 30)
            try:
                async with gateway.post(body, headers=headers, timeout=timeout) as response:
                    await hear(response)
            except (TimeoutError, aiohttp.ClientError):
                assert leaves

        for _ in range(6):
            await asyncio.gather(*(ask_one(rng.random() < 0.3) for _ in range(8)))
        await gateway.check_books()
        services = gateway.app[SERVICES]
        await services.billing.flusher.store_waiting()
        stored = await services.admin.request_log.list_requests(RequestFilter(key_id=key), 1_000)
        rows = [entry.row for entry in stored]  # a client may have left before its request had come
        assert rows
        assert sum(row.cost_nanos for row in rows) <= limit_usd * 1e9
        assert not any(row.overrun_nanos for row in rows)
        for row in rows:
            tried = [attempt for attempt in parse_attempts(row.tried) if attempt.channel != "-"]
            assert len(tried) == row.attempts
            assert all(attempt.channel == f"of-{attempt.model}" and attempt.step for attempt in tried)
            tokens = row.prompt_tokens + row.completion_tokens
            charged = {PRICES_OF[attempt.model] * 1_000 * tokens for attempt in tried}
            assert row.cost_nanos in charged | {0}
            if row.outcome == "completed":
                assert row.cost_nanos == PRICES_OF[row.served_model] * 1_000 * COMPLETION_TOKENS
        calls = sum(len(up.received) for up in ups.values())
        assert calls <= sum(row.attempts for row in rows)


async def test_a_cheaper_step_holds_only_its_own_longest_answer(gateway_with: StartGateway) -> None:
    """The longest answer of the first model is more than the limit, so all of the limit was held for it."""
    held: list[int] = []

    async def look(_received: Received) -> None:
        balances = gateway.app[SERVICES].billing.accounting._balances
        held.append(max(reservation.nanos for reservation in balances.reservations))

    async with ScriptedUpstream([look, DOWN]) as dear, ScriptedUpstream([look, answer(COMPLETION)]) as cheap:
        config = site({"gpt-4o": dear, "gpt-4o-mini": cheap})
        config["price"] = [
            {"model": "gpt-4o", "input_usd_per_million": 1, "output_usd_per_million": 100},
            {"model": "gpt-4o-mini", "input_usd_per_million": 0.001, "output_usd_per_million": 0.001},
        ]
        gateway = await gateway_with(config)
        _, headers = await add_key(gateway, 1.0)
        body = {name: value for name, value in HELLO.items() if name != "max_tokens"}
        async with gateway.post({**body, "model": "fast"}, headers=headers) as response:
            assert (response.status, response.headers["x-gateway-step"]) == (200, "2")
        assert held[0] == 1_000_000_000
        assert held[1] < 1_000_000
        await gateway.check_books()
