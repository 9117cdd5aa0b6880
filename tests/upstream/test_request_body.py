"""A body with files in it on its way to a provider: all of it, in pieces, at the provider's pace, and once more."""

import asyncio
import base64
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest

from gateway.domain.channel import Timeouts
from gateway.domain.http_request import HttpRequest
from gateway.domain.upload import Content, FilePiece, Upload
from gateway.errors import ProviderBadResponse, StoreUnavailable
from gateway.storage.upload_spool import UploadSpool
from gateway.upstream.client import PooledHttpClient
from gateway.upstream.interface import RESEND_WITHIN_S, StaleConnection
from gateway.upstream.request_body import BASE64_BYTES, PIECE_BYTES
from tests.support.scripted_upstream import COMPLETION, FIN, RST, Act, ScriptedUpstream, answer
from tests.support.upstream_requests import HEADERS, LIMIT, TIMEOUTS, until

HELLO = answer(b"hello")
REFUSAL = b'{"error":{"message":"too large"}}'
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def data_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)  # noqa: S311 - bytes that differ, not secrets


@attrs.define
class Watched:
    """A spooled file that counts what is read of it, and may be shorter than it says, or fail."""

    data: bytes
    claimed: int | None = None
    error: Exception | None = None
    largest: int = 0
    total: int = 0

    @property
    def size(self) -> int:
        return len(self.data) if self.claimed is None else self.claimed

    async def read(self, offset: int, size: int) -> bytes:
        await asyncio.sleep(0)
        if self.error is not None and offset:
            raise self.error
        found = self.data[offset : offset + size]
        self.largest = max(self.largest, len(found))
        self.total += len(found)
        return found


def upload(spooled: Watched) -> Upload:
    return Upload("image", "a.png", "image/png", spooled.data[:512], spooled)


def build_request(url: str, content: Content, timeouts: Timeouts = TIMEOUTS) -> HttpRequest:
    return HttpRequest("POST", url, HEADERS, content, timeouts)


async def ask(upstream: PooledHttpClient, url: str, content: Content) -> tuple[int, bytes]:
    response = await upstream.send(build_request(url, content))
    try:
        return response.status, await response.read(LIMIT)
    finally:
        response.close()


@asynccontextmanager
async def provider(serve: Serve) -> AsyncIterator[str]:
    """A server whose connections are played by ``serve``, and end with the block."""
    players: set[asyncio.Task[None]] = set()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def run() -> None:
            await serve(reader, writer)

        task = asyncio.create_task(run())
        players.add(task)
        try:
            await asyncio.wait([task])
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(play, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for task in players:
            task.cancel()
        await asyncio.gather(*players, return_exceptions=True)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("size", [0, 1, 2, 3, BASE64_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 1])
async def test_bytes_and_files_arrive_in_their_order_with_their_length(upstream: PooledHttpClient, size: int) -> None:
    data = data_of(size)
    file = upload(Watched(data))
    content = Content((b"before", FilePiece(file), b"", FilePiece(file, base64=True), b"after"))
    async with ScriptedUpstream([HELLO]) as up:
        assert await ask(upstream, up.base_url, content) == (200, b"hello")
        (seen,) = up.received
    assert seen.body == b"before" + data + base64.b64encode(data) + b"after"
    assert seen.headers["content-length"] == str(len(seen.body))
    assert "transfer-encoding" not in seen.headers
    assert seen.headers["content-type"] == HEADERS["Content-Type"]


async def test_a_file_of_the_spool_goes_to_several_providers_at_once(
    upstream: PooledHttpClient, tmp_path: Path
) -> None:
    data = data_of(700_000)
    spooled = UploadSpool(tmp_path, limit_bytes=2**30).find_share(1).open()
    await spooled.write(data)
    file = Upload("image", "a.png", "image/png", b"", spooled)
    async with ScriptedUpstream([HELLO]) as one, ScriptedUpstream([HELLO]) as two:
        await asyncio.gather(
            ask(upstream, one.base_url, Content((FilePiece(file),))),
            ask(upstream, two.base_url, Content((FilePiece(file, base64=True),))),
            ask(upstream, one.base_url, Content((b"x", FilePiece(file)))),
        )
        assert sorted(len(seen.body) for seen in one.received) == [700_000, 700_001]
        assert {seen.body.removeprefix(b"x") for seen in one.received} == {data}
        assert two.received[0].body == base64.b64encode(data)
    spooled.close()


@pytest.mark.parametrize("act", [FIN, RST])
async def test_after_a_stale_connection_the_whole_body_can_be_sent_again(upstream: PooledHttpClient, act: Act) -> None:
    data = data_of(3_000_000)
    content = Content((b"<", FilePiece(upload(Watched(data))), b">"))
    async with ScriptedUpstream([HELLO], [act], [HELLO]) as up:
        assert await ask(upstream, up.base_url, content) == (200, b"hello")
        with pytest.raises(StaleConnection):
            await ask(upstream, up.base_url, content)
        assert await ask(upstream, up.base_url, content) == (200, b"hello")
        assert [seen.connection for seen in up.received] == [1, 1, 2]
        assert [seen.body == b"<" + data + b">" for seen in up.received] == [True, True, True]


async def test_a_kept_connection_that_breaks_while_the_body_is_written_is_stale(upstream: PooledHttpClient) -> None:
    """However long that took: nobody can have worked on a request that was not all there."""
    served: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(1)
        await reader.readuntil(b"\r\n\r\n")
        if len(served) == 1:
            await reader.readexactly(1)
            writer.write(HELLO)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(RESEND_WITHIN_S + 0.02)
        writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=1000) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        assert await ask(upstream, url, Content((b"x",))) == (200, b"hello")
        with pytest.raises(StaleConnection):
            await ask(upstream, url, Content((FilePiece(upload(Watched(bytes(20_000_000)))),)))
        assert served == [1]


