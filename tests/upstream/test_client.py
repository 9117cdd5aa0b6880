"""The contract of the upstream port: sending, reading, pushing, and the life of a connection."""

import asyncio
import random

import pytest

from gateway.domain.channel import Timeouts
from gateway.domain.http_request import HttpRequest
from gateway.errors import ProviderBadResponse, ProviderTimeout
from gateway.upstream.client import PooledHttpClient
from gateway.upstream.interface import PumpResult
from tests.support.scripted_upstream import (
    COMPLETION,
    FIN,
    LAST_CHUNK,
    SSE_HEAD,
    SSE_HEAD_UNTIL_CLOSE,
    STALL,
    Flood,
    Script,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
)
from tests.support.upstream_requests import HEADERS, LIMIT, TIMEOUTS, ask, build_request, pump_all, until

HELLO = answer(b"hello")


async def test_send_returns_at_the_headers_before_any_of_the_body(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, STALL]) as up:
        response = await upstream.send(build_request(up))
        assert response.status == 200
        assert response.headers["content-TYPE"] == "text/event-stream"
        assert response.headers.get("X-Missing") is None
        response.close()


async def test_the_provider_sees_the_plan_and_nothing_besides(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        await ask(upstream, up)
        port, (seen,) = up.port, up.received
    assert (seen.method, seen.path, seen.body) == ("POST", "/v1/ask", b'{"a": 1}')
    theirs = {name.lower(): value for name, value in HEADERS.items()}
    assert seen.headers == theirs | {"host": f"127.0.0.1:{port}", "content-length": "8"}


async def test_a_large_body_arrives_whole_also_on_a_kept_connection(upstream: PooledHttpClient) -> None:
    body = random.Random(11).randbytes(3_000_000)  # noqa: S311 - bytes that differ, not secrets
    async with ScriptedUpstream([HELLO]) as up:
        for _ in range(2):
            response = await upstream.send(HttpRequest("POST", up.base_url, HEADERS, body, TIMEOUTS))
            await response.read(LIMIT)
            response.close()
        assert [(seen.connection, seen.body == body) for seen in up.received] == [(1, True), (1, True)]
        assert {seen.headers["content-length"] for seen in up.received} == {"3000000"}


async def test_a_plan_without_a_body_sends_none(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        response = await upstream.send(HttpRequest("GET", up.base_url + "/models", HEADERS))
        assert await response.read(LIMIT) == b"hello"
        response.close()
        assert (up.received[0].method, up.received[0].body) == ("GET", b"")


@pytest.mark.parametrize(
    "script",
    [[HELLO], [SSE_HEAD, chunk(b"he"), chunk(b"llo"), LAST_CHUNK], [SSE_HEAD_UNTIL_CLOSE, b"hel", 0.01, b"lo", FIN]],
    ids=["content-length", "chunked", "until close"],
)
async def test_a_body_is_read_whole_however_it_is_framed(upstream: PooledHttpClient, script: Script) -> None:
    async with ScriptedUpstream(script) as up:
        assert await ask(upstream, up) == b"hello"


async def test_a_body_of_exactly_the_limit_is_read(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(b"x" * 5000)]) as up:
        response = await upstream.send(build_request(up))
        assert await response.read(5000) == b"x" * 5000
        response.close()


async def test_a_body_over_the_limit_is_an_error_and_its_connection_is_broken(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(b"x" * 6000)[:-1], STALL]) as up:
        response = await upstream.send(build_request(up))
        with pytest.raises(ProviderBadResponse):
            await response.read(5000)
        await asyncio.wait_for(up.hung_up.wait(), 2)


async def test_a_body_that_is_said_to_be_over_the_limit_is_not_waited_for(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", STALL]) as up:
        response = await upstream.send(build_request(up))
        with pytest.raises(ProviderBadResponse, match="larger than 99 bytes"):
            await response.read(99)
        response.close()
        await asyncio.wait_for(up.hung_up.wait(), 5)


async def test_an_endless_body_is_given_up_at_the_limit(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, Flood(chunk(b"x" * 65536), 1024)]) as up:
        response = await upstream.send(build_request(up))
        with pytest.raises(ProviderBadResponse):
            await response.read(LIMIT)
        await until(lambda: up.open_connections == 0)
        assert up.flooded < 64 * 65536 * 10


async def test_pump_pushes_every_byte_in_order_and_says_that_it_ended(upstream: PooledHttpClient) -> None:
    pieces = [bytes([65 + index]) * (index * 997) for index in range(1, 26)]
    async with ScriptedUpstream([SSE_HEAD, *(chunk(piece) for piece in pieces), LAST_CHUNK]) as up:
        response = await upstream.send(build_request(up))
        assert await pump_all(response) == b"".join(pieces)
        response.close()


