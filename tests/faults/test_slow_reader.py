"""A caller who reads slowly, or not at all: its own provider is held back, memory stays bounded, nothing is lost."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from gateway.serve import SEND_BUFFER
from tests.conftest import StartGateway
from tests.faults.test_shutdown import stored
from tests.support.fault_scene import QUICK, audit, call, site, until
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.scripted_upstream import DONE, LAST_CHUNK, SSE_HEAD, Flood, ScriptedUpstream, chunk, delta, event

WORD = event(delta("x" * 32_000))
MANY = 800
STORY = [SSE_HEAD, Flood(chunk(WORD), MANY), chunk(event(delta("", "stop")) + DONE), LAST_CHUNK]
HELD = 16 * 1024 * 1024
"""What two kernels' buffers of a loopback connection may hold at the most, well under the story's 26 MB."""


def narrow(info: Any) -> socket.socket:
    sock = socket.socket(info[0], info[1], info[2])
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    return sock


@asynccontextmanager
async def unread(gateway: RunningGateway) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream whose body nobody has read yet, over a narrow connection."""
    gateway.server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    connector = aiohttp.TCPConnector(socket_factory=narrow)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers, read_bufsize=2**14) as session,
        session.post(gateway.url + CHAT, json={**HELLO, "stream": True}) as response,
    ):
        yield response


async def settle(up: ScriptedUpstream) -> int:
    """How much the provider could send until it could send no more."""
    last = -1
    while up.flooded != last:
        last = up.flooded
        await asyncio.sleep(0.05)
    return last


def waiting_bytes(gateway: RunningGateway) -> int:
    return sum(each.transport.get_write_buffer_size() for each in gateway.runner.server.connections if each.transport)


@pytest.mark.slow
async def test_a_caller_who_stops_reading_holds_its_provider_back_and_loses_nothing(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(STORY) as up:
        gateway = await gateway_with(site(channel(up.base_url, **QUICK)))
        async with unread(gateway) as response:
            assert 0 < await settle(up) < HELD
            assert waiting_bytes(gateway) < 1024 * 1024
            # Longer than the idle timer: the provider's silence is the caller's doing and no fault.
            await asyncio.sleep(0.3)
            body = await response.read()
        assert len(body) == len(WORD) * MANY + len(event(delta("", "stop")) + DONE)
        assert body.count(WORD) == MANY
        await audit(gateway, ending="completed", attempts=1)


@pytest.mark.slow
async def test_a_caller_who_stops_reading_and_leaves_cancels_its_provider(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(STORY) as up:
        gateway = await gateway_with(site(channel(up.base_url)))
        async with unread(gateway) as response:
            await settle(up)
            response.close()
        await until(lambda: up.open_connections == 0)
        assert up.flooded < HELD
        await audit(gateway, up, ending="client_closed", usage_source="estimate")


@pytest.mark.slow
async def test_a_caller_who_does_not_read_slows_nobody_else(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(STORY) as up:
        gateway = await gateway_with(site(channel(up.base_url)))
        async with unread(gateway) as response:
            held = await settle(up)
            heard = await call(gateway, stream=True)
            assert heard.body.count(WORD) == MANY
            assert up.flooded >= held + len(WORD) * MANY
            response.close()
        assert sorted(row.ending for row in await gateway.rows(2)) == ["client_closed", "completed"]


@pytest.mark.slow
async def test_a_stop_under_a_caller_who_does_not_read_ends_and_leaves_its_row(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(STORY) as up:
        gateway = await gateway_with(site(channel(up.base_url), server={"drain_timeout_s": 0.1}))
        async with unread(gateway) as response:
            await settle(up)
            async with asyncio.timeout(20):
                await gateway.stop()
            response.close()
        await until(lambda: up.open_connections == 0)
        (row,) = await stored(gateway)
        assert (row.ending, row.usage_source) == ("interrupted", "estimate")
