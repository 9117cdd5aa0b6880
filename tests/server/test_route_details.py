"""Routes at their edges: refusals, edits while requests run, several answers, image streams, and a channel of two."""

import asyncio
import base64
from typing import Any

import pytest

from gateway.domain.request_log import parse_attempts
from gateway.server.context import SERVICES
from tests.support.admin_calls import AdminApi
from tests.support.anthropic_provider import AnthropicProvider
from tests.support.fault_scene import UNHURRIED, call, hear
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.image_providers import draw
from tests.support.providers import Says
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Received,
    Script,
    ScriptedUpstream,
    answer,
    chat_script,
    chunk,
    delta,
    event,
    usage_frame,
)
from tests.support.started_gateways import StartGateway

Json = dict[str, Any]
BUSY = answer({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 429)
DOWN = answer({"error": {"message": "down"}}, 503)
DEAR = {"model": "dear", "input_usd_per_million": 100, "output_usd_per_million": 100}
CHEAP = {"model": "cheap", "input_usd_per_million": 10, "output_usd_per_million": 10}
IMAGE_MODEL = "gpt-image-1"
CHAIN: Json = {"name": "fast", "step": [{"models": ["dear"]}, {"models": ["cheap"]}]}


def site(dear: ScriptedUpstream, cheap: ScriptedUpstream, *routes: Json, **more: Any) -> Json:
    """A channel for each model, with prices and routes."""
    lines = [
        channel(up.base_url, f"of-{model}", models=[model], **UNHURRIED, **more)
        for model, up in (("dear", dear), ("cheap", cheap))
    ]
    return {"channel": lines, "price": [DEAR, CHEAP], "route": list(routes)}


async def ask(gateway: RunningGateway, **body: Any) -> Any:
    return await call(gateway, **{"model": "fast", "max_tokens": 8, "stream": False, **body})


async def test_a_request_refused_without_an_attempt_has_its_route_on_record(gateway_with: StartGateway) -> None:
    """Neither what no step takes, nor what nobody can pay; and a plain model has no route."""
    narrow = {"name": "narrow", "step": [{"models": ["dear"], "if": {"tools": True}}]}
    async with ScriptedUpstream([answer(COMPLETION)]) as dear, ScriptedUpstream([answer(COMPLETION)]) as cheap:
        gateway = await gateway_with(site(dear, cheap, CHAIN, narrow))
        fields = {"name": "poor", "account": "acme", "quota_usd": 0.00001, "quota_period": "lifetime"}
        key = await gateway.app[SERVICES].auth.accounts.add_key(fields)
        poor = {"Authorization": f"Bearer {key['secret']}"}
        assert (await ask(gateway, model="narrow")).status == 400
        for model in ("fast", "cheap"):
            async with gateway.post({**HELLO, "model": model, "max_tokens": 8}, headers=poor) as response:
                assert response.status == 403
                message = (await response.json())["error"]["message"]
                named = "; step 2 of the route 'fast', its cheapest, may cost up to $0.00026"
                assert message.partition(" (request id")[0].endswith(named) is (model == "fast")
        rows = await gateway.rows(3)
        assert [(row.model, row.route, row.attempts) for row in rows] == [
            ("narrow", "narrow", 0),
            ("fast", "fast", 0),
            ("cheap", "", 0),
        ]
        assert not dear.received
        assert not cheap.received


async def test_a_request_refused_before_its_steps_are_looked_at_has_its_route_on_record(
    gateway_with: StartGateway,
) -> None:
    """Malformed tags, a response that nobody kept, and channels that are all full."""
    async with ScriptedUpstream([DOWN]) as dear, ScriptedUpstream([DOWN]) as cheap:
        gateway = await gateway_with(site(dear, cheap, CHAIN, max_concurrency=1))
        chat = {**HELLO, "model": "fast", "max_tokens": 8}
        async with gateway.post(chat, headers={"x-gateway-tags": "no equals sign"}) as response:
            assert response.status == 400
        body = {"model": "fast", "input": "hi", "previous_response_id": "resp_nobody"}
        async with gateway.client.post(f"{gateway.url}/v1/responses", json=body) as response:
            assert response.status == 404
        balancer = gateway.app[SERVICES].routing.load_balancer
        for state in balancer.channels.values():
            state.running += 1
        assert (await ask(gateway)).status == 503
        for state in balancer.channels.values():
            state.running -= 1
        rows = await gateway.rows(3)
        assert [(row.model, row.route, row.attempts, row.outcome) for row in rows] == [
            ("fast", "fast", 0, "refused")
        ] * 3
        assert not dear.received


async def test_the_step_that_is_not_tried_for_want_of_money_is_named(gateway_with: StartGateway) -> None:
    """The cheap step could be paid, and does not take the cause."""
    steps = [{"models": ["dear"]}, {"models": ["cheap"], "on": ["rate_limited"]}]
    async with ScriptedUpstream([answer(COMPLETION)]) as dear, ScriptedUpstream([answer(COMPLETION)]) as cheap:
        gateway = await gateway_with(site(dear, cheap, {"name": "fast", "step": steps}))
        fields = {"name": "poor", "account": "acme", "quota_usd": 0.0009, "quota_period": "lifetime"}
        key = await gateway.app[SERVICES].auth.accounts.add_key(fields)
        headers = {"Authorization": f"Bearer {key['secret']}"}
        async with gateway.post({**HELLO, "model": "fast", "max_tokens": 8}, headers=headers) as response:
            message = (await response.json())["error"]["message"]
        assert "step 2 of the route 'fast', its cheapest, is not tried for the cause 'budget'" in message
        assert not cheap.received


async def test_streams_end_on_the_steps_they_began_with_while_the_route_is_edited_and_deleted(
    gateway_with: StartGateway,
) -> None:
    """One stream has begun, the other one waits for the first step, which then fails: neither sees the new route."""
    entered, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def wait(_received: Received) -> None:
        entered.release()
        await go_on.wait()

    begun: Script = [
        SSE_HEAD, chunk(event(delta("one"))), wait, chunk(event(delta(" two", "stop")) + event(usage_frame()) + DONE),
        LAST_CHUNK,
    ]  # fmt: skip
    async with (
        ScriptedUpstream(begun, [wait, DOWN]) as dear,
        ScriptedUpstream(chat_script("cheap", " words")) as cheap,
        ScriptedUpstream([answer(COMPLETION)]) as other,
    ):
        tables = site(dear, cheap)
        tables["channel"].append(channel(other.base_url, "of-other", models=["other"], **UNHURRIED))
        gateway = await gateway_with(tables)
        admin = AdminApi(gateway)
        await admin("PUT", "/routes/fast", {"step": CHAIN["step"]})
        streams = []
        for _ in range(2):
            streams.append(asyncio.ensure_future(ask(gateway, stream=True)))
            await entered.acquire()
        await admin("PUT", "/routes/fast", {"step": [{"models": ["other"]}]})
        assert (await ask(gateway)).status == 200
        await admin("DELETE", "/routes/fast")
        assert (await ask(gateway)).status == 404
        go_on.set()
        first, second = [await stream for stream in streams]
        assert b"one" in first.body
        assert b" two" in first.body
        assert b"cheap" in second.body
        assert [heard.headers["x-gateway-step"] for heard in (first, second)] == ["1", "2"]
        assert (len(cheap.received), len(other.received)) == (1, 1)
        rows = {row.id: row for row in await gateway.rows(4)}
        served = sorted((row.route, row.served_model) for row in rows.values() if row.attempts)
        assert served == [("fast", "cheap"), ("fast", "dear"), ("fast", "other")]
        await gateway.check_books()


@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_of_a_step_that_gives_one_at_a_time_cost_as_many(
    gateway_with: StartGateway, stream: bool
) -> None:
    """The first step would give both in one answer; the second one is asked twice."""
    async with ScriptedUpstream([BUSY]) as dear, AnthropicProvider(Says("So.", cached=0)) as claude:
        lines = [
            channel(dear.base_url, "of-dear", models=["dear"], **UNHURRIED),
            claude.channel("of-cheap", models=["cheap"], model_map={}),
        ]
        gateway = await gateway_with({"channel": lines, "price": [DEAR, CHEAP], "route": [CHAIN]})
        heard = await ask(gateway, n=2, stream=stream)
        assert (heard.status, heard.headers["x-gateway-step"]) == (200, "2")
        assert heard.body.count(b"So.") == 2 if not stream else b'"index":1' in heard.body
        (row,) = await gateway.rows(1)
        assert (row.served_model, row.prompt_tokens, row.completion_tokens) == ("cheap", 2 * 21, 2 * 13)
        assert row.cost_nanos == 2 * (21 + 13) * 10_000
        assert len(claude.heard) == 2


async def test_a_stream_of_images_is_answered_by_the_second_step_at_its_price(gateway_with: StartGateway) -> None:
    image = base64.b64encode(draw()).decode()
    fields = {"created_at": 1, "size": "1024x1024", "quality": "low", "background": "opaque", "output_format": "png"}
    completed = {"type": "image_generation.completed", "b64_json": image, **fields}
    frame = f"event: {completed['type']}\n".encode() + event(completed)
    async with ScriptedUpstream([BUSY]) as dear, ScriptedUpstream([SSE_HEAD, chunk(frame), LAST_CHUNK]) as cheap:
        tables = site(dear, cheap, {"name": "fast", "step": [{"models": ["dear"]}, {"models": [IMAGE_MODEL]}]})
        tables["channel"][1] |= {"provider": "openai", "models": [IMAGE_MODEL]}
        tables["price"] = [{"model": "dear", "usd_per_image": 0.4}, {"model": IMAGE_MODEL, "usd_per_image": 0.01}]
        gateway = await gateway_with(tables)
        body = {"model": "fast", "prompt": "a cat", "stream": True}
        async with gateway.client.post(f"{gateway.url}/v1/images/generations", json=body) as response:
            heard = await hear(response)
        assert (heard.status, heard.headers["x-gateway-step"]) == (200, "2")
        assert b"image_generation.completed" in heard.body
        assert image.encode() in heard.body
        (row,) = await gateway.rows(1)
        assert (row.route, row.served_model, row.images, row.cost_nanos) == ("fast", IMAGE_MODEL, 1, 10_000_000)
        assert cheap.received[0].json["stream"] is True
        assert [(one.step, one.cause) for one in parse_attempts(row.tried)] == [(1, "rate_limited"), (2, "")]


@pytest.mark.parametrize(("limit", "cause"), [({"max_concurrency": 1}, "unavailable"), ({"rpm": 1}, "rate_limited")])
async def test_two_routes_share_the_limits_of_a_channel(
    gateway_with: StartGateway, limit: dict[str, int], cause: str
) -> None:
    """While a request of one route uses the channel's only place, the other route goes on to its next step."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_received: Received) -> None:
        entered.set()
        await go_on.wait()

    async with ScriptedUpstream([wait, answer(COMPLETION)]) as dear, ScriptedUpstream([answer(COMPLETION)]) as cheap:
        tables = site(dear, cheap, CHAIN, {**CHAIN, "name": "second"})
        tables["channel"][0] |= limit
        gateway = await gateway_with(tables)
        running = asyncio.ensure_future(ask(gateway))
        await entered.wait()
        heard = await ask(gateway, model="second")
        assert (heard.status, heard.headers["x-gateway-step"]) == (200, "2")
        go_on.set()
        assert (await running).headers["x-gateway-step"] == "1"
        again = await ask(gateway, model="second")
        assert again.headers["x-gateway-step"] == ("1" if "max_concurrency" in limit else "2")
        rows = await gateway.rows(3)
        passed = next(row for row in rows if row.served_model == "cheap")
        assert [(one.step, one.cause) for one in parse_attempts(passed.tried)] == [(1, cause), (2, "")]
        assert passed.route == "second"


async def test_explain_tells_the_draw_of_models_and_what_keeps_a_conversation(gateway_with: StartGateway) -> None:
    canary = {"models": [{"model": "dear", "weight": 9}, "cheap", "missing"]}
    async with ScriptedUpstream([answer(COMPLETION)]) as dear, ScriptedUpstream([answer(COMPLETION)]) as cheap:
        gateway = await gateway_with(site(dear, cheap, {"name": "fast", "step": [canary]}))
        admin = AdminApi(gateway)
        explained = await admin("GET", "/explain?model=fast")
        models = [(model["model"], model["chance"]) for model in explained["steps"][0]["models"]]
        assert models == [("dear", 0.9), ("cheap", 0.1), ("missing", 0.0)]
        assert explained["affinity"] == {"mode": "auto", "keeps_s": 600, "has_choice": True}
        assert (await admin("GET", "/explain?model=dear"))["affinity"]["has_choice"] is False
        await admin("PUT", "/settings/routing/affinity", {"value": "off"})
        assert (await admin("GET", "/explain?model=fast"))["affinity"]["mode"] == "off"