async def test_a_provider_that_does_not_read_is_waited_for_with_little_in_memory(upstream: PooledHttpClient) -> None:
    spooled = Watched(bytes(50_000_000))
    go = asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        left = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await go.wait()
        while left:
            left -= len(await reader.read(1 << 20))
        writer.write(HELLO)
        await writer.drain()

    async with provider(stall) as url:
        asking = asyncio.create_task(ask(upstream, url, Content((FilePiece(upload(spooled)),))))
        before = -1
        while spooled.total > before:
            before = spooled.total
            await asyncio.sleep(0.05)
        # What the two systems hold for their sockets is some megabytes, too.
        assert 0 < spooled.total < 20_000_000
        go.set()
        assert await asking == (200, b"hello")
    assert spooled.total == 50_000_000
    assert spooled.largest <= PIECE_BYTES


@pytest.mark.parametrize("read", [0, 1_000_000])
@pytest.mark.parametrize("end", ["stay", "finish", "close"])
async def test_a_provider_that_refuses_early_gives_its_answer(upstream: PooledHttpClient, read: int, end: str) -> None:
    spooled = Watched(bytes(20_000_000))

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(read)
        writer.write(answer(REFUSAL, 413))
        await writer.drain()
        if end == "finish":
            writer.write_eof()
        if end == "close":
            await asyncio.sleep(0.02)  # a reset may overtake an answer: no provider is that rude
            return
        await asyncio.sleep(3600)

    async with provider(refuse) as url:
        assert await ask(upstream, url, Content((FilePiece(upload(spooled)),))) == (413, REFUSAL)
    assert spooled.total < 20_000_000


async def test_after_a_refusal_nothing_more_is_sent_and_its_connection_is_not_used_again(
    upstream: PooledHttpClient,
) -> None:
    connections = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        whole = answer(REFUSAL, 401)
        writer.write(whole[:-10])
        reading = asyncio.create_task(read_on(reader))
        await asyncio.sleep(0.05)
        writer.write(whole[-10:])
        await reading

    async def read_on(reader: asyncio.StreamReader) -> None:
        while await reader.read(1 << 20):
            pass

    async with provider(refuse) as url:
        for asked in (1, 2):
            spooled = Watched(bytes(30_000_000))
            assert await ask(upstream, url, Content((FilePiece(upload(spooled)),))) == (401, REFUSAL)
            assert spooled.total < 20_000_000
            assert connections == asked


async def test_a_caller_who_leaves_half_way_leaves_no_connection_to_a_provider_that_does_not_read(
    upstream: PooledHttpClient,
) -> None:
    async def stall(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport: Any = writer.transport  # uvloop's are no asyncio.Transport by their class
        transport.pause_reading()
        await asyncio.sleep(3600)

    def count(port: int) -> int:
        return sum(getattr(each.raddr, "port", None) == port for each in psutil.Process().net_connections("tcp"))

    async with provider(stall) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        asking = asyncio.create_task(ask(upstream, url, Content((FilePiece(upload(Watched(bytes(20_000_000)))),))))
        await until(lambda: count(port))
        await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: not count(port))


async def test_a_file_that_cannot_be_read_is_our_fault_and_not_the_providers(upstream: PooledHttpClient) -> None:
    lost = StoreUnavailable("The upload cannot be read", retry_after_s=5)
    for spooled in (Watched(bytes(900_000), error=lost), Watched(bytes(1000), claimed=400_000)):
        async with ScriptedUpstream([answer(COMPLETION)]) as up:
            with pytest.raises(StoreUnavailable):
                await ask(upstream, up.base_url, Content((FilePiece(upload(spooled)),)))
            assert not up.received


async def test_a_provider_that_breaks_half_way_is_an_upstream_error(upstream: PooledHttpClient) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(100_000)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with provider(reset) as url:
        with pytest.raises(ProviderBadResponse):
            await ask(upstream, url, Content((FilePiece(upload(Watched(bytes(9_000_000)))),)))


async def test_the_headers_may_not_claim_another_length(upstream: PooledHttpClient) -> None:
    content = Content((FilePiece(upload(Watched(b"12345"))),))
    async with ScriptedUpstream([HELLO]) as up:
        with pytest.raises(ProviderBadResponse):
            await upstream.send(HttpRequest("POST", up.base_url, {**HEADERS, "Content-Length": "4"}, content, TIMEOUTS))
