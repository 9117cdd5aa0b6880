"""Connections of the HTTP client: what is used again, what is pushed, and what is held back."""

import asyncio
import gzip
import socket
import threading
import zlib
from collections import Counter
from typing import Any, Self

import attrs
import pytest

from gateway.domain.http_request import HttpRequest
from gateway.errors import ProviderBadResponse
from gateway.upstream.client import PooledHttpClient
from gateway.upstream.connection import READ_BUFFER
from gateway.upstream.interface import PumpResult
from gateway.upstream.response_parser import MAX_PUSH_BYTES
from tests.support.scripted_upstream import (
    FIN,
    LAST_CHUNK,
    RST,
    SSE_HEAD,
    STALL,
    Act,
    Flood,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
)
from tests.support.upstream_lines import BIG, list_lines, open_reply
from tests.support.upstream_requests import HEADERS, LIMIT, TIMEOUTS, ask, build_request, pump_all, until

HELLO = answer(b"hello")
ONE_PIECE = 256 * 1024
"""What either loop receives at once."""


# What is used again.


async def test_a_plan_that_is_sent_once_takes_a_fresh_connection(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        await ask(upstream, up)
        response = await upstream.send(build_request(up, once=True))
        assert await response.read(LIMIT) == b"hello"
        response.close()
        assert [seen.connection for seen in up.received] == [1, 2]


@pytest.mark.parametrize("act", [FIN, RST])
async def test_a_plan_that_is_sent_once_is_not_sent_again(upstream: PooledHttpClient, act: Act) -> None:
    async with ScriptedUpstream([HELLO], [act], [HELLO]) as up:
        await ask(upstream, up)
        with pytest.raises(ProviderBadResponse) as caught:
            await upstream.send(build_request(up, once=True))
        assert caught.value.phase == "headers"
        assert len(up.received) == 2


async def test_the_last_connection_that_came_back_is_the_first_to_go(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        replies = [await upstream.send(build_request(up)) for _ in range(3)]
        for response in replies:
            await response.read(LIMIT)
        for number in (0, 2, 1):
            replies[number].close()
        for _ in range(2):
            await ask(upstream, up)
        assert [seen.connection for seen in up.received] == [1, 2, 3, 2, 2]


async def test_an_idle_connection_is_closed_after_a_while_and_then_no_timer_runs(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        await ask(upstream, up)
        (connection,) = list_lines(upstream)
        loop = asyncio.get_running_loop()
        assert 25 < connection.due_at - loop.time() <= 30
        connection.due_at = loop.time() + 0.02
        upstream._pool.watch(connection)
        await until(lambda: up.open_connections == 0)
        await until(lambda: upstream._pool._timer._handle is None)
        assert not connection.idle


async def test_one_timer_serves_a_thousand_requests(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        await ask(upstream, up)
        timer = upstream._pool._timer._handle
        for _ in range(20):
            await ask(upstream, up)
        assert upstream._pool._timer._handle is timer


@pytest.mark.parametrize(
    "script",
    [
        [answer(b"hello", Connection="close")],
        [HELLO.replace(b"HTTP/1.1", b"HTTP/1.0")],
        [b"HTTP/1.1 200 OK\r\n\r\nhello", FIN],
    ],
    ids=["close", "1.0", "until close"],
)
async def test_a_connection_that_the_provider_means_to_close_is_closed(
    upstream: PooledHttpClient, script: list[Any]
) -> None:
    async with ScriptedUpstream(script, [HELLO]) as up:
        assert await ask(upstream, up) == b"hello"
        assert not list_lines(upstream) or list_lines(upstream)[0].gone
        assert await ask(upstream, up) == b"hello"
        assert [seen.connection for seen in up.received] == [1, 2]


async def test_an_answer_to_half_a_request_is_read_and_its_connection_closed(upstream: PooledHttpClient) -> None:
    """A provider that has its answer early reads what it did not want for as long as it likes: not over us."""
    served: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(1)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HELLO)
        await writer.drain()
        await reader.read(1)
        await asyncio.sleep(0.05)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        for asked in (1, 2):
            response = await upstream.send(HttpRequest("POST", url, HEADERS, bytes(9_000_000), TIMEOUTS))
            assert await response.read(LIMIT) == b"hello"
            response.close()
            assert len(served) == asked
        await asyncio.sleep(0.06)


@pytest.mark.parametrize("read", [0, 400_000])
async def test_a_large_body_thatis_refused_early_is_sent_no_further(upstream: PooledHttpClient, read: int) -> None:
    """A provider that has said no may close with bytes unread, and the reset would take its answer along."""
    taken: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(read)
        writer.write(answer(b"too large", 413))
        await asyncio.sleep(0.02)
        taken.append(len(await reader.read(1 << 26)))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 16) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        for asked in (1, 2):
            response = await upstream.send(HttpRequest("POST", url, HEADERS, BIG, TIMEOUTS))
            assert (response.status, await response.read(LIMIT)) == (413, b"too large")
            response.close()
            await until(lambda asked=asked: len(taken) == asked)  # type: ignore[misc]
        assert max(taken) < 5_000_000


async def test_ways_through_proxies_are_kept_apart(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as proxy:
        there = "http://provider.invalid/v1"
        for way in (f"http://a:b@127.0.0.1:{proxy.port}", f"http://c:d@127.0.0.1:{proxy.port}") * 2:
            response = await upstream.send(build_request(proxy, url=there, proxy=way))
            await response.read(LIMIT)
            response.close()
        assert [seen.connection for seen in proxy.received] == [1, 2, 1, 2]
        assert {seen.headers["proxy-authorization"] for seen in proxy.received} == {"Basic YTpi", "Basic Yzpk"}


async def test_a_finished_reply_has_no_part_in_the_next_one(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO], [SSE_HEAD, chunk(b"one"), 0.03, chunk(b"two"), LAST_CHUNK]) as up:
        first = await upstream.send(build_request(up))
        await first.read(LIMIT)
        first.finish()
        second = await upstream.send(build_request(up))
        first.close()
        first.finish()
        first.abort(ProviderBadResponse("late"))
        assert await pump_all(second) == b"onetwo"
        second.close()
        assert [seen.connection for seen in up.received] == [1, 1]
        with pytest.raises(ProviderBadResponse, match="late"):
            await first.read(LIMIT)


# What is pushed.


async def test_while_a_chunk_is_pushed_the_reply_says_how_it_lay_on_the_wire(upstream: PooledHttpClient) -> None:
    parts = [
        chunk(b"one"),
        chunk(b"two") + chunk(b"three"),
        b"5;a=b\r\nhello\r\n",
        chunk(b"four")[:-1],
        b"\n",
        chunk(b"5"),
    ]
    async with ScriptedUpstream([SSE_HEAD, *(step for part in parts for step in (0.02, part)), 0.02, LAST_CHUNK]) as up:
        response = await upstream.send(build_request(up))
        seen: list[tuple[bytes, bytes | None]] = []
        assert await response.pump(lambda *pushed: bool(seen.append(pushed))) is PumpResult.ENDED  # type: ignore[func-returns-value]
        response.close()
    assert seen == [(b"one", parts[0]), (b"twothree", parts[1]), (b"hello", None), (b"four", None), (b"5", parts[5])]


async def test_what_the_sink_raises_is_raised_to_who_pumps_and_what_comes_then_is_not_lost(
    upstream: PooledHttpClient,
) -> None:
    async with ScriptedUpstream([SSE_HEAD, 0.01, chunk(b"one"), 0.02, chunk(b"two"), LAST_CHUNK]) as up:
        response, _ = await open_reply(upstream, up)

        def fail(*_: bytes | None) -> bool:
            raise LookupError("the sink's own")

        with pytest.raises(LookupError):
            await response.pump(fail)
        assert await pump_all(response) == b"two"
        response.close()


async def test_what_a_sink_raised_that_nobody_heard_is_not_raised_to_the_next_one(upstream: PooledHttpClient) -> None:
    script: list[Step] = [SSE_HEAD, 0.01, chunk(b"one") + LAST_CHUNK]
    async with ScriptedUpstream(script) as up:
        response = await upstream.send(build_request(up))

        def fail(*_: bytes | None) -> bool:
            pumping.cancel()
            raise LookupError("the sink's own")

        pumping = asyncio.ensure_future(response.pump(fail))
        with pytest.raises(asyncio.CancelledError):
            await pumping
        response.close()
        second = await upstream.send(build_request(up))
        assert await pump_all(second) == b"one"
        second.close()
        assert [seen.connection for seen in up.received] == [1, 1]


async def test_a_flood_that_nobody_pumps_is_held_back_and_nothing_of_it_is_lost(upstream: PooledHttpClient) -> None:
    piece, times = b"x" * 50_000, 200
    async with ScriptedUpstream([SSE_HEAD, Flood(chunk(piece), times), LAST_CHUNK]) as up:
        response, connection = await open_reply(upstream, up)
        await until(lambda: connection._is_paused)
        await asyncio.sleep(0.05)
        assert READ_BUFFER < connection.waiting_bytes <= READ_BUFFER + ONE_PIECE
        assert len(b"".join(connection.backlog)) == connection.waiting_bytes
        assert len(await pump_all(response)) == len(piece) * times
        assert connection.waiting_bytes == 0
        response.close()


@attrs.define
class Turns:
    """Pieces that are pushed, by the turn of the event loop. ``async with`` it, in which it counts the turns."""

    pieces: list[tuple[bytes, int]] = attrs.Factory(list)
    now: int = 0
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _count(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)

    def take(self, piece: bytes, _raw: bytes | None) -> bool:
        """A sink that never has enough."""
        self.pieces.append((piece, self.now))
        return False

    @property
    def most(self) -> int:
        """Bytes that were pushed in one turn."""
        sums: Counter[int] = Counter()
        for piece, turn in self.pieces:
            sums[turn] += len(piece)
        return max(sums.values())


async def test_a_burst_is_pushed_in_parts_between_events_and_others_have_their_turn(upstream: PooledHttpClient) -> None:
    """Whoever translates events must not hold the loop for all that a socket had at once."""
    event, times = b"data: {}\n\n", 60_000
    async with ScriptedUpstream([SSE_HEAD, 0.05, chunk(event * times), LAST_CHUNK]) as up, Turns() as turns:
        response = await upstream.send(build_request(up))
        assert await response.pump(turns.take) is PumpResult.ENDED
        response.close()
    assert b"".join(piece for piece, _ in turns.pieces) == event * times
    assert turns.most <= MAX_PUSH_BYTES


@pytest.mark.parametrize("sizes", [[60_000, 60_000], [1, MAX_PUSH_BYTES], [30_000] * 5, [MAX_PUSH_BYTES] * 3])
async def test_no_turn_takes_more_than_one_part_of_what_has_waited(
    upstream: PooledHttpClient, sizes: list[int]
) -> None:
    async with ScriptedUpstream([SSE_HEAD, STALL]) as up:
        response, connection = await open_reply(upstream, up)
        for size in sizes:
            connection._queue_pieces(b"a" * size)
        async with Turns() as turns:
            pumping = asyncio.ensure_future(response.pump(turns.take))
            await until(lambda: len(turns.pieces) == len(sizes))
        assert turns.most <= MAX_PUSH_BYTES
        response.abort(ProviderBadResponse("enough"))
        with pytest.raises(ProviderBadResponse, match="enough"):
            await pumping


async def test_what_has_waited_and_what_is_read_in_the_same_turn_are_pushed_in_two(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, STALL]) as up:
        response, connection = await open_reply(upstream, up)
        connection._queue_pieces(b"a" * 60_000)
        async with Turns() as turns:
            pumping = asyncio.ensure_future(response.pump(turns.take))
            asyncio.get_running_loop().call_soon(connection.data_received, chunk(b"b" * 60_000))
            await until(lambda: len(turns.pieces) == 2)
        assert [piece[:1] for piece, _ in turns.pieces] == [b"a", b"b"]
        assert turns.most <= MAX_PUSH_BYTES
        response.abort(ProviderBadResponse("enough"))
        with pytest.raises(ProviderBadResponse, match="enough"):
            await pumping


async def test_a_burst_is_not_overtaken_by_what_comes_while_it_waits_for_its_turn(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, STALL]) as up:
        response, connection = await open_reply(upstream, up)
        pieces: list[bytes] = []
        pumping = asyncio.ensure_future(
            response.pump(lambda piece, _raw: bool(pieces.append(piece)) or len(pieces) == 4)  # type: ignore[func-returns-value]
        )
        await asyncio.sleep(0)
        connection._deliver(b"a" * (2 * MAX_PUSH_BYTES + 1))
        connection._deliver(b"b")
        assert await pumping is PumpResult.PAUSED
        assert [(piece[:1], len(piece)) for piece in pieces] == [
            (b"a", MAX_PUSH_BYTES), (b"a", MAX_PUSH_BYTES), (b"a", 1), (b"b", 1)
        ]  # fmt: skip
        response.close()


