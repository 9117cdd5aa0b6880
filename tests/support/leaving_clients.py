"""Clients that leave, in every phase of a request."""

import asyncio
import socket
import struct

import attrs
import orjson

from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway
from tests.support.scripted_upstream import COMPLETION, SSE_HEAD, STALL, Script, answer, chunk
from tests.support.upstream_scripts import COMMENT, ONE, STARTED, TWO

Writer = asyncio.StreamWriter


async def connect(gateway: RunningGateway, *, stream: bool) -> tuple[asyncio.StreamReader, Writer]:
    """A caller's bare connection, its request sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    body = orjson.dumps({**HELLO, "stream": stream})
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return reader, writer


def close(writer: Writer) -> None:
    writer.close()


def reset(writer: Writer) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


def half_close(writer: Writer) -> None:
    writer.write_eof()


@attrs.frozen
class Phase:
    """``heard`` is what has reached the caller when it leaves. ``refused``: the provider has said that it failed."""

    name: str
    script: Script
    stream: bool
    heard: bytes = b""
    refused: bool = False


PHASES = [
    Phase("before the headers", [STALL], stream=True),
    Phase("before the headers of a whole answer", [STALL], stream=False),
    Phase("before the first event", [SSE_HEAD, STALL], stream=True),
    Phase("after a comment", [SSE_HEAD, COMMENT, STALL], stream=True),
    Phase("in the first event", [SSE_HEAD, chunk(ONE[:-1]), STALL], stream=True),
    Phase("in mid-stream", [*STARTED, STALL], stream=True, heard=ONE + TWO),
    Phase("in the middle of an event", [*STARTED, chunk(b"data: {"), STALL], stream=True, heard=ONE + TWO),
    Phase("in a whole answer", [answer(COMPLETION)[:-5], STALL], stream=False),
    Phase("in the body of an error", [answer({"error": {}}, 500)[:-1], STALL], stream=False, refused=True),
    Phase("in a whole answer sent for a stream", [answer(COMPLETION)[:-5], STALL], stream=True),
]
