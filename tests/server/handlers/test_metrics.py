"""``GET /metrics`` of a gateway that serves: what it says, and to whom."""

from typing import Any

import aiohttp
import pytest

from gateway.server.context import SERVICES
from tests.support.fault_scene import PRICE
from tests.support.gateway import HELLO, channel
from tests.support.openai_videos import Answered, OpenAiVideos, Play
from tests.support.scrapes import find_value, scrape
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer, chat_script
from tests.support.started_gateways import ReadLog, StartGateway
from tests.support.video_scene import audit, await_ends, site, submit

TOKEN = "token-of-a-scraper-81"
NOWHERE = {"channel": [channel("http://127.0.0.1:9/v1")]}
STREAM = HELLO | {"stream": True}


async def test_requests_are_counted_with_tokens_cost_and_latency(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], chat_script("good", "words")) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)], "price": [PRICE]})
        for body in (HELLO, STREAM):
            async with gateway.post(body) as response:
                await response.read()
        rows = await gateway.rows(2)
        families = await scrape(gateway)
    where = {"operation": "chat", "model": "m", "channel": "up"}
    assert find_value(families, "gateway_requests_total", **where, outcome="completed") == 2
    assert find_value(families, "gateway_tokens_total", **where, type="input") == sum(r.prompt_tokens for r in rows)
    assert find_value(families, "gateway_tokens_total", **where, type="output") == sum(
        r.completion_tokens for r in rows
    )
    assert find_value(families, "gateway_cost_usd_total", **where) == sum(r.cost_nanos for r in rows) / 10**9 > 0
    chat = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "custom", "gen_ai_request_model": "m"}
    assert find_value(families, "gen_ai_server_request_duration_seconds_count", **chat, error_type="") == 2
    assert find_value(families, "gen_ai_server_time_to_first_token_seconds_count", **chat) == 1
    assert find_value(families, "gen_ai_server_time_per_output_token_seconds_count", **chat) == 1
    assert find_value(families, "gateway_channel_state", channel="up", state="healthy") == 1
    assert find_value(families, "gateway_channel_attempts_total", channel="up") == 2
    assert find_value(families, "gateway_overhead_seconds_count") == 1, "of the request that is not a stream"
    assert 0 < (find_value(families, "gateway_overhead_seconds_sum") or 0) < 10
    assert find_value(families, "gateway_unwritten_records") == 0
    assert (find_value(families, "process_cpu_seconds_total") or 0) > 0


async def test_failures_retries_and_refusals_are_counted(gateway_with: StartGateway) -> None:
    limited = {"name": "test", "account": "acme", "secret": "sk-" + "b" * 20, "rpm": 1, "burst": 1}
    async with ScriptedUpstream([answer(b"down", 500)]) as bad, ScriptedUpstream([answer(COMPLETION)]) as up:
        ups = [channel(bad.base_url, "bad", priority=1), channel(up.base_url, "good")]
        config: dict[str, Any] = {"channel": ups, "account": [{"name": "acme"}], "key": [limited]}
        gateway = await gateway_with(config)
        key = {"Authorization": f"Bearer {limited['secret']}"}
        statuses = []
        for model in ("m", "m", "guess"):
            async with gateway.post(HELLO | {"model": model}, headers=key) as response:
                statuses.append(response.status)
        assert statuses == [200, 429, 404]
        families = await scrape(gateway)
    assert find_value(families, "gateway_retries_total", channel="good", model="m") == 1
    assert find_value(families, "gateway_channel_failures_total", channel="bad") == 1
    assert (
        find_value(families, "gateway_request_errors_total", channel="", outcome="refused", code="rate_limit_exceeded")
        == 1
    )
    assert find_value(families, "gateway_request_errors_total", outcome="refused", code="insufficient_quota") == 0
    assert find_value(families, "gateway_requests_total", model="other", channel="", outcome="refused") == 1


async def test_a_new_scrape_has_what_has_ended_before_it(gateway_with: StartGateway) -> None:
    """The background job has not counted yet; a tripped circuit and a request under way are gauges of the moment."""
    async with ScriptedUpstream([answer(b"down", 500)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)], "routing": {"trip_failures": 1}})
        for expected in (1, 2):
            async with gateway.post() as response:
                assert response.status >= 500
            families = await scrape(gateway)
            assert find_value(families, "gateway_requests_total") == expected
        assert find_value(families, "gateway_channel_state", channel="up", state="healthy") == 0
        assert (find_value(families, "gateway_open_circuits", channel="up") or 0) >= 1


