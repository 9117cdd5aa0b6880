"""Realtime sessions at their limits: silence, peers that are gone or do not read, and frames that are too long."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import orjson
import pytest

from tests.support.gateway import KEY, RunningGateway
from tests.support.realtime_provider import PRICES, ProviderSession, RealtimeProvider
from tests.support.slow_readers import narrow
from tests.support.started_gateways import StartGateway

SESSION = "gateway.server.realtime_session"
PRICED = {"price": [{"model": "m", **PRICES}]}
DELTA = {"response_id": "resp_1", "delta": "A" * 65_536}
MANY = 400
"""Frames of ``DELTA``: 26 MB, more than the buffers of a loopback connection hold."""


@asynccontextmanager
async def connect(gateway: RunningGateway, key: str = KEY, **more: Any) -> AsyncIterator[Any]:
    headers = {"Authorization": f"Bearer {key}"}
    connector = aiohttp.TCPConnector(socket_factory=narrow)
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers) as session,
        session.ws_connect(f"{gateway.url}/v1/realtime?model=m", **more) as socket,
    ):
        yield socket


async def receive(client: Any) -> Any:
    async with asyncio.timeout(20):
        return await client.receive()


async def start_response(client: Any, session: ProviderSession) -> None:
    """Ask for a response, which the provider begins."""
    await client.send_str('{"type": "response.create"}')
    await session.expect("response.create")
    await session.create()
    assert orjson.loads((await receive(client)).data)["type"] == "response.created"


async def find_outcomes(gateway: RunningGateway, responses: int = 0) -> list[str]:
    """The outcome of the session, and those of its responses."""
    rows = await gateway.rows(1 + responses)
    return [row.outcome for row in sorted(rows, key=lambda row: row.client_request_id is not None)]


async def test_a_session_without_a_frame_is_closed(gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{SESSION}.TICK_S", 0.02)
    monkeypatch.setattr(f"{SESSION}.IDLE_S", 0.1)
    async with RealtimeProvider() as provider:
        gateway = await gateway_with({"channel": [provider.channel()], **PRICED})
        async with connect(gateway) as client:
            session = await provider.accept()
            closed = await receive(client)
            assert (closed.type, closed.data, closed.extra) == (aiohttp.WSMsgType.CLOSE, 1001, "the session was idle")
            assert isinstance(await session.receive(), int)
        assert await find_outcomes(gateway) == ["completed"]


async def test_a_session_whose_response_runs_is_not_idle(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{SESSION}.TICK_S", 0.02)
    async with RealtimeProvider() as provider:
        gateway = await gateway_with({"channel": [provider.channel()], **PRICED})
        async with connect(gateway) as client:
            session = await provider.accept()
            await start_response(client, session)
            monkeypatch.setattr(f"{SESSION}.IDLE_S", 0.05)
            await asyncio.sleep(0.3)  # several times as long
            await session.finish()
            assert orjson.loads((await receive(client)).data)["type"] == "response.done"
            assert (await receive(client)).data == 1001
        assert await find_outcomes(gateway, 1) == ["completed", "completed"]


async def test_a_client_that_answers_no_ping_is_gone(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.handlers.realtime.HEARTBEAT_S", 0.1)
    async with RealtimeProvider() as provider:
        gateway = await gateway_with({"channel": [provider.channel()], **PRICED})
        async with connect(gateway, autoping=False) as client:
            session = await provider.accept()
            assert (await receive(client)).type is aiohttp.WSMsgType.PING
            assert isinstance(await session.receive(), int)
        assert await find_outcomes(gateway) == ["client_closed"]


async def test_a_provider_that_answers_no_ping_has_broken_off(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.upstream.websocket.HEARTBEAT_S", 0.1)
    async with RealtimeProvider(deaf=True) as provider:
        gateway = await gateway_with({"channel": [provider.channel()], **PRICED})
        async with connect(gateway) as client:
            await provider.accept()
            event = orjson.loads((await receive(client)).data)
            assert "broke the connection" in event["error"]["message"]
            assert (await receive(client)).data == 1011
        assert await find_outcomes(gateway) == ["failed"]


async def test_a_frame_of_the_client_that_is_too_long_ends_its_session(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.handlers.realtime.MAX_FRAME_BYTES", 1_000)
    async with RealtimeProvider() as provider:
        gateway = await gateway_with({"channel": [provider.channel()], **PRICED})
        async with connect(gateway) as client:
            session = await provider.accept()
            await client.send_str('{"type": "' + "x" * 100 + '"}' + " " * 700)
            assert await session.receive() == {"type": "x" * 100}
            await client.send_bytes(b"x" * 1_100)
            assert (await receive(client)).data == 1009
            assert isinstance(await session.receive(), int)
        assert await find_outcomes(gateway) == ["client_closed"]


async def test_a_frame_of_the_provider_that_is_too_long_is_its_fault(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.upstream.websocket.MAX_FRAME_BYTES", 1_000)
    async with RealtimeProvider() as provider:
        gateway = await gateway_with({"channel": [provider.channel()], **PRICED})
        async with connect(gateway) as client:
            session = await provider.accept()
            await session.socket.send_bytes(b"x" * 1_100)
            event = orjson.loads((await receive(client)).data)
            assert "a frame of more than" in event["error"]["message"]
            assert (await receive(client)).data == 1011
        assert await find_outcomes(gateway) == ["failed"]


@asynccontextmanager
async def open_session(
    gateway: RunningGateway, provider: RealtimeProvider, side: str, key: str = KEY
) -> AsyncIterator[tuple[Any, Callable[[int, int], None], Callable[[], Awaitable[Any]]]]:
    """A session: its client, what sends a part of a frame from ``side``, and what receives at the other side."""
    transports: list[Any] = []

    async def keep_transport(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        response = await send(request)
        assert response.connection is not None
        transports.append(response.connection.transport)
        return response

    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(headers=headers, middlewares=(keep_transport,)) as session,
        session.ws_connect(f"{gateway.url}/v1/realtime?model=m") as client,
    ):
        served = await provider.accept()
        masked = side == "client"
        transport = transports[0] if masked else served.transport

        def send_part(length: int, sent: int) -> None:
            """Send the first ``sent`` bytes of a text frame of ``length`` bytes."""
            head = bytes([0x81, 126 + 128 * masked, *length.to_bytes(2, "big"), *(0, 0, 0, 0) * masked])
            transport.write(head + (b'{"type": "x"}' + b" " * length)[:sent])

        yield client, send_part, served.receive if masked else partial(receive, client)


@pytest.mark.parametrize("side", ["client", "provider"])
async def test_large_frames_under_way_are_bounded_for_each_account(
    side: str, gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty sessions that sent the largest frames, or their beginnings, took 3,255 MB."""
    for name, value in (("LARGE_BYTES", 1_000), ("MAX_TOTAL_BYTES", 16_000)):
        monkeypatch.setattr(f"gateway.upstream.frame_meter.{name}", value)
    monkeypatch.setattr(f"{SESSION}.TICK_S", 0.02)
    other = f"{KEY}-other"
    keys = [{"name": name, "account": name, "secret": key} for name, key in (("acme", KEY), ("other", other))]
    accounts = [{"name": "acme"}, {"name": "other"}]
    async with RealtimeProvider() as provider, AsyncExitStack() as stack:
        gateway = await gateway_with({"channel": [provider.channel()], **PRICED, "key": keys, "account": accounts})

        async def open_one(key: str = KEY) -> Any:
            return await stack.enter_async_context(open_session(gateway, provider, side, key))

        async def pass_one(send_part: Any, read: Any) -> None:
            for _ in range(8):
                send_part(3_000, 3_000)
                found = await read()
                assert orjson.loads(found.data if side == "provider" else orjson.dumps(found)) == {"type": "x"}

        unfinished, send_unfinished, _ = await open_one()
        send_unfinished(7_000, 6_500)
        await pass_one(*(await open_one(other))[1:])  # the other account has half of what is left
        client, send_part, _ = await open_one()
        send_part(3_000, 2_999)
        event = orjson.loads((await receive(client)).data)
        assert (event["error"]["code"], side in event["error"]["message"]) == ("overloaded", True)
        assert (await receive(client)).data == 1013
        monkeypatch.setattr("gateway.upstream.frame_meter.FRAME_S", 0.05)
        event = orjson.loads((await receive(unfinished)).data)
        assert "a large frame" in event["error"]["message"].lower()
        assert (await receive(unfinished)).data == (1008 if side == "client" else 1011)
        monkeypatch.setattr("gateway.upstream.frame_meter.FRAME_S", 60.0)
        await pass_one(*(await open_one())[1:])  # what the ended sessions held is free again


async def test_a_client_that_reads_slowly_holds_its_provider_back_and_loses_nothing(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{SESSION}.TICK_S", 0.02)
    sent = 0

    async def flood(session: ProviderSession) -> None:
        nonlocal sent
        for _ in range(MANY):
            await session.send("response.output_audio.delta", **DELTA)
            sent += 1
        await session.finish()

    async with RealtimeProvider() as provider:
        quick = provider.channel(idle_timeout_s=4)
        gateway = await gateway_with({"channel": [quick], **PRICED})
        async with connect(gateway, max_msg_size=2**25) as client:
            session = await provider.accept()
            await start_response(client, session)
            flooding = asyncio.create_task(flood(session))
            before = -1
            while sent != before:  # longer than the provider may be silent
                before = sent
                await asyncio.sleep(4.5)
            assert sent < MANY
            heard = [orjson.loads((await receive(client)).data)["type"] for _ in range(MANY + 1)]
            assert heard == ["response.output_audio.delta"] * MANY + ["response.done"]
            await flooding
        assert await find_outcomes(gateway, 1) == ["completed", "completed"]
