"""P3: on SIGTERM nothing new is taken, what runs may finish in its time, and the rest is told and settled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest

from gateway.server.context import SERVICES
from tests.support import fault_scene
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.raw_client import connect, hello, post, read_answer
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    STALL,
    Received,
    Script,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
    event,
    usage_frame,
)
from tests.support.started_gateways import StartGateway
from tests.support.stored_jobs import SHORT, stored
from tests.support.upstream_scripts import ONE, STARTED, TWO


async def stop_under(gateway: RunningGateway, up: ScriptedUpstream, *, stream: bool) -> fault_scene.Heard:
    """Make a call, and stop the gateway when the provider has it."""
    calling = asyncio.create_task(fault_scene.call(gateway, stream=stream))
    await fault_scene.until(lambda: up.received)
    await asyncio.sleep(0.03)
    async with asyncio.timeout(fault_scene.WAIT_LIMIT_S):
        await gateway.stop()
    heard = await calling
    assert gateway.running == 0
    return heard


async def test_a_stream_that_runs_may_finish_within_the_drain(gateway_with: StartGateway) -> None:
    end: list[Step] = [0.1, chunk(event(usage_frame(5, 7)) + DONE), LAST_CHUNK]
    async with ScriptedUpstream([*STARTED, *end]) as up:
        gateway = await gateway_with(fault_scene.site(channel(up.base_url)))
        heard = await stop_under(gateway, up, stream=True)
        assert (heard.body, heard.whole) == (ONE + TWO + DONE, True)
        (row,) = await stored(gateway)
        assert (row.outcome, row.usage_source, row.cost_nanos) == ("completed", "upstream", 19_000)


async def test_a_whole_answer_that_is_awaited_may_come_within_the_drain(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([0.1, answer(COMPLETION)]) as up:
        gateway = await gateway_with(fault_scene.site(channel(up.base_url)))
        heard = await stop_under(gateway, up, stream=False)
        assert (heard.status, heard.whole) == (200, True)
        (row,) = await stored(gateway)
        assert (row.outcome, row.usage_source) == ("completed", "upstream")


async def test_a_stream_beyond_the_drain_gets_the_error_event(gateway_with: StartGateway) -> None:
    async with (
        ScriptedUpstream([*STARTED, STALL]) as up,
        ScriptedUpstream(fault_scene.good_script(stream=True)) as good,
    ):
        gateway = await gateway_with(fault_scene.site(channel(up.base_url), fault_scene.healthy(good), **SHORT))
        heard = await stop_under(gateway, up, stream=True)
        assert fault_scene.check_broken_stream(heard, "overloaded") == [ONE, TWO]
        assert up.hung_up.is_set()
        assert not good.received
        (row,) = await stored(gateway)
        assert (row.outcome, row.error_code, row.status, row.attempts) == ("interrupted", "overloaded", 200, 1)
        assert (row.usage_source, row.completion_tokens) == ("estimate", 9)


@pytest.mark.parametrize(
    ("script", "stream", "failed"),
    [
        ([STALL], False, False),
        ([answer(COMPLETION)[:-5], STALL], False, False),
        ([answer({"error": {}}, 500)[:-1], STALL], False, True),
        ([STALL], True, False),
        ([SSE_HEAD, STALL], True, False),
        ([SSE_HEAD, chunk(b": ping\n\n"), STALL], True, False),
    ],
    ids=["no headers", "half a body", "half an error", "stream, no headers", "stream, no event", "stream, a comment"],
)
async def test_a_call_not_answered_within_the_drain_gets_a_503(
    gateway_with: StartGateway, script: Script, stream: bool, failed: bool
) -> None:
    async with ScriptedUpstream(script) as up, ScriptedUpstream(fault_scene.good_script(stream=stream)) as good:
        gateway = await gateway_with(fault_scene.site(channel(up.base_url), fault_scene.healthy(good), **SHORT))
        heard = await stop_under(gateway, up, stream=stream)
        fault_scene.check_error(heard, "overloaded")
        assert up.hung_up.is_set()
        assert not good.received
        (row,) = await stored(gateway)
        assert (row.outcome, row.error_code, row.status, row.attempts) == ("interrupted", "overloaded", 503, 1)
        assert (row.usage_source, row.cost_nanos) == (("none", 0) if failed else ("estimate", 1_000))


async def test_a_drain_of_no_time_breaks_off_at_once(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([*STARTED, STALL]) as up:
        gateway = await gateway_with(fault_scene.site(channel(up.base_url), server={"drain_timeout_s": 0}))
        fault_scene.check_broken_stream(await stop_under(gateway, up, stream=True), "overloaded")


async def test_an_idle_gateway_stops_without_waiting(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(fault_scene.site(channel(up.base_url)))
        await fault_scene.call(gateway, stream=False)
        async with asyncio.timeout(1):
            await gateway.stop()
        assert len(await stored(gateway)) == 1


@asynccontextmanager
async def arriving(gateway: RunningGateway) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]]:
    """A call half of whose body is there, and its other half."""
    body = orjson.dumps(HELLO)
    half = len(body) // 2
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body[:half])
    await fault_scene.until(lambda: gateway.app[SERVICES].drain.active_count)
    yield reader, writer, body[half:]
    writer.close()


async def test_a_body_that_is_still_arriving_may_arrive_within_the_drain(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(fault_scene.site(channel(up.base_url)))
        async with arriving(gateway) as (reader, writer, rest):
            stopping = asyncio.create_task(gateway.stop())
            await asyncio.sleep(0.1)
            writer.write(rest)
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
            await stopping
        assert [row.outcome for row in await stored(gateway)] == ["completed"]


async def test_a_body_that_arrives_after_the_drain_leaves_its_row_and_asks_nobody(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(fault_scene.site(channel(up.base_url), **SHORT))
        async with arriving(gateway):
            async with asyncio.timeout(fault_scene.WAIT_LIMIT_S):
                await gateway.stop()
            assert not up.received
        assert [row.outcome for row in await stored(gateway)] == ["interrupted"]


async def test_while_it_drains_nothing_new_is_taken(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([*STARTED, 0.2, chunk(DONE), LAST_CHUNK], fault_scene.good_script(stream=False)) as up:
        gateway = await gateway_with(fault_scene.site(channel(up.base_url)))
        calling = asyncio.create_task(fault_scene.call(gateway, stream=True))
        await fault_scene.until(lambda: up.received)
        stopping = asyncio.create_task(gateway.stop())
        await asyncio.sleep(0.05)
        async with aiohttp.ClientSession() as newcomer:
            with pytest.raises(aiohttp.ClientConnectionError):
                await newcomer.post(gateway.url + "/v1/chat/completions", json=HELLO)
        assert (await calling).body.endswith(DONE)
        await stopping
        assert len(up.received) == 1


@pytest.mark.parametrize("kept", [True, False])
async def test_a_gateway_that_will_stop_closes_each_connection_after_its_answer(
    gateway_with: StartGateway, *, kept: bool
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(fault_scene.site(channel(up.base_url)))
        reader, writer = await connect(gateway.url)
        if kept:
            writer.write(post(hello()))
            assert "connection" not in (await read_answer(reader)).headers
        gateway.runner.end_connections()
        writer.write(post(hello()))
        last = await read_answer(reader)
        assert (last.status, last.headers["connection"]) == (200, "close")
        assert await asyncio.wait_for(reader.read(), fault_scene.WAIT_LIMIT_S) == b""
        writer.close()
        async with aiohttp.ClientSession() as client, client.get(f"{gateway.url}/healthz") as response:
            assert (response.status, response.headers["Connection"]) == (200, "close")


async def test_every_one_of_many_is_told_and_settled(gateway_with: StartGateway) -> None:
    reported: list[Received] = []

    async def note(received: Received) -> None:
        reported.append(received)

    async with ScriptedUpstream([*STARTED, note, STALL]) as up:
        patient = channel(up.base_url, **fault_scene.UNHURRIED)
        gateway = await gateway_with(fault_scene.site(patient, **SHORT))
        calls = [asyncio.create_task(fault_scene.call(gateway, stream=True)) for _ in range(20)]
        await fault_scene.until(lambda: len(reported) == 20)
        await gateway.stop()
        for heard in await asyncio.gather(*calls):
            fault_scene.check_broken_stream(heard, "overloaded")
        rows = await stored(gateway)
        assert [row.outcome for row in rows] == ["interrupted"] * 20
