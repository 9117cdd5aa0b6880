"""Clients that lose their stream and take it up again."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from gateway.formats.wire.sse import SseSplitter, parse_data
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway

RESUMABLE = "x-gateway-resumable"
STREAM = "x-gateway-stream"
STREAMED: dict[str, Any] = {**HELLO, "stream": True}
_STREAM_HEADER = re.compile(rb"x-gateway-stream: (st_[0-9a-f.]+)\r\n")


class CutStream:
    """A streamed request over a socket of its own, of which the client reads as much as it likes.

    ``received``: the bytes of the body so far, without the framing of chunks.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.id = ""
        self.received = b""

    @classmethod
    async def open(
        cls, url: str, body: Mapping[str, Any] = STREAMED, path: str = CHAT, headers: Mapping[str, str] | None = None
    ) -> "CutStream":
        """Ask for a resumable stream, and read its head."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
        raw = orjson.dumps(body)
        lines = {
            "Host": "gateway", "Authorization": f"Bearer {KEY}", "Content-Type": "application/json", RESUMABLE: "true",
            "Content-Length": str(len(raw)), **(headers or {}),
        }  # fmt: skip
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + raw)
        stream = cls(reader, writer)
        answered = await reader.readuntil(b"\r\n\r\n")
        assert answered.startswith(b"HTTP/1.1 200"), answered
        match = _STREAM_HEADER.search(answered)
        stream.id = match[1].decode() if match else ""
        return stream

    async def read_events(self, count: int) -> None:
        """Read until ``count`` events have come whole."""
        while len(list_events(self.received)) < count:
            await self.read_chunk()

    async def read_chunk(self) -> bytes:
        """Read one chunk; empty at the end."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        data = (await self._reader.readexactly(size + 2))[:-2]
        self.received += data
        return data

    async def read_raw(self, count: int) -> bytes:
        """Read up to ``count`` bytes as they come, framing and all."""
        pieces = b""
        while len(pieces) < count and (piece := await self._reader.read(count - len(pieces))):
            pieces += piece
        return pieces

    def cut(self) -> None:
        """Lose the connection."""
        self._writer.transport.abort()


def list_events(data: bytes) -> list[bytes]:
    """The whole events in ``data``, without comments."""
    return [event for event in SseSplitter().split(data) if parse_data(event) is not None]


def unchunk(raw: bytes) -> bytes:
    """The body in ``raw``, whose last chunk may be cut anywhere."""
    body = b""
    while raw:
        line, found, rest = raw.partition(b"\r\n")
        if not found or not (size := int(line, 16)):
            break
        body += rest[:size]
        raw = rest[size + 2 :]
    return body


def strip_ids(events: Iterable[bytes]) -> tuple[list[int], list[bytes]]:
    """The numbers of ``events``, and the events without them."""
    numbers, rest = [], []
    for event in events:
        line, _, without = event.partition(b"\n")
        assert line.startswith(b"id: "), event
        numbers.append(int(line[4:]))
        rest.append(without)
    return numbers, rest


def find_text(events: Iterable[bytes]) -> str:
    """The text of a chat stream."""
    text = ""
    for event in events:
        data = parse_data(event)
        if data and data.startswith(b"{"):
            for choice in orjson.loads(data).get("choices", ()):
                text += choice["delta"].get("content") or ""
    return text


async def take_up(gateway: RunningGateway, stream_id: str, after: int = 0) -> tuple[list[int], list[bytes]]:
    """The events of a stream after number ``after``, to its end: their numbers, and what they are without them."""
    async with gateway.client.get(f"{gateway.url}/v1/streams/{stream_id}?after={after}") as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        return strip_ids(list_events(await response.read()))
