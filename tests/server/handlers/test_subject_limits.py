"""Limits of end users over realtime sessions and quotes: they bind there, and every cost counts once."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio

from gateway.domain.limit import parse_charges
from gateway.domain.limit_balance import LimitBalance
from gateway.domain.price import NANOS_PER_USD
from gateway.server.context import SERVICES
from tests.support.fault_scene import until
from tests.support.gateway import CHAT, RunningGateway, channel
from tests.support.realtime_provider import COST, PRICES, ProviderSession, RealtimeProvider
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

CREATE = {"type": "response.create"}
LIMIT = {"name": "each user", "of": "user", "window": "lifetime", "status": 429}
REQUEST: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
CALL_NANOS = NANOS_PER_USD // 100
ONE_RESPONSE_NANOS = 83_400_000
"""Covers the longest response once, and not again after a response that cost ``COST``."""
CLOSED_NORMALLY, POLICY_VIOLATION = 1000, 1008


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[RealtimeProvider]:
    async with RealtimeProvider() as started:
        yield started


def limit_sessions(provider: RealtimeProvider, nanos: int) -> dict[str, Any]:
    prices = [{"model": "m", **PRICES}, {"model": "scribe", **PRICES}]
    return {"channel": [provider.channel()], "price": prices, "limit": [{**LIMIT, "usd": nanos / NANOS_PER_USD}]}


@asynccontextmanager
async def connect(gateway: RunningGateway, user: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    headers = {"x-gateway-user": user} if user else {}
    async with gateway.client.ws_connect(f"{gateway.url}/v1/realtime?model=m", headers=headers) as client:
        yield client


async def read(client: aiohttp.ClientWebSocketResponse, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        event: dict[str, Any] = orjson.loads((await client.receive()).data)
    assert event["type"] == kind, event
    return event


async def respond(client: aiohttp.ClientWebSocketResponse, session: ProviderSession) -> None:
    await client.send_json(CREATE)
    await session.expect("response.create")
    await session.create()
    await session.finish()
    await read(client, "response.created")
    await read(client, "response.done")


def list_balances(gateway: RunningGateway) -> list[LimitBalance]:
    spending = gateway.app[SERVICES].billing.limits.spending
    return [balance for book in spending.list_books() for balance in book.balances.values()]


async def test_responses_of_a_session_count_for_its_user(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(limit_sessions(provider, ONE_RESPONSE_NANOS))
    for user, answered in (("u1", 1), ("u2", 1), ("", 3)):
        async with connect(gateway, user) as client:
            session = await provider.accept()
            for _ in range(answered):
                await respond(client, session)
            if user:
                await client.send_json(CREATE)
                error = (await read(client, "error"))["error"]
                assert error["code"] == "insufficient_quota"
                assert f"The limit 'each user' of the user {user!r}" in error["message"]
                assert await session.receive() == CLOSED_NORMALLY
    rows = [row for row in await gateway.rows(8) if row.cost_nanos]
    charged = sorted((row.end_user, len(parse_charges(row.limit_charges)), row.cost_nanos) for row in rows)
    assert charged == [*[("", 0, COST)] * 3, ("u1", 1, COST), ("u2", 1, COST)]
    spent = {balance.subject: (balance.spent_nanos, balance.held_nanos) for balance in list_balances(gateway)}
    assert spent == {"1:u1": (COST, 0), "1:u2": (COST, 0)}
    await gateway.check_books()


async def test_a_response_that_the_provider_begins_counts_for_the_user(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    """A provider that hears silence begins a response by itself: nothing covers the cost, and it counts."""
    gateway = await gateway_with(limit_sessions(provider, 100_000))
    async with connect(gateway, "u1") as client:
        session = await provider.accept()
        await session.create("resp_7")
        assert (await read(client, "error"))["error"]["code"] == "insufficient_quota"
        await session.expect("response.cancel")
        await session.finish("resp_7", "cancelled")
        assert (await client.receive(timeout=10)).data == POLICY_VIOLATION
    (row,) = [row for row in await gateway.rows(2) if row.cost_nanos]
    assert (row.end_user, row.cost_nanos, row.overrun_nanos) == ("u1", COST, COST - 100_000)
    (balance,) = list_balances(gateway)
    assert (balance.spent_nanos, balance.held_nanos, balance.overrun_nanos) == (COST, 0, COST - 100_000)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        async with connect(gateway, "u1"):
            pass
    assert (refusal.value.status, provider.asked) == (429, 1)
    async with connect(gateway, "u2"):
        await provider.accept()
    await gateway.check_books()


async def test_transcripts_end_a_session_whose_user_has_nothing_left(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    transcribed = "conversation.item.input_audio_transcription.completed"
    gateway = await gateway_with(limit_sessions(provider, 200_000))
    async with connect(gateway, "u1") as client:
        session = await provider.accept()
        await session.send("session.created", session={"audio": {"input": {"transcription": {"model": "scribe"}}}})
        await read(client, "session.created")
        sound = base64.b64encode(bytes(48_000)).decode()
        for is_left in (True, False):
            await client.send_json({"type": "input_audio_buffer.append", "audio": sound})
            await session.expect("input_audio_buffer.append")
            await session.send(transcribed, transcript="x" * 40)
            if is_left:
                await read(client, transcribed)
        assert (await read(client, "error"))["error"]["code"] == "insufficient_quota"
        assert (await client.receive(timeout=10)).data == POLICY_VIOLATION
    rows = [row for row in await gateway.rows(3) if row.cost_nanos]
    assert [(row.end_user, row.cost_nanos) for row in rows] == [("u1", 120_000)] * 2
    assert sum(row.overrun_nanos for row in rows) == 40_000
    (balance,) = list_balances(gateway)
    assert (balance.spent_nanos, balance.held_nanos) == (240_000, 0)
    await gateway.check_books()


async def ask(gateway: RunningGateway, path: str, user: str, **headers: str) -> tuple[int, dict[str, Any]]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.post({**REQUEST, "user": user}, path, headers=names) as response:
        return response.status, await response.json()


async def test_a_hold_counts_for_the_user_until_it_ends_or_is_used(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        prices = [{"model": "m", "usd_per_call": 0.01}]
        limit = {**LIMIT, "usd": 0.03}
        gateway = await gateway_with({"channel": [channel(up.base_url)], "price": prices, "limit": [limit]})
        held_quotes = [(await ask(gateway, "/v1/quote?hold_s=60", "u1"))[1]["quote_id"] for _ in range(2)]
        (balance,) = list_balances(gateway)
        assert (balance.spent_nanos, balance.held_nanos) == (0, 2 * CALL_NANOS)
        assert [(await ask(gateway, CHAT, "u1"))[0] for _ in range(2)] == [200, 429]
        status, refused = await ask(gateway, "/v1/quote?hold_s=60", "u1")
        assert (status, refused["error"]["code"]) == (429, "insufficient_quota")
        assert (await ask(gateway, CHAT, "u2", x_gateway_quote=held_quotes[0]))[1]["error"]["code"] == "quote_not_valid"
        assert (await ask(gateway, CHAT, "u1", x_gateway_quote=held_quotes[0]))[0] == 200
        assert (balance.spent_nanos, balance.held_nanos) == (2 * CALL_NANOS, CALL_NANOS)
        gateway.app[SERVICES].billing.open_holds().close()
        await until(lambda: balance.held_nanos == 0)
        assert [(await ask(gateway, CHAT, "u1"))[0] for _ in range(2)] == [200, 429]
        assert len(up.received) == 3
        rows = [row for row in await gateway.rows(6) if row.cost_nanos]
        assert [(row.end_user, row.cost_nanos) for row in rows] == [("u1", CALL_NANOS)] * 3
        await gateway.check_books()


async def test_a_quote_says_that_a_limit_does_not_cover_the_request(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        prices = [{"model": "m", "usd_per_call": 0.01}]
        limit = {**LIMIT, "usd": 0.01}
        gateway = await gateway_with({"channel": [channel(up.base_url)], "price": prices, "limit": [limit]})
        for user in ("u1", ""):
            assert (await ask(gateway, "/v1/quote", user))[1]["targets"][0]["obstacles"] == []
        assert (await ask(gateway, CHAT, "u1"))[0] == 200
        for user, codes in (("u1", ["insufficient_quota"]), ("u2", []), ("", [])):
            (target,) = (await ask(gateway, "/v1/quote", user))[1]["targets"]
            assert [obstacle["code"] for obstacle in target["obstacles"]] == codes, user
        (balance,) = [balance for balance in list_balances(gateway) if balance.subject == "1:u1"]
        assert balance.held_nanos == 0
