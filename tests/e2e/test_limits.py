"""Quotas and limits as the OpenAI SDK sees them: what it raises, and what it retries by itself."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, PermissionDeniedError, RateLimitError

from gateway.domain.request_log import RequestFilter
from gateway.server.context import SERVICES
from tests.support.batch_calls import await_end, make_line, read_results, start
from tests.support.capped_calls import stream_until
from tests.support.fast_provider import SwiftUpstream, slow
from tests.support.fault_scene import site
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

ASK: list[Any] = [{"role": "user", "content": "hi"}]
NOTHING_LEFT = {"quota_usd": 0}
RETRIES = 2


def key_with(**more: Any) -> list[dict[str, Any]]:
    return [{"name": "test", "account": "acme", "secret": KEY, **more}]


async def chat(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(model="m", messages=ASK, **more)


async def refused(client: AsyncOpenAI, *, stream: bool) -> APIStatusError:
    with pytest.raises(APIStatusError) as caught:
        await chat(client, stream=stream)
    return caught.value


async def until_limited(gateway: RunningGateway) -> None:
    """Return once a call was refused for a rate limit, while others still run."""
    services = gateway.app[SERVICES]
    async with asyncio.timeout(3):
        while not await services.admin.request_log.list_requests(RequestFilter(status=429), 1):
            await asyncio.sleep(0.01)
            await services.billing.flusher.store_waiting()


@pytest.mark.parametrize(("of", "stream"), [("key", True), ("account", False)])
async def test_an_exhausted_lifetime_quota_raises_permission_denied_and_is_not_retried(
    gateway_with: StartGateway, sdk: MakeClient, of: str, stream: bool
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        account = {"name": "acme", **(NOTHING_LEFT if of == "account" else {})}
        key = key_with(**(NOTHING_LEFT if of == "key" else {}))
        gateway = await gateway_with(site(channel(up.base_url), account=[account], key=key))
        error = await refused(sdk(gateway, max_retries=RETRIES), stream=stream)
        assert isinstance(error, PermissionDeniedError)
        assert (error.code, error.type, error.param) == ("insufficient_quota", "new_api_error", None)
        assert ("this API key" if of == "key" else "the account") in error.message
        assert error.response.request.headers["x-stainless-retry-count"] == "0"
        await gateway.rows(1)
        assert not up.received


async def test_an_exhausted_daily_quota_raises_rate_limit_error_and_is_not_retried(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        key = key_with(**NOTHING_LEFT, quota_period="daily")
        gateway = await gateway_with(site(channel(up.base_url), key=key))
        error = await refused(sdk(gateway, max_retries=RETRIES), stream=True)
        assert isinstance(error, RateLimitError)
        assert (error.code, error.response.headers["x-should-retry"]) == ("insufficient_quota", "false")
        assert int(error.response.headers["retry-after"]) > 0
        await gateway.rows(1)
        assert not up.received


@pytest.mark.slow
async def test_a_rate_limit_is_retried_when_it_says_and_then_passes(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    """The SDK waits the one second that it is told."""
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go), [answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), key=key_with(max_concurrency=1)))
        client = sdk(gateway, max_retries=RETRIES)
        stream = await chat(client, stream=True)
        second = asyncio.create_task(chat(client))
        await until_limited(gateway)
        go.set()
        assert [chunk async for chunk in stream]
        completion = await second
        assert completion.choices[0].message.content == "hello"
        rows = await gateway.rows(3)
        assert sorted(row.status for row in rows) == [200, 200, 429]
        assert sum(row.cost_nanos for row in rows) == 2 * 19_000
        assert len(up.received) == 2


async def test_rate_limit_headers_are_readable(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), key=key_with(rpm=1)))
        client = sdk(gateway)
        raw = await client.chat.completions.with_raw_response.create(model="m", messages=ASK)
        assert raw.headers["x-ratelimit-limit-requests"] == "1"
        assert raw.headers["x-ratelimit-remaining-requests"] == "0"
        assert raw.headers["x-ratelimit-reset-requests"] == "1m0s"
        error = await refused(client, stream=False)
        assert isinstance(error, RateLimitError)
        assert error.code == "rate_limit_exceeded"
        assert "x-should-retry" not in error.response.headers
        assert 50 <= int(error.response.headers["retry-after"]) <= 60
        assert error.response.headers["x-ratelimit-remaining-requests"] == "0"
        await gateway.rows(2)


async def test_a_restriction_raises_permission_denied_and_is_not_retried(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    gateway = await gateway_with(site(channel("http://127.0.0.1:9/v1"), key=key_with(models=["other"])))
    error = await refused(sdk(gateway, max_retries=RETRIES), stream=True)
    assert isinstance(error, PermissionDeniedError)
    assert (error.code, error.param) == ("model_not_allowed", "model")
    assert error.response.request.headers["x-stainless-retry-count"] == "0"
    (row,) = await gateway.rows(1)
    assert (row.outcome, row.status, row.attempts) == ("refused", 403, 0)


async def test_lines_of_batches_spend_what_their_users_may(gateway_with: StartGateway, sdk: MakeClient) -> None:
    """A limit of users holds for the lines of a batch: five of eight are answered for each user, and those of nobody.

    The chats of a user and the lines spend the same limit.
    """
    users = ["u1", "u2", "u3", ""]
    limit = {"name": "each user", "of": "user", "usd": 0.05, "window": "day"}
    lines = [
        make_line(8 * index + number, model="m", messages=ASK, max_tokens=9, **({"user": user} if user else {}))
        for index, user in enumerate(users)
        for number in range(8)
    ]
    async with SwiftUpstream() as up:
        up.behaviour = slow(0.01)
        config = {"channel": [channel(up.base_url)], "price": [{"model": "m", "usd_per_call": 0.01}], "limit": [limit]}
        gateway = await gateway_with(config)
        client = sdk(gateway)
        await chat(client, user="u3")
        batch = await await_end(client, await start(client, lines))
        assert batch.request_counts is not None
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 22, 10)
        refusals = (await read_results(client, batch.error_file_id)).values()
        assert {one["response"]["body"]["error"]["code"] for one in refusals} == {"insufficient_quota"}
        with pytest.raises(RateLimitError, match="The limit 'each user' of the user 'u2'"):
            await chat(client, user="u2")
        rows = await gateway.rows(len(lines) + 2)
        answered = Counter(row.end_user for row in rows if row.cost_nanos)
        assert answered == {"u1": 5, "u2": 5, "u3": 5, "": 8}
        assert len(up.seen) == answered.total()
        await gateway.check_books()