async def test_a_pump_paused_after_every_piece_loses_no_byte(upstream: PooledHttpClient) -> None:
    body = random.Random(7).randbytes(1_500_000)  # noqa: S311 - bytes that differ, not secrets
    async with ScriptedUpstream([answer(body)]) as up:
        response = await upstream.send(build_request(up))
        got: list[bytes] = []

        def keep(piece: bytes, _raw: bytes | None) -> bool:
            got.append(piece)
            return True

        while await response.pump(keep) is PumpResult.PAUSED:  # noqa: ASYNC110 - bytes arrive while nobody pumps
            await asyncio.sleep(0)
        response.close()
        assert b"".join(got) == body


async def test_a_pause_is_obeyed_at_once(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(b"one"), 0.02, chunk(b"two"), LAST_CHUNK]) as up:
        response = await upstream.send(build_request(up))
        got: list[bytes] = []
        assert await response.pump(lambda piece, _raw: bool(got.append(piece)) or True) is PumpResult.PAUSED  # type: ignore[func-returns-value]
        await asyncio.sleep(0.05)
        assert got == [b"one"]
        assert await pump_all(response) == b"two"
        response.close()


async def test_a_reply_that_is_not_pumped_holds_its_provider_back(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, Flood(chunk(b"x" * 65536), 1024)]) as up:
        response = await upstream.send(build_request(up))
        last = -1
        while up.flooded != last:
            last = up.flooded
            await asyncio.sleep(0.05)
        assert up.flooded < 32 * 1024 * 1024
        response.close()
        await until(lambda: up.open_connections == 0)


async def test_abort_while_pumping_raises_exactly_the_given_fault(upstream: PooledHttpClient) -> None:
    error = ProviderTimeout("too slow")
    async with ScriptedUpstream([SSE_HEAD, chunk(b"one"), STALL]) as up:
        response = await upstream.send(build_request(up))
        asyncio.get_running_loop().call_later(0.02, response.abort, error)
        with pytest.raises(ProviderTimeout) as caught:
            await response.pump(lambda *_: False)
        assert caught.value is error
        await asyncio.wait_for(up.hung_up.wait(), 2)
        response.close()


async def test_abort_while_reading_raises_exactly_the_given_fault(upstream: PooledHttpClient) -> None:
    error = ProviderTimeout("too slow")
    async with ScriptedUpstream([answer(b"hello")[:-2], STALL]) as up:
        response = await upstream.send(build_request(up))
        asyncio.get_running_loop().call_later(0.02, response.abort, error)
        with pytest.raises(ProviderTimeout) as caught:
            await response.read(LIMIT)
        assert caught.value is error
        await asyncio.wait_for(up.hung_up.wait(), 2)


async def test_abort_from_within_the_sink_raises_the_fault(upstream: PooledHttpClient) -> None:
    error = ProviderBadResponse("no more")
    async with ScriptedUpstream([SSE_HEAD, chunk(b"one"), 0.01, chunk(b"two"), STALL]) as up:
        response = await upstream.send(build_request(up))
        with pytest.raises(ProviderBadResponse) as caught:
            await response.pump(lambda *_: response.abort(error) or False)  # type: ignore[redundant-expr, func-returns-value]
        assert caught.value is error


async def test_abort_of_a_paused_reply_is_raised_by_the_next_pump(upstream: PooledHttpClient) -> None:
    first, second = ProviderTimeout("first"), ProviderTimeout("second")
    async with ScriptedUpstream([SSE_HEAD, chunk(b"one"), STALL]) as up:
        response = await upstream.send(build_request(up))
        assert await response.pump(lambda *_: True) is PumpResult.PAUSED
        response.abort(first)
        response.abort(second)
        await asyncio.wait_for(up.hung_up.wait(), 2)
        with pytest.raises(ProviderTimeout) as caught:
            await response.pump(lambda *_: False)
        assert caught.value is first


async def test_a_pause_is_told_before_an_abort_that_came_after_it(upstream: PooledHttpClient) -> None:
    """Who paused at the end mark has a whole stream; a fault in place of that would say it has not."""
    error = ProviderBadResponse("too late")
    async with ScriptedUpstream([SSE_HEAD, 0.01, chunk(b"one"), STALL]) as up:
        response = await upstream.send(build_request(up))

        def pause(*_: bytes | None) -> bool:
            asyncio.get_running_loop().call_soon(response.abort, error)
            return True

        assert await response.pump(pause) is PumpResult.PAUSED
        await asyncio.sleep(0)
        with pytest.raises(ProviderBadResponse) as caught:
            await response.pump(lambda *_: False)
        assert caught.value is error


