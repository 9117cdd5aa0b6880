"""Clients that never read: what each of them holds, in the kernel and here, and that it is given back."""

import asyncio
import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from gateway.serve import SEND_BUFFER
from tests.support.gateway import KEY, RunningGateway, channels
from tests.support.raw_client import hello, post
from tests.support.scripted_upstream import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Flood,
    ScriptedUpstream,
    Step,
    chunk,
    delta,
    event,
)
from tests.support.started_gateways import StartGateway

pytestmark = pytest.mark.slow

KB = 1024
SIOCOUTQ = 0x5411
"""Bytes that the kernel holds for a connection, sent and not acknowledged or not sent yet (tcp(7))."""
AUTHORIZED = f"Authorization: Bearer {KEY}\r\n"


def ask(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n{more}\r\n".encode()


def measure(gateway: RunningGateway) -> int:
    """The most that is held for a connection."""
    assert gateway.runner.server is not None
    most = 0
    for connection in gateway.runner.server.connections:
        if connection.transport is not None:
            sock = connection.transport.get_extra_info("socket")
            (kernel,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), SIOCOUTQ, bytes(4)))
            most = max(most, kernel + connection.transport.get_write_buffer_size())
    return most


@contextmanager
def deaf(gateway: RunningGateway) -> Iterator[socket.socket]:
    """A client that reads nothing; its own kernel holds next to nothing for it."""
    gateway.server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    parts = urlsplit(gateway.url)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KB)
        sock.connect((parts.hostname, parts.port))
        sock.setblocking(False)
        yield sock


async def pour(sock: socket.socket, data: bytes) -> None:
    """Send as much of it as is taken."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(0.5):
            await loop.sock_sendall(sock, data)
    except TimeoutError:
        pass


async def settle(gateway: RunningGateway) -> int:
    """What is held when nothing changes any more."""
    last = -1
    while (now := measure(gateway)) != last or now == 0:
        last = now
        await asyncio.sleep(0.1)
    return now


@pytest.mark.parametrize(
    ("raw", "times"),
    [
        (ask("/healthz"), 20_000),
        (ask("/nothing"), 20_000),
        (ask("/v1/models"), 20_000),
        (ask("/v1/models", AUTHORIZED), 20_000),
        (ask("/docs"), 20),
        (ask("/openapi.json"), 20),
        (ask("/console/sign-in"), 200),
    ],
    ids=["healthz", "404", "401", "models", "docs", "openapi", "console"],
)
async def test_who_asks_and_asks_and_reads_nothing_holds_little(
    gateway_with: StartGateway, raw: bytes, times: int
) -> None:
    async with asyncio.timeout(20):
        gateway = await gateway_with({})
        with deaf(gateway) as sock:
            await pour(sock, raw * times)
            assert 0 < await settle(gateway) <= 256 * KB
        while measure(gateway):  # noqa: ASYNC110 - the kernel has no event for it
            await asyncio.sleep(0.01)


async def test_who_does_not_read_a_stream_of_words_holds_little(gateway_with: StartGateway) -> None:
    word = event(delta("one more word "))
    pieces: list[Step] = [chunk(word * 20), 0.001]
    story: list[Step] = [SSE_HEAD, *pieces * 400, chunk(event(delta("", "stop")) + DONE), LAST_CHUNK]
    async with asyncio.timeout(20), ScriptedUpstream(story) as up:
        gateway = await gateway_with(channels([up]))
        with deaf(gateway) as sock:
            await pour(sock, post(hello(stream=True)))
            assert 0 < await settle(gateway) <= 256 * KB


async def test_a_provider_that_floods_is_read_once_too_often_at_most(gateway_with: StartGateway) -> None:
    """What lies in the kernel is read in pieces of up to 256 KB: that much more may be held."""
    story: list[Step] = [
        SSE_HEAD,
        Flood(chunk(event(delta("x" * 32_000))), 400),
        chunk(event(delta("", "stop")) + DONE),
        LAST_CHUNK,
    ]
    async with asyncio.timeout(20), ScriptedUpstream(story) as up:
        gateway = await gateway_with(channels([up]))
        with deaf(gateway) as sock:
            await pour(sock, post(hello(stream=True)))
            assert 0 < await settle(gateway) <= 512 * KB


@pytest.mark.parametrize("path", ["/docs", "/healthz", "/nothing"])
async def test_who_reads_nothing_for_long_is_cut_off_though_it_shows_no_key(
    gateway_with: StartGateway, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.protocol.WRITE_TIMEOUT_S", 0.2)
    gateway = await gateway_with({})
    assert gateway.runner.server is not None
    with deaf(gateway) as sock:
        await pour(sock, ask(path) * 4_000)
        async with asyncio.timeout(10):
            while gateway.runner.server.connections:  # noqa: ASYNC110 - nor has aiohttp
                await asyncio.sleep(0.02)
