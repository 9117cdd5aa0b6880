"""Rate limits over HTTP: what passes, what a caller is told, and when a place is free again."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from valkey.asyncio import Valkey

from gateway.cluster.limits.limiter import SharedRateLimiter
from gateway.server.context import SERVICES
from tests.support.admin_calls import ask_office
from tests.support.capped_calls import RESERVE, stream_until
from tests.support.fault_scene import PRICE, site, until
from tests.support.gateway import HELLO, KEY, RunningGateway, channel, channels
from tests.support.limit_servers import running_redis, wait_until_reached
from tests.support.scripted_upstream import (
    COMPLETION,
    FIN,
    RST,
    SSE_HEAD,
    STALL,
    ScriptedUpstream,
    Step,
    answer,
    chat_script,
    chunk,
    delta,
    event,
)
from tests.support.started_gateways import StartGateway

OTHER_KEY = "sk-test-key-of-the-second-caller"
ANSWERS: list[Step] = [answer(COMPLETION)]
STREAM = {**HELLO, "stream": True}
REQUESTS, TOKENS = "x-ratelimit-{}-requests", "x-ratelimit-{}-tokens"


def tenants(of: str, **limits: Any) -> dict[str, Any]:
    """Two keys of one account; the ``limits`` are the first key's, or the account's."""
    first, account = (limits, {}) if of == "key" else ({}, limits)
    return {
        "account": [{"name": "acme", **account}],
        "key": [
            {"name": "first", "account": "acme", "secret": KEY, **first},
            {"name": "second", "account": "acme", "secret": OTHER_KEY},
        ],
    }


def limits_of(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if name.lower().startswith("x-ratelimit-")}


async def call(gateway: RunningGateway, key: str = KEY, body: Any = None) -> tuple[int, Mapping[str, str], Any]:
    """Status, headers and JSON of a small call."""
    async with gateway.post(body, headers={"Authorization": f"Bearer {key}"}) as response:
        return response.status, response.headers, await response.json()


def check_limited(found: tuple[int, Mapping[str, str], Any], sentence: str, waits: range) -> None:
    """The answer of a limit that is reached: what it is, how long to wait, and leave to try again."""
    status, headers, body = found
    error = body["error"]
    assert (status, error["code"], error["type"]) == (429, "rate_limit_exceeded", "new_api_error")
    assert error["message"].startswith(f"{sentence} is reached")
    assert int(headers["Retry-After"]) in waits
    assert "x-should-retry" not in headers


SENTENCES = {"key": "This key's limit of", "account": "The account's limit of"}


@pytest.mark.parametrize("of", ["key", "account"])
async def test_requests_a_minute_are_limited_for_a_key_or_for_all_keys_of_an_account(
    gateway_with: StartGateway, of: str
) -> None:
    """The burst passes at once; from then on one every ``60 / limit`` seconds."""
    async with ScriptedUpstream(ANSWERS) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants(of, rpm=20, burst=2)))
        assert [(await call(gateway))[0] for _ in range(2)] == [200, 200]
        check_limited(await call(gateway), f"{SENTENCES[of]} 20 requests per minute (2 at once)", range(1, 4))
        status, headers, _ = found = await call(gateway, OTHER_KEY)
        if of == "key":
            assert (status, limits_of(headers)) == (200, {})
        else:
            check_limited(found, f"{SENTENCES[of]} 20 requests per minute (2 at once)", range(1, 4))
        assert len(up.received) == (3 if of == "key" else 2)
        rows = await gateway.rows(4)
        for row in (row for row in rows if row.status == 429):
            assert (row.outcome, row.error_code, row.attempts) == ("refused", "rate_limit_exceeded", 0)
            assert (row.cost_nanos, row.reserved_nanos, row.channel) == (0, 0, None)


async def test_a_minutes_requests_may_come_at_once_and_the_next_is_told_when(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(ANSWERS) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants("key", rpm=10)))
        found = await asyncio.gather(*(call(gateway) for _ in range(10)))
        assert [status for status, _, _ in found] == [200] * 10
        check_limited(refused := await call(gateway), "This key's limit of 10 requests per minute", range(1, 7))
        assert f"retry in {refused[1]['Retry-After']} s" in refused[2]["error"]["message"]


@pytest.mark.parametrize("of", ["key", "account"])
async def test_tokens_a_minute_count_what_a_call_really_used(gateway_with: StartGateway, of: str) -> None:
    """One token is estimated for the prompt, twelve are used: three too many for another one, which is 18 seconds."""
    async with ScriptedUpstream(ANSWERS) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants(of, tpm=10)))
        _, headers, _ = await call(gateway)
        assert limits_of(headers).items() >= {TOKENS.format("limit"): "10", TOKENS.format("remaining"): "9"}.items()
        check_limited(await call(gateway), f"{SENTENCES[of]} 10 tokens per minute", range(10, 19))
        status, _, _ = await call(gateway, OTHER_KEY)
        assert status == (200 if of == "key" else 429)
        assert len(up.received) == (2 if of == "key" else 1)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_tokens_that_a_request_names_are_taken_at_its_start_and_what_it_did_not_use_is_given_back(
    gateway_with: StartGateway, name: str
) -> None:
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go)) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants("key", tpm=1_000)))
        named = {**STREAM, name: 600}
        async with gateway.post(named) as first:
            assert first.headers[TOKENS.format("remaining")] in {"398", "399"}
            check_limited(await call(gateway, KEY, named), "This key's limit of 1000 tokens per minute", range(10, 14))
            go.set()
            await first.read()
        async with gateway.post(named) as second:
            assert second.status == 200
            await second.read()
        assert len(up.received) == 2


async def test_a_prompt_above_the_burst_passes_alone_and_is_a_debt(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(ANSWERS) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants("key", tpm=10)))
        long = {"model": "m", "messages": [{"role": "user", "content": "word " * 200}]}
        status, headers, _ = await call(gateway, KEY, long)
        assert (status, headers[TOKENS.format("remaining")]) == (200, "0")
        # 250 tokens were estimated, 12 used: the rest of the estimate is given back.
        check_limited(await call(gateway), f"{SENTENCES['key']} 10 tokens per minute", range(10, 19))


@pytest.mark.parametrize("of", ["key", "account"])
async def test_requests_at_once_are_limited_for_a_key_or_for_all_keys_of_an_account(
    gateway_with: StartGateway, of: str
) -> None:
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go)) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants(of, max_concurrency=2)))
        async with AsyncExitStack() as running:
            streams = [await running.enter_async_context(gateway.post(STREAM)) for _ in range(2)]
            for stream in streams:
                assert (stream.status, limits_of(stream.headers)) == (200, {})
            for _ in range(3):
                check_limited(await call(gateway), f"{SENTENCES[of]} 2 concurrent requests", range(1, 2))
            assert gateway.app[SERVICES].billing.quota._balances.find_balance("account", 1).held_nanos == 2 * RESERVE
            if of == "account":
                check_limited(await call(gateway, OTHER_KEY), f"{SENTENCES[of]} 2 concurrent requests", range(1, 2))
            go.set()
            for stream in streams:
                await stream.read()
        async with gateway.post(STREAM) as response:
            assert response.status == 200
            await response.read()
        assert len(up.received) == 3


async def test_a_limit_of_one_is_said_in_the_singular(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(ANSWERS) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants("key", rpm=1)))
        assert (await call(gateway))[0] == 200
        check_limited(await call(gateway), "This key's limit of 1 request per minute", range(50, 61))


async def test_how_a_caller_stands_is_on_every_answer_of_a_call_that_was_admitted_or_limited(
    gateway_with: StartGateway,
) -> None:
    scripts: list[list[Step]] = [
        ANSWERS,
        chat_script("a"),
        [answer({"error": {"message": "no", "type": "x", "param": None, "code": "bad"}}, 400)],
        [answer(b"down", 503)],
    ]
    async with ScriptedUpstream(*scripts) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants("key", rpm=40, burst=4, tpm=10_000)))
        left = 4
        for body, status in ((HELLO, 200), (STREAM, 200), (HELLO, 400), (STREAM, 502)):
            async with gateway.post(body) as response:
                found = limits_of(response.headers)
                assert response.status == status
            assert (found[REQUESTS.format("limit")], found[TOKENS.format("limit")]) == ("40", "10000")
            left, before = int(found[REQUESTS.format("remaining")]), left
            assert before - 1 <= left < 4
            assert int(found[TOKENS.format("remaining")]) > 9_000
            assert found[REQUESTS.format("reset")].endswith("s")
            assert found[TOKENS.format("reset")].endswith("ms")
            assert len(found) == 6
        status = 0
        while status != 429:
            status, headers, _ = await call(gateway)
        found = limits_of(headers)
        assert (found[REQUESTS.format("limit")], found[REQUESTS.format("remaining")]) == ("40", "0")
        assert found[TOKENS.format("limit")] == "10000"


async def test_the_stricter_of_key_and_account_is_what_a_caller_is_told(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(ANSWERS) as up:
        config = tenants("account", rpm=30, burst=3, tpm=1_000_000)
        config["key"][0] |= {"rpm": 600, "tpm": 2_000}
        gateway = await gateway_with(site(channel(up.base_url), **config))
        _, headers, _ = await call(gateway)
        found = limits_of(headers)
        assert (found[REQUESTS.format("limit")], found[REQUESTS.format("remaining")]) == ("30", "2")
        assert (found[TOKENS.format("limit")], found[TOKENS.format("remaining")]) == ("2000", "1999")


async def test_a_caller_without_limits_hears_of_none(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(ANSWERS, chat_script("a")) as up:
        gateway = await gateway_with(channels([up]))
        for body in (HELLO, STREAM):
            async with gateway.post(body) as response:
                assert limits_of(response.headers) == {}
                await response.read()


FAILURES: dict[str, tuple[list[Step], Any]] = {
    "a good answer": (ANSWERS, HELLO),
    "a good stream": (chat_script("a"), STREAM),
    "a refusal of the provider's": ([answer({"error": {"message": "no"}}, 400)], HELLO),
    "an error of the provider's": ([answer(b"down", 500)], HELLO),
    "no answer": ([RST], HELLO),
    "no stream": ([FIN], STREAM),
    "no event": ([SSE_HEAD, FIN], STREAM),
    "half a stream": ([SSE_HEAD, chunk(event(delta("a"))), RST], STREAM),
    "garbage": ([answer(b"<html>")], HELLO),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_place_is_free_again_whatever_the_provider_did(gateway_with: StartGateway, name: str) -> None:
    script, body = FAILURES[name]
    async with ScriptedUpstream(script) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants("key", max_concurrency=1)))
        for _ in range(3):
            async with gateway.post(body) as response:
                assert response.status != 429
                await response.read()
        await gateway.rows(3)
        assert gateway.app[SERVICES].billing.quota.open_reservations == 0


@pytest.mark.parametrize("heard", [False, True])
async def test_a_place_is_free_again_when_its_caller_has_left(gateway_with: StartGateway, heard: bool) -> None:
    script: list[Step] = [SSE_HEAD, chunk(event(delta("a"))), STALL] if heard else [STALL]
    async with ScriptedUpstream(script, script, script, ANSWERS) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants("account", max_concurrency=1)))
        for number in range(3):
            task = asyncio.create_task(call(gateway, KEY, STREAM))
            await until(lambda number=number: len(up.received) > number)  # type: ignore[misc]
            check_limited(await call(gateway, OTHER_KEY), "The account's limit of 1 concurrent request", range(1, 2))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: gateway.app[SERVICES].billing.quota.open_reservations == 0)
        assert (await call(gateway))[0] == 200
        await gateway.rows(7)


async def test_calls_that_were_refused_for_another_reason_take_no_place_and_no_turn(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(ANSWERS) as up:
        config = tenants("account", rpm=10, burst=1, max_concurrency=1)
        config["key"][0] |= {"quota_usd": 0}
        gateway = await gateway_with(site(channel(up.base_url), **config))
        for body, status in (
            (HELLO, 403),
            ({**HELLO, "model": "nothing"}, 404),
            ({**HELLO, "n": 0}, 400),
            (STREAM, 403),
        ):
            found, headers, _ = await call(gateway, KEY, body)
            assert (found, limits_of(headers)) == (status, {})
        status, headers, _ = await call(gateway, OTHER_KEY)
        assert (status, headers[REQUESTS.format("limit")], headers[REQUESTS.format("remaining")]) == (200, "10", "0")
        assert len(up.received) == 1
        await gateway.rows(5)


async def test_a_limited_call_holds_nothing_and_costs_nothing(gateway_with: StartGateway) -> None:
    """The cap has room for one call: a limited one must not take it."""
    async with ScriptedUpstream(ANSWERS) as up:
        config = tenants("key", rpm=10, burst=1, quota_usd=(RESERVE + 30_000) / 10**9)
        gateway = await gateway_with(site(channel(up.base_url), **config))
        assert [(await call(gateway))[0] for _ in range(4)] == [200, 429, 429, 429]
        balance = gateway.app[SERVICES].billing.quota._balances.find_balance("key", 1)
        assert (balance.held_nanos, balance.lifetime.spent_nanos) == (0, 19_000)
        rows = await gateway.rows(4)
        assert [row.cost_nanos for row in rows] == [19_000, 0, 0, 0]


async def test_a_changed_limit_counts_from_the_next_call_on(gateway_with: StartGateway) -> None:
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go)) as up:
        gateway = await gateway_with(site(channel(up.base_url)))
        office = partial(ask_office, gateway)
        await office("POST", "/accounts", {"name": "new", "max_concurrency": 1})
        _, made = await office("POST", "/keys", {"name": "k", "account": "new", "rpm": 1})
        key = made["secret"]
        headers = {"Authorization": f"Bearer {key}"}
        async with gateway.post(STREAM, headers=headers) as first:
            assert first.status == 200
            check_limited(await call(gateway, key), "This key's limit of 1 request per minute", range(50, 61))
            await office("PATCH", f"/keys/{made['id']}", {"rpm": None})
            check_limited(await call(gateway, key), "The account's limit of 1 concurrent request", range(1, 2))
            await office("PATCH", "/accounts/new", {"max_concurrency": 2})
            async with gateway.post(STREAM, headers=headers) as second:
                assert (second.status, limits_of(second.headers)) == (200, {})
                await office("PATCH", "/accounts/new", {"max_concurrency": 1})
                go.set()
                await second.read()
            await first.read()
        async with gateway.post(STREAM, headers=headers) as response:
            assert response.status == 200
            await response.read()


@pytest.mark.parametrize("of", ["key", "account"])
async def test_of_many_at_once_as_many_run_as_may(gateway_with: StartGateway, of: str) -> None:
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go)) as up:
        config = tenants(of, max_concurrency=5)
        gateway = await gateway_with({**channels([up]), "price": [PRICE], **config})

        async def stream() -> int:
            async with gateway.post(STREAM) as response:
                statuses.append(response.status)
                await response.read()
                return int(response.status)

        statuses: list[int] = []
        streams = asyncio.gather(*(stream() for _ in range(40)))
        await until(lambda: len(statuses) == 40)
        assert len(up.received) == 5
        go.set()
        assert sorted(await streams) == [200] * 5 + [429] * 35
        rows = await gateway.rows(40)
        assert sum(row.cost_nanos for row in rows) == 5 * 19_000


async def test_a_gateway_over_valkey_counts_there(gateway_with: StartGateway) -> None:
    async with running_redis() as redis, ScriptedUpstream(ANSWERS) as up:
        config = site(channel(up.base_url), **tenants("key", rpm=1), rate_limits={"store": "valkey", "url": redis.url})
        gateway = await gateway_with(config)
        limiter = gateway.app[SERVICES].billing.quota._counters
        assert isinstance(limiter, SharedRateLimiter)
        await wait_until_reached(limiter, away=False)
        assert (await call(gateway))[0] == 200
        check_limited(await call(gateway), "This key's limit of 1 request per minute", range(30, 61))
        async with Valkey.from_url(redis.url) as client:
            assert await client.keys("gateway:key:*")
