"""A caller without a client library: bytes out, bytes in."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import attrs
import orjson

from tests.support.gateway import CHAT, HELLO, KEY


@attrs.frozen
class RawAnswer:
    """One answer as it lay on the wire. Header names are lower-case; a repeated header keeps its last value."""

    version: str
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error object, which is all that the body holds."""
        value: dict[str, Any]
        (value,) = orjson.loads(self.body).values()
        assert value.keys() - {"doc_url"} == {"message", "type", "param", "code"}
        return value


def post(body: bytes, *lines: str, path: str = CHAT, key: str = KEY) -> bytes:
    """A POST of JSON with a Content-Length; ``lines`` are further header lines."""
    head = [
        f"POST {path} HTTP/1.1",
        "Host: gateway",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *lines,
    ]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def hello(**more: Any) -> bytes:
    """The body of a small chat call."""
    return orjson.dumps({**HELLO, **more})


async def talk(url: str, raw: bytes) -> bytes:
    """Send ``raw`` and read until the gateway closes. Fails where it does not close within three seconds."""
    reader, writer = await connect(url)
    try:
        writer.write(raw)
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the gateway."""
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port, limit=2**20)


async def read_answer(reader: asyncio.StreamReader) -> RawAnswer:
    """The next answer of a connection, which must have a Content-Length."""
    async with asyncio.timeout(20):
        head = await reader.readuntil(b"\r\n\r\n")
        answer = _split_head(head)
        return attrs.evolve(answer, body=await reader.readexactly(int(answer.headers["content-length"])))


def split(raw: bytes) -> RawAnswer:
    """The one answer that ``raw`` is."""
    head, _, body = raw.partition(b"\r\n\r\n")
    return attrs.evolve(_split_head(head), body=body)


def _split_head(head: bytes) -> RawAnswer:
    start, *lines = head.decode("latin-1").strip().split("\r\n")
    version, status, *_ = start.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return RawAnswer(version, int(status), headers, b"")
