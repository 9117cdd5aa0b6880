"""What is left of the client's connections when a caller leaves, closes, or takes too long: nothing."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from gateway.domain.channel import Timeouts
from gateway.domain.http_request import HttpRequest
from gateway.domain.upload import Content
from gateway.errors import ProviderBadResponse, ProviderTimeout
from gateway.upstream.client import PooledHttpClient
from gateway.upstream.connection import Connection
from tests.support.scripted_upstream import FIN, SSE_HEAD, STALL, ScriptedUpstream, Step, answer, chunk
from tests.support.upstream_lines import BIG, list_lines, open_reply
from tests.support.upstream_requests import HEADERS, LIMIT, TIMEOUTS, ask, build_request, pump_all, until

HELLO = answer(b"hello")
Leave = Callable[[PooledHttpClient, ScriptedUpstream], Awaitable[object]]


async def send_small(upstream: PooledHttpClient, up: ScriptedUpstream) -> object:
    return await upstream.send(build_request(up))


async def send_big(upstream: PooledHttpClient, up: ScriptedUpstream) -> object:
    return await upstream.send(HttpRequest("POST", up.base_url, HEADERS, BIG, TIMEOUTS))


async def shake_hands(upstream: PooledHttpClient, up: ScriptedUpstream) -> object:
    return await upstream.send(build_request(up, url=up.base_url.replace("http:", "https:")))


async def ask_for_a_tunnel(upstream: PooledHttpClient, up: ScriptedUpstream) -> object:
    return await upstream.send(build_request(up, url="https://provider.invalid/", proxy=f"http://127.0.0.1:{up.port}"))


async def pump(upstream: PooledHttpClient, up: ScriptedUpstream) -> object:
    response = await upstream.send(build_request(up))
    try:
        return await response.pump(lambda *_: False)
    finally:
        response.close()


async def read(upstream: PooledHttpClient, up: ScriptedUpstream) -> object:
    response = await upstream.send(build_request(up))
    try:
        return await response.read(LIMIT)
    finally:
        response.close()


LEAVES = [send_small, send_big, shake_hands, ask_for_a_tunnel, pump, read]


@pytest.mark.parametrize("leave", LEAVES, ids=lambda leave: leave.__name__)
@pytest.mark.parametrize("after", [0, 0.02])
async def test_who_is_cancelled_leaves_no_connection(upstream: PooledHttpClient, leave: Leave, after: float) -> None:
    script: list[Step] = [SSE_HEAD, chunk(b"x"), STALL] if leave in {pump, read} else [STALL]
    async with ScriptedUpstream(script) as up:
        task = asyncio.ensure_future(leave(upstream, up))
        await asyncio.sleep(after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)  # the other side may still have to accept it
        await until(lambda: not list_lines(upstream) and up.open_connections == 0)


@pytest.mark.parametrize("leave", LEAVES, ids=lambda leave: leave.__name__)
async def test_close_ends_connections_in_whatever_state(upstream: PooledHttpClient, leave: Leave) -> None:
    script: list[Step] = [SSE_HEAD, chunk(b"x"), STALL] if leave in {pump, read} else [STALL]
    async with ScriptedUpstream(script) as up:
        task = asyncio.ensure_future(leave(upstream, up))
        await asyncio.sleep(0.02)
        await upstream.close()
        if leave not in {shake_hands, ask_for_a_tunnel}:
            with pytest.raises(ProviderBadResponse):
                await asyncio.wait_for(task, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not list_lines(upstream)
        await until(lambda: up.open_connections == 0)


async def test_after_close_no_connection_is_made(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        await upstream.close()
        with pytest.raises(ProviderBadResponse):
            await upstream.send(build_request(up))
        assert not up.received
        await until(lambda: up.open_connections == 0)


async def test_a_reply_that_is_given_back_after_close_is_closed(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        response, connection = await open_reply(upstream, up)
        await response.read(LIMIT)
        upstream._pool.closed = True
        response.close()
        assert connection.gone


async def test_a_connection_that_is_lost_is_nobodys_garbage(upstream: PooledHttpClient) -> None:
    """llhttp's object and ours hold each other: they are let go of, and not left to the collector."""
    async with ScriptedUpstream([HELLO, FIN]) as up:
        await ask(upstream, up)
        await until(lambda: not list_lines(upstream))
        gc.collect()
        gc.disable()
        try:
            await ask(upstream, up)
            await until(lambda: not list_lines(upstream))
            assert not [each for each in gc.get_objects() if type(each) is Connection]
        finally:
            gc.enable()


@pytest.mark.parametrize("phase", ["headers", "body"])
async def test_the_sweep_breaks_what_took_too_long_whoever_waits(upstream: PooledHttpClient, phase: str) -> None:
    script: list[Step] = [STALL] if phase == "headers" else [SSE_HEAD, chunk(b"x"), STALL]
    async with ScriptedUpstream(script) as up:
        with pytest.raises(ProviderTimeout) as caught:
            await pump_all(await upstream.send(build_request(up, Timeouts(total_s=0.06))))
        assert caught.value.phase == phase
        await until(lambda: up.open_connections == 0)


@pytest.mark.parametrize("body", [BIG, Content((BIG,))], ids=["bytes", "content"])
async def test_a_provider_that_does_not_read_is_not_given_more_than_it_takes(
    upstream: PooledHttpClient, body: bytes | Content
) -> None:
    done = asyncio.Event()

    async def deaf(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.transport.abort()

    async with await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1000) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        sending = asyncio.ensure_future(upstream.send(HttpRequest("POST", url, HEADERS, body, TIMEOUTS)))
        await until(lambda: any(connection.write_paused for connection in list_lines(upstream)))
        (connection,) = list_lines(upstream)
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < 1_000_000
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await until(lambda: not list_lines(upstream))
        done.set()
        await asyncio.sleep(0.01)