async def test_openmetrics_is_for_who_asks_for_it(gateway_with: StartGateway) -> None:
    gateway = await gateway_with(NOWHERE)
    plain = await scrape(gateway, Accept="text/plain;version=0.0.4")
    families = await scrape(gateway, Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert plain.keys() <= families.keys()
    assert {"gateway_requests", "gateway_build_info", "gateway_event_loop_lag_seconds"} <= families.keys()


@pytest.mark.parametrize(
    ("settings", "headers", "status"),
    [
        ({}, {}, 200),
        ({}, {"X-Forwarded-For": "192.0.2.7"}, 404),
        ({}, {"X-Forwarded-For": "127.0.0.1"}, 404),
        ({}, {"Forwarded": "for=192.0.2.7"}, 404),
        ({"allow": ["192.0.2.0/24"]}, {"X-Forwarded-For": "192.0.2.7"}, 403),
        ({"token": TOKEN}, {"X-Forwarded-For": "192.0.2.7"}, 401),
        ({"token": TOKEN}, {"X-Forwarded-For": "192.0.2.7", "Authorization": f"Bearer {TOKEN}"}, 200),
        ({"token": TOKEN}, {"X-Forwarded-For": "192.0.2.7", "Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"token": TOKEN}, {"X-Forwarded-For": "192.0.2.7", "Authorization": f"Basic {TOKEN}"}, 401),
    ],
)
async def test_a_proxy_that_is_not_trusted_is_not_this_machine(
    gateway_with: StartGateway, settings: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    gateway = await gateway_with({**NOWHERE, "metrics": settings})
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.url}/metrics", headers=headers) as response:
        assert response.status == status
        assert status == 200 or b"gateway_" not in await response.read()


@pytest.mark.parametrize(
    ("settings", "client", "status"),
    [
        ({}, "192.0.2.7", 404),
        ({}, "127.0.0.1", 200),
        ({"allow": ["192.0.2.0/24"]}, "192.0.2.7", 200),
        ({"allow": ["192.0.2.0/24"]}, "198.51.100.1", 403),
    ],
)
async def test_behind_a_trusted_proxy_its_client_counts(
    gateway_with: StartGateway, settings: dict[str, Any], client: str, status: int
) -> None:
    gateway = await gateway_with({**NOWHERE, "metrics": settings, "server": {"trusted_proxies": ["127.0.0.1"]}})
    headers = {"X-Forwarded-For": client}
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.url}/metrics", headers=headers) as response:
        assert response.status == status


async def test_a_scrape_writes_no_line_of_the_log(gateway_with: StartGateway, read_log: ReadLog) -> None:
    await scrape(await gateway_with(NOWHERE))
    assert "/metrics" not in read_log()


async def test_the_records_wait_for_nothing_but_their_turn(gateway_with: StartGateway) -> None:
    """Without a scrape a job counts them, so that they take no memory."""
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)]})
        async with gateway.post() as response:
            assert response.status == 200
        services = gateway.app[SERVICES]
        await services.metrics.count_all()
        assert not services.billing.settlement.ended


async def test_a_video_is_counted_when_its_job_ends(gateway_with: StartGateway) -> None:
    refused = Answered({"error": {"message": "The server had an error"}}, 500)
    async with OpenAiVideos() as up:
        up.plays = {"refused": Play(submit=(refused,))}
        gateway = await gateway_with(site(up.channel(), metrics={}))
        for prompt in ("made", "refused"):
            await submit(gateway, prompt)
        jobs = await await_ends(gateway)
        assert [job.state for job in jobs.values()] == ["completed"]
        families = await scrape(gateway)
        rows = await audit(gateway, up, rows=2)
    cost = sum(row.cost_nanos for row in rows.values()) / 10**9
    assert find_value(families, "gateway_requests_total", operation="videos", outcome="completed") == 1
    assert find_value(families, "gateway_requests_total", operation="videos", outcome="failed") == 1
    assert find_value(families, "gateway_cost_usd_total", operation="videos") == cost > 0