async def test_a_burst_is_divided_between_events(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, STALL]) as up:
        response, connection = await open_reply(upstream, up)
        event = b"data: {}\n\n"
        connection._deliver(event * (3 * MAX_PUSH_BYTES // len(event)))
        assert [len(piece) % len(event) for piece in connection.backlog] == [0] * 4
        assert max(map(len, connection.backlog)) > MAX_PUSH_BYTES - len(event)
        response.close()


async def test_a_short_pause_does_not_stop_the_reading(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(b"one"), 0.01, chunk(b"two"), STALL]) as up:
        response, connection = await open_reply(upstream, up)
        await response.pump(lambda *_: True)
        await until(lambda: connection.waiting_bytes)
        assert not connection._is_paused
        response.close()


async def test_a_long_backlog_is_pushed_in_turns_with_others(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([SSE_HEAD, STALL]) as up:
        response, connection = await open_reply(upstream, up)
        for _ in range(1000):
            connection._deliver(b"x")
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        seen: list[bytes] = []
        await response.pump(lambda piece, _raw: bool(seen.append(piece)) or len(seen) == 1000)  # type: ignore[func-returns-value]
        counting.cancel()
        assert turns > 20
        response.close()


async def test_a_json_answer_that_is_there_is_read_without_a_wait(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        response, _ = await open_reply(upstream, up)
        reading = response.read(LIMIT)
        with pytest.raises(StopIteration) as ended:
            reading.send(None)
        assert ended.value.value == b"hello"
        response.close()


async def test_an_answer_that_has_come_in_pieces_is_read_whole(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO[:-4], 0.02, HELLO[-4:-2], 0.02, HELLO[-2:]], [HELLO]) as up:
        response, connection = await open_reply(upstream, up)
        await until(lambda: connection.framing.complete)
        assert len(connection.backlog) == 3
        assert await response.read(LIMIT) == b"hello"
        assert connection.waiting_bytes == 0
        response.close()
        assert await ask(upstream, up) == b"hello"
        assert [seen.connection for seen in up.received] == [1, 1]


@pytest.mark.parametrize("size", [5001, 70_000])
async def test_a_whole_body_over_the_limit_is_an_error(upstream: PooledHttpClient, size: int) -> None:
    async with ScriptedUpstream([SSE_HEAD + chunk(b"x" * size) + LAST_CHUNK]) as up:
        response, connection = await open_reply(upstream, up)
        with pytest.raises(ProviderBadResponse, match="larger than 5000 bytes"):
            await response.read(5000)
        assert connection.gone
        response.close()


async def test_a_bomb_is_pushed_in_steps(upstream: PooledHttpClient) -> None:
    packer = zlib.compressobj(9, wbits=31)
    packed = packer.compress(bytes(4 << 20)) + packer.flush()
    async with ScriptedUpstream([answer(packed, Content_Encoding="gzip")]) as up:
        response = await upstream.send(build_request(up))
        sizes: list[int] = []
        assert await response.pump(lambda piece, _raw: bool(sizes.append(len(piece)))) is PumpResult.ENDED  # type: ignore[func-returns-value]
        response.close()
    assert sum(sizes) == 4 << 20
    assert max(sizes) <= 64 * 1024


async def test_a_compressed_body_that_is_cut_is_an_error(upstream: PooledHttpClient) -> None:
    packed = gzip.compress(b"hello" * 1000)
    async with ScriptedUpstream([answer(packed[:-9], Content_Encoding="gzip")]) as up:
        with pytest.raises(ProviderBadResponse) as caught:
            await ask(upstream, up)
        assert caught.value.phase == "body"


async def test_what_came_while_the_loop_was_busy_is_no_answer_to_the_next_request(upstream: PooledHttpClient) -> None:
    """It lies in the kernel, where nobody has looked at it, when the connection would be used again."""
    go, done = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def provide() -> None:
            first, _ = server.accept()
            with first:
                first.recv(65536)
                first.sendall(HELLO)
                go.wait(5)
                first.sendall(answer(b"of somebody else"))
                done.set()
                second, _ = server.accept()
                with second:
                    second.recv(65536)
                    second.sendall(HELLO)

        providing = threading.Thread(target=provide)
        providing.start()
        there = HttpRequest("POST", f"http://127.0.0.1:{server.getsockname()[1]}/v1", HEADERS, b"{}", TIMEOUTS)
        for _ in range(2):
            response = await upstream.send(there)
            assert await response.read(LIMIT) == b"hello"
            response.close()
            go.set()
            done.wait(5)  # this loop does not turn meanwhile
        providing.join()
