"""Connections over TLS are counted when they are accepted: those that never finish a handshake shut no one out."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from socket import create_server
from typing import cast

import attrs
import pytest

from gateway.server.connection_limits import (
    CROWDED_HANDSHAKE_TIMEOUT_S,
    HANDSHAKE_TIMEOUT_S,
    ConnectionLimiter,
    ConnectionLimits,
)
from gateway.server.protocol import GatewayServer
from gateway.server.tls_site import TlsSite, find_handshake_timeout_s
from tests.support.certificates import write_certificate
from tests.support.gateway import channels
from tests.support.raw_client import hello, post, read_answer
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"


@attrs.frozen
class Secured:
    """A gateway's TLS port, and what counts its connections."""

    port: int
    server: GatewayServer
    limiter: ConnectionLimiter

    async def connect(self, *, tls: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context if tls else None)

    async def await_count(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.limiter) != count:  # noqa: ASYNC110 - the limiter has no event for it
                await asyncio.sleep(0.005)


@pytest.fixture
async def secured(gateway_with: StartGateway, tmp_path: Path) -> AsyncIterator[Secured]:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*write_certificate(tmp_path))
        server = cast("GatewayServer", gateway.runner.server)
        assert CROWDED_HANDSHAKE_TIMEOUT_S < HANDSHAKE_TIMEOUT_S
        limits = ConnectionLimits(16, 16, 4, handshake_s=200, crowded_handshake_s=100)  # on no machine too short
        now_s = asyncio.get_running_loop().time()
        server.limiter = ConnectionLimiter(limits, (), lambda: now_s)  # no connection ever waits too long
        listener = create_server(("127.0.0.1", 0))
        await TlsSite(gateway.runner, listener, ssl_context=context).start()
        yield Secured(listener.getsockname()[1], server, server.limiter)


async def test_connections_without_a_handshake_count_and_make_room(secured: Secured) -> None:
    assert find_handshake_timeout_s(secured.limiter) == 200
    assert find_handshake_timeout_s(None) == HANDSHAKE_TIMEOUT_S
    silent = [await secured.connect(tls=False) for _ in range(40)]
    reader, writer = await secured.connect(tls=True)
    writer.write(HEALTH)
    assert (await read_answer(reader)).status == 200
    assert 0 < len(secured.server.handshakes) < len(secured.limiter) <= 16
    assert find_handshake_timeout_s(secured.limiter) == 100
    assert secured.limiter.closed_count + secured.limiter.refused_count >= 24
    for _, each in (*silent, (reader, writer)):
        each.close()
    await secured.await_count(0)
    assert not secured.server.handshakes


async def test_a_connection_counts_once_however_its_handshake_ends(secured: Secured) -> None:
    reader, writer = await secured.connect(tls=True)
    writer.write(HEALTH)
    assert (await read_answer(reader)).status == 200
    assert len(secured.limiter) == 1
    for wrong in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b""):
        _, other = await secured.connect(tls=False)
        await secured.await_count(2)
        other.write(wrong)
        if not wrong:
            other.close()
        await secured.await_count(1)
        other.close()
    writer.write(HEALTH)
    assert (await read_answer(reader)).status == 200
    writer.close()
    await secured.await_count(0)


async def test_a_full_gateway_closes_before_the_handshake(secured: Secured) -> None:
    """A connection that is counted cannot make room for others while its request is under way."""
    limiter = secured.limiter
    limiter.limits = attrs.evolve(limiter.limits, total=2, reserve=0)
    busy = [await secured.connect(tls=True) for _ in range(2)]
    for _, writer in busy:
        writer.write(post(hello())[:-1])
        await writer.drain()
    async with asyncio.timeout(20):
        while any(each.idle_since is not None for each in limiter._open_connections):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)
    reader, writer = await secured.connect(tls=False)
    assert await reader.read() == b""
    assert (limiter.refused_count, len(secured.server.handshakes)) == (1, 0)
    for _, each in (*busy, (reader, writer)):
        each.close()
    await secured.await_count(0)