async def test_a_body_read_to_its_end_gives_its_connection_back(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        for _ in range(3):
            await ask(upstream, up)
        assert [seen.connection for seen in up.received] == [1, 1, 1]


@pytest.mark.parametrize("size", [70_000, 1_000_000])
@pytest.mark.parametrize("chunked", [False, True])
async def test_so_does_a_large_one(upstream: PooledHttpClient, size: int, chunked: bool) -> None:
    body = b"x" * size
    script = [SSE_HEAD + chunk(body) + LAST_CHUNK] if chunked else [answer(body)]
    async with ScriptedUpstream(script) as up:
        for _ in range(3):
            assert await ask(upstream, up) == body
        assert [seen.connection for seen in up.received] == [1, 1, 1]


async def test_close_in_the_middle_of_a_body_breaks_the_connection_at_once(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(b"one"), STALL]) as up:
        response = await upstream.send(build_request(up))
        await response.pump(lambda *_: True)
        response.close()
        await asyncio.wait_for(up.hung_up.wait(), 2)


async def test_close_before_the_body_breaks_the_connection_at_once(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, STALL]) as up:
        (await upstream.send(build_request(up))).close()
        await asyncio.wait_for(up.hung_up.wait(), 2)


async def test_a_cancelled_send_breaks_the_connection_at_once(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([STALL]) as up:
        task = asyncio.create_task(upstream.send(build_request(up)))
        await until(lambda: up.received)
        task.cancel()
        await asyncio.wait_for(up.hung_up.wait(), 2)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_cancelled_pump_goes_on_where_it_was(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(b"one"), 0.06, chunk(b"two"), LAST_CHUNK]) as up:
        response = await upstream.send(build_request(up))
        got: list[bytes] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await response.pump(lambda piece, _raw: bool(got.append(piece)))  # type: ignore[func-returns-value]
        assert b"".join(got) + await pump_all(response) == b"onetwo"
        response.close()


async def test_after_finish_the_connection_is_used_again_once_the_transports_end_has_come(
    upstream: PooledHttpClient,
) -> None:
    late: list[Step] = [SSE_HEAD, chunk(b"data: [DONE]\n\n"), 0.03, LAST_CHUNK]
    async with ScriptedUpstream(late, [HELLO]) as up:
        response = await upstream.send(build_request(up))
        await response.pump(lambda *_: True)
        response.finish()
        response.close()
        await asyncio.sleep(0.08)
        assert await ask(upstream, up) == b"hello"
        assert [seen.connection for seen in up.received] == [1, 1]


async def test_after_finish_at_the_transports_end_the_connection_is_used_again(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(b"x"), LAST_CHUNK], [HELLO]) as up:
        response = await upstream.send(build_request(up))
        await pump_all(response)
        response.finish()
        response.close()
        assert await ask(upstream, up) == b"hello"
        assert [seen.connection for seen in up.received] == [1, 1]


async def test_after_finish_a_body_that_goes_on_breaks_the_connection(upstream: PooledHttpClient) -> None:
    more: list[Step] = [SSE_HEAD, chunk(b"data: [DONE]\n\n"), 0.03, chunk(b"data: more\n\n"), STALL]
    async with ScriptedUpstream(more, [HELLO]) as up:
        response = await upstream.send(build_request(up))
        await response.pump(lambda *_: True)
        response.finish()
        response.close()
        await asyncio.wait_for(up.hung_up.wait(), 0.8)
        assert await ask(upstream, up) == b"hello"
        assert [seen.connection for seen in up.received] == [1, 2]


@pytest.mark.slow
async def test_after_finish_a_transport_that_never_ends_is_broken_after_a_moment(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(b"data: [DONE]\n\n"), STALL]) as up:
        response = await upstream.send(build_request(up))
        await response.pump(lambda *_: True)
        response.finish()
        response.close()
        await asyncio.sleep(0.2)
        assert not up.hung_up.is_set()
        await asyncio.wait_for(up.hung_up.wait(), 5)


async def test_close_breaks_every_connection_and_leaves_no_task(upstream: PooledHttpClient) -> None:
    before = asyncio.all_tasks()
    async with ScriptedUpstream([HELLO], [SSE_HEAD, chunk(b"x"), STALL]) as up:
        await ask(upstream, up)
        response = await upstream.send(build_request(up))
        await response.pump(lambda *_: True)
        response.finish()
        response.close()
        await upstream.close()
        await asyncio.wait_for(up.hung_up.wait(), 2)
        await until(lambda: up.open_connections == 0)
    await asyncio.sleep(0)
    assert not {task for task in asyncio.all_tasks() - before if not task.done()}


async def test_the_total_time_bounds_the_wait_for_headers(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([STALL]) as up:
        with pytest.raises(ProviderTimeout):
            await upstream.send(build_request(up, Timeouts(total_s=0.1)))
        await until(lambda: up.open_connections == 0)


async def test_the_total_time_bounds_the_body(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(b"hello")[:-2], STALL]) as up:
        response = await upstream.send(build_request(up, Timeouts(total_s=0.1)))
        with pytest.raises(ProviderTimeout):
            await response.read(LIMIT)
        response.close()
        await asyncio.wait_for(up.hung_up.wait(), 2)
