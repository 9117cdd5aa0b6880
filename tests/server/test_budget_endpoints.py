"""Budgets in realtime sessions and video jobs, which hold, and at endpoints that hold none, which say so."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gateway.domain.price import NANOS_PER_USD
from tests.support.admin_calls import AdminApi
from tests.support.fault_scene import site
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.realtime_provider import COST, PRICES, RealtimeProvider
from tests.support.started_gateways import StartGateway
from tests.support.video_scene import await_job

BUDGET = "x-gateway-budget"
ONE_RESPONSE_NANOS = 83_400_000
"""Covers the longest response once, and not again after a response that cost ``COST``."""


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[RealtimeProvider]:
    async with RealtimeProvider() as started:
        yield started


@pytest.mark.parametrize("session", ["", "; session=voice"])
async def test_responses_come_out_of_the_budget_of_a_realtime_session(
    gateway_with: StartGateway, provider: RealtimeProvider, session: str
) -> None:
    gateway = await gateway_with({"channel": [provider.channel()], "price": [{"model": "m", **PRICES}]})
    headers = {BUDGET: f"{ONE_RESPONSE_NANOS / NANOS_PER_USD:.9f}{session}"}
    async with gateway.client.ws_connect(f"{gateway.url}/v1/realtime?model=m", headers=headers) as client:
        connection = await provider.accept()
        await client.send_json({"type": "response.create"})
        await connection.expect("response.create")
        await connection.create()
        await connection.finish()
        assert [(await client.receive_json(timeout=10))["type"] for _ in range(2)] == [
            "response.created",
            "response.done",
        ]
        await client.send_json({"type": "response.create"})
        error = (await client.receive_json(timeout=10))["error"]
        assert error["code"] == "budget_exceeded"
        assert "$0.0834" in error["message"]
    rows = [row for row in await gateway.rows(2) if row.cost_nanos]
    assert [(row.session, row.cost_nanos) for row in rows] == [("voice" if session else "", COST)]
    await gateway.check_books()


async def test_a_response_that_the_provider_begins_by_itself_comes_out_of_the_budget(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with({"channel": [provider.channel()], "price": [{"model": "m", **PRICES}]})
    headers = {BUDGET: "0.000001"}
    async with gateway.client.ws_connect(f"{gateway.url}/v1/realtime?model=m", headers=headers) as client:
        connection = await provider.accept()
        await connection.create()
        await connection.finish()
        while (await client.receive(timeout=10)).type is aiohttp.WSMsgType.TEXT:
            pass
    (charged,) = [row for row in await gateway.rows(2) if row.cost_nanos]
    assert (charged.cost_nanos, charged.overrun_nanos) == (COST, COST - 1_000)
    await gateway.check_books()


async def test_a_realtime_session_with_a_malformed_budget_is_refused(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with({"channel": [provider.channel()], "price": [{"model": "m", **PRICES}]})
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await gateway.client.ws_connect(f"{gateway.url}/v1/realtime?model=m", headers={BUDGET: "much"})
    assert (refusal.value.status, provider.asked) == (400, 0)


@pytest.mark.parametrize("session", ["", "; session=film"])
async def test_a_video_comes_out_of_its_budget(gateway_with: StartGateway, session: str) -> None:
    async with OpenAiVideos(Play(polls=("completed",))) as films:
        config = {
            "channel": [{**films.channel("films"), "models": ["film"]}],
            "price": [{"model": "film", "usd_per_second": 0.1}],
        }
        gateway = await gateway_with(config)
        video = {"model": "film", "prompt": "waves", "seconds": "4"}
        status, value = await ask(gateway, "/v1/videos", video, f"0.3{session}")
        assert (status, value["error"]["code"]) == (403, "budget_exceeded")
        status, value = await ask(gateway, "/v1/videos", video, f"0.7{'; session=two' if session else ''}")
        assert status == 200, value
        if session:
            status, value = await ask(gateway, "/v1/videos", video, "0.7; session=two")
            assert (status, value["error"]["code"]) == (403, "budget_exceeded")
            (one,) = (await AdminApi(gateway)("GET", "/request-sessions?session=two"))["data"]
            assert one["budget_left_usd"] == pytest.approx(0.3)
        await await_job(gateway, "waves", "completed")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/batches", {"input_file_id": "file-x", "endpoint": "/v1/embeddings", "completion_window": "24h"}),
        ("/v1/messages/batches", {"requests": []}),
        ("/v1/quote", HELLO),
        ("/v1/realtime/client_secrets", {"session": {"type": "realtime", "model": "m"}}),
    ],
)
async def test_endpoints_that_hold_no_budget_say_so(gateway_with: StartGateway, path: str, body: Any) -> None:
    gateway = await gateway_with(site(channel("http://127.0.0.1:9/v1")))
    status, value = await ask(gateway, path, body, "1")
    assert status == 400
    assert BUDGET in value["error"]["message"]


async def ask(gateway: RunningGateway, path: str, body: Any, budget: str) -> tuple[int, Any]:
    async with gateway.post(body, path, headers={BUDGET: budget}) as response:
        return response.status, await response.json()
