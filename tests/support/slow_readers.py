"""Clients that read slowly, or not at all."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from gateway.serve import SEND_BUFFER
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway
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

WORD = event(delta("x" * 32_000))


MANY = 800


STORY: list[Step] = [SSE_HEAD, Flood(chunk(WORD), MANY), chunk(event(delta("", "stop")) + DONE), LAST_CHUNK]


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
    return sum(each.transport.get_write_buffer_size() for each in gateway.runner.server.connections if each.transport)  # type: ignore[misc, union-attr]
