"""Equal requests at one moment: one is sent to the provider, and what the others get, pay, and do if it fails."""

import asyncio
from typing import Any

import aiohttp
import pytest

from gateway.server.context import SERVICES
from tests.support.admin_calls import AdminApi
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, Step, answer, chat_script
from tests.support.started_gateways import StartGateway

EQUAL_REQUESTS = 400
PRICE = {"model": "m", "input_usd_per_million": 1.0, "output_usd_per_million": 2.0}
SLOW: dict[str, Any] = {"first_byte_timeout_s": 60, "idle_timeout_s": 60, "total_timeout_s": 60}


def config(up: ScriptedUpstream, **cache: Any) -> dict[str, Any]:
    settings = {"cache": {"ttl_s": 600} | cache, "routing": {"max_attempts": 1, "trip_failures": 1000}}
    return {"channel": [channel(up.base_url, **SLOW)], "price": [PRICE], **settings}


class Gate:
    """Lets a provider's answer through when the test says so."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def hold(self, _received: Received) -> None:
        await self.opened.wait()


async def ask(
    gateway: RunningGateway, client: aiohttp.ClientSession, body: Any = HELLO, secret: str = KEY
) -> tuple[int, bytes, str]:
    headers = {"Authorization": f"Bearer {secret}"}
    async with client.post(gateway.url + CHAT, json=body, headers=headers) as response:
        return response.status, await response.read(), response.headers.get("x-gateway-cache", "")


async def await_waiting(gateway: RunningGateway, count: int) -> None:
    """Until so many requests wait for the answer to another one."""
    async with asyncio.timeout(30):
        while True:
            answers = gateway.app[SERVICES].open_answers.instance
            flights = [] if answers is None else list(answers.flights._flights.values())
            if sum(flight.waiting for flight in flights) == count:
                return
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
async def test_400_equal_requests_are_one_call(gateway_with: StartGateway, stream: bool) -> None:
    gate = Gate()
    script: list[Step] = [gate.hold, *(chat_script("hel", "lo") if stream else [answer(COMPLETION)])]
    async with ScriptedUpstream(script) as up, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        gateway = await gateway_with(config(up, hit_price=0.5))
        body = {**HELLO, "stream": stream}
        tasks = [asyncio.ensure_future(ask(gateway, client, body)) for _ in range(EQUAL_REQUESTS)]
        await await_waiting(gateway, EQUAL_REQUESTS - 1)
        gate.opened.set()
        results = await asyncio.gather(*tasks)
        assert len(up.received) == 1
        assert {status for status, _, _ in results} == {200}
        assert len({content for _, content, _ in results}) == 1
        assert sorted(result for _, _, result in results) == ["joined"] * (EQUAL_REQUESTS - 1) + ["miss"]
        rows = await gateway.rows(EQUAL_REQUESTS)
        (first,) = [row for row in rows if row.cache == "miss"]
        assert {row.cost_nanos for row in rows if row.cache == "joined"} == {-(-first.cost_nanos // 2)}
        await gateway.check_books()


async def test_if_the_first_one_fails_the_others_ask_themselves(gateway_with: StartGateway) -> None:
    gate = Gate()
    refusal: list[Step] = [gate.hold, answer({"error": {"message": "broken"}}, 500)]
    async with (
        ScriptedUpstream(refusal, [answer(COMPLETION)]) as up,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
    ):
        gateway = await gateway_with(config(up))
        tasks = [asyncio.ensure_future(ask(gateway, client)) for _ in range(5)]
        await await_waiting(gateway, 4)
        gate.opened.set()
        results = await asyncio.gather(*tasks)
        assert sorted(status for status, _, _ in results) == [200] * 4 + [502]
        assert 2 <= len(up.received) <= 5
        rows = await gateway.rows(5)
        assert sum(row.outcome == "failed" for row in rows) == 1
        assert (await ask(gateway, client))[2] == "hit"


@pytest.mark.parametrize("stream", [False, True])
async def test_if_the_first_client_leaves_the_others_get_the_answer(gateway_with: StartGateway, stream: bool) -> None:
    gate = Gate()
    events = chat_script("hel", "lo")
    script: list[Step] = [*events[:2], gate.hold, *events[2:]] if stream else [gate.hold, answer(COMPLETION)]
    async with (
        ScriptedUpstream(script) as up,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
        aiohttp.ClientSession() as leaving_client,
    ):
        gateway = await gateway_with(config(up) | {"billing": {"abandoned": "free"}})
        body = {**HELLO, "stream": stream}
        first = asyncio.ensure_future(ask(gateway, leaving_client, body))
        async with asyncio.timeout(30):
            while not up.received:  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0.005)
        others = [asyncio.ensure_future(ask(gateway, client, body)) for _ in range(3)]
        await await_waiting(gateway, 3)
        first.cancel()
        await asyncio.wait({first})
        await leaving_client.close()
        services = gateway.app[SERVICES]
        async with asyncio.timeout(30):
            while not services.proxy.drains.attempts:  # noqa: ASYNC110 - a set has no event
                await asyncio.sleep(0.005)
        gate.opened.set()
        assert {(status, result) for status, _, result in await asyncio.gather(*others)} == {(200, "joined")}
        assert len(up.received) == 1
        rows = await gateway.rows(4)
        (left,) = [row for row in rows if row.outcome == "client_closed"]
        assert left.cost_nanos > 0  # somebody has the answer that was bought
        assert {row.cost_nanos for row in rows if row is not left} == {0}


async def test_who_leaves_while_waiting_pays_nothing(gateway_with: StartGateway) -> None:
    gate = Gate()
    async with ScriptedUpstream([gate.hold, answer(COMPLETION)]) as up, aiohttp.ClientSession() as leaving_client:
        gateway = await gateway_with(config(up, hit_price=1.0))
        first = asyncio.ensure_future(ask(gateway, gateway.client))
        async with asyncio.timeout(30):
            while not up.received:  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0.005)
        second = asyncio.ensure_future(ask(gateway, leaving_client))
        await await_waiting(gateway, 1)
        second.cancel()
        await asyncio.wait({second})
        await leaving_client.close()
        await await_waiting(gateway, 0)
        gate.opened.set()
        assert (await first)[2] == "miss"
        rows = await gateway.rows(2)
        (left,) = [row for row in rows if row.outcome == "client_closed"]
        assert (left.cost_nanos, left.attempts, left.cache) == (0, 0, "")


async def test_a_key_that_is_disabled_while_it_waits_gets_nothing(gateway_with: StartGateway) -> None:
    gate = Gate()
    async with ScriptedUpstream([gate.hold, answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        admin = AdminApi(gateway)
        key = await admin("POST", "/keys", {"name": "other", "account": "acme"}, status=201)
        first = asyncio.ensure_future(ask(gateway, gateway.client))
        async with asyncio.timeout(30):
            while not up.received:  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0.005)
        second = asyncio.ensure_future(ask(gateway, gateway.client, secret=key["secret"]))
        await await_waiting(gateway, 1)
        await admin("PATCH", f"/keys/{key['id']}", {"status": "disabled"})
        gate.opened.set()
        assert (await first)[0] == 200
        status, content, _ = await second
        assert (status, b"disabled" in content) == (401, True)
        assert len(up.received) == 1
