"""Uploads from both ends: callers that send large forms, and a provider that counts what comes and keeps none of it."""

import asyncio
import hashlib
import itertools
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import attrs
import orjson

from tests.support.fault_scene import PRICE
from tests.support.gateway import KEY, channel
from tests.support.gemini_images import write_answer
from tests.support.image_providers import draw
from tests.support.multipart_bodies import TYPE, part
from tests.support.raw_client import RawAnswer, split

MB = 2**20
PNG = b"\x89PNG\r\n\x1a\n"
BLOCK = (random.Random(5).randbytes(65_521) * 321)[: 20 * MB - 16]  # noqa: S311 - bytes that differ, not secrets
"""With a caller's own 16 bytes before them it is a file of 20 MB; no two of its blocks of 64 KiB are the same."""
EDITS = "/v1/images/edits"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
KEPT = 4096
"""What the provider keeps of a body's beginning, and of its end."""
SENT_AT_ONCE = 256 * 1024
ANSWERS: dict[str, Any] = {
    EDITS: {"created": 1, "data": [{"b64_json": "iVBORw0KGgo="}], "usage": {"input_tokens": 5, "output_tokens": 7}},
    TRANSCRIPTIONS: {"text": "hello", "usage": {"type": "tokens", "input_tokens": 5, "output_tokens": 7}},
}
NOT_FOUND = write_answer(draw())  # Gemini's paths have the model in them


def name_file(number: int) -> bytes:
    """The first 16 bytes of a caller's own PNG."""
    return PNG + struct.pack(">Q", number)


@attrs.frozen
class Mode:
    """What the provider does with a request.

    Attributes:
        reads: so much of the body, and then acts; None: all of it.
        then: a whole answer, or what becomes of the connection; None: the good answer.
        pace: bytes of the body a second, at most.
    """

    reads: int | None = None
    then: bytes | Literal["fin", "rst", "stall"] | None = None
    pace: float = 0.0


WELL = Mode()


@attrs.define(eq=False)
class Taken:
    """What came of one body. ``body`` is there where the provider was told to keep bodies."""

    path: str
    headers: dict[str, str]
    length: int
    size: int = 0
    head: bytes = b""
    tail: bytes = b""
    body: bytearray | None = None
    digest: Any = attrs.Factory(hashlib.sha256)

    def take(self, data: bytes) -> None:
        self.size += len(data)
        self.digest.update(data)
        if len(self.head) < KEPT:
            self.head += data[: KEPT - len(self.head)]
        self.tail = data[-KEPT:] if len(data) >= KEPT else (self.tail + data)[-KEPT:]
        if self.body is not None:
            self.body += data

    def holds(self, *pieces: bytes) -> bool:
        """Whether the body is whole, and ``pieces`` with nothing between them are in it."""
        start, end = self.head.index(pieces[0][:16]), self.tail.index(pieces[-1][-32:]) + 32
        expected = hashlib.sha256(self.head[:start])
        for piece in pieces:
            expected.update(piece)
        expected.update(self.tail[end:])
        size = start + sum(map(len, pieces)) + len(self.tail) - end
        return self.size == self.length == size and self.digest.digest() == expected.digest()


class UploadProvider:
    """A provider on a loopback port, which has one mode a request, in order; the last again and again.

    Args:
        modes: what becomes of the requests.
        keeps: bodies are kept whole.

    Attributes:
        taken: every request of which the head has come.
        held: while it is a list, good answers wait in it for ``release``.
    """

    def __init__(self, *modes: Mode, keeps: bool = False) -> None:
        self._modes = modes or (WELL,)
        self._server: asyncio.Server | None = None
        self.keeps = keeps
        self.taken: list[Taken] = []
        self.connections: set[asyncio.Transport] = set()
        self.held: list[tuple[asyncio.Transport, bytes]] | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for transport in list(self.connections):
            transport.abort()
        await asyncio.sleep(0)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1"

    def begin(self, taken: Taken) -> Mode:
        self.taken.append(taken)
        return self._modes[min(len(self.taken), len(self._modes)) - 1]

    def release(self) -> None:
        """Send the answers that are held to the clients that still wait."""
        held, self.held = self.held or [], None
        for transport, answer in held:
            if not transport.is_closing():
                transport.write(answer)


class _Connection(asyncio.Protocol):
    def __init__(self, provider: UploadProvider) -> None:
        self._provider = provider
        self._transport: Any = None
        self._head = b""
        self._taken: Taken | None = None
        self._mode = WELL

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._provider.connections.add(transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._provider.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._taken is None:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            if head.startswith(b"GET "):  # a probe, or somebody who wants to know the models
                self._head = b""
                self._transport.write(write_http(404, {}))
                return
            self._taken, self._head = self._begin(head.decode("latin-1")), b""
            self._mode = self._provider.begin(self._taken)
        self._taken.take(data)
        most = self._taken.length if self._mode.reads is None else self._mode.reads
        if self._taken.size >= most:
            self._act(self._taken)
        elif self._mode.pace:
            self._transport.pause_reading()
            later = len(data) / self._mode.pace
            asyncio.get_running_loop().call_later(later, self._read_on)

    def _begin(self, head: str) -> Taken:
        start, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        kept = bytearray() if self._provider.keeps else None
        return Taken(start.split(" ")[1], headers, int(headers["content-length"]), body=kept)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _act(self, taken: Taken) -> None:
        then, self._taken = self._mode.then, None
        if then is None:
            good = write_http(200, ANSWERS.get(taken.path, NOT_FOUND))
            if self._provider.held is not None:
                self._provider.held.append((self._transport, good))
            else:
                self._transport.write(good)
        elif isinstance(then, bytes):
            self._transport.write(then)
            if taken.size < taken.length:
                self._transport.close()  # and what nobody read makes the system reset the connection
        elif then == "stall":
            self._transport.pause_reading()
        elif then == "fin":
            self._transport.close()
        else:
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            self._transport.abort()


def write_http(status: int, body: Any) -> bytes:
    """A whole answer, after which the connection is used again."""
    raw = orjson.dumps(body)
    head = f"HTTP/1.1 {status} Whatever\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


@asynccontextmanager
async def dial(url: str) -> AsyncIterator[socket.socket]:
    """A bare connection to the gateway: bytes leave it without being copied."""
    parts = urlsplit(url)
    with socket.socket() as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (str(parts.hostname), int(parts.port or 0)))
        yield sock


def write_head(length: int, *lines: str, path: str = EDITS) -> bytes:
    """The head of a form of that many bytes."""
    head = (f"POST {path} HTTP/1.1", "Host: gateway", f"Authorization: Bearer {KEY}", f"Content-Type: {TYPE}",
            f"Content-Length: {length}", *lines, "", "")  # fmt: skip
    return "\r\n".join(head).encode()


def write_form(number: int, data: bytes, *more: bytes, field: str = "image", model: str = "m") -> list[bytes]:
    """The pieces of the form with ``data`` for a file, which follows the 16 bytes of the caller's number."""
    name = name_file(number)
    texts = b"".join(
        (*more, part("model", model.encode()), part("prompt", b"a cat"), part("response_format", b"b64_json"))
    )
    before = part(field, b"", "Content-Type: image/png", filename="a.png")[:-2]
    return [texts + before + name, data, b"\r\n--edge--\r\n"]


async def send(sock: socket.socket, pieces: list[bytes], *, most: int | None = None) -> None:
    """Send ``pieces``, or the first ``most`` bytes of them."""
    loop, left = asyncio.get_running_loop(), sum(map(len, pieces)) if most is None else most
    for piece in pieces:
        view = memoryview(piece)[:left]
        left -= len(view)
        for offset in range(0, len(view), SENT_AT_ONCE):
            await loop.sock_sendall(sock, view[offset : offset + SENT_AT_ONCE])


async def hear(sock: socket.socket) -> RawAnswer:
    """The next answer on ``sock``, which has a Content-Length. Fails where the connection ends before."""
    raw = b""
    while True:
        data = await asyncio.get_running_loop().sock_recv(sock, 65_536)
        assert data, f"the connection ended after {raw[:200]!r}"
        raw += data
        if b"\r\n\r\n" in raw:
            answer = split(raw)
            if len(answer.body) >= int(answer.headers.get("content-length", "0")):
                return answer


async def edit(url: str, number: int, data: bytes, *, model: str = "m") -> RawAnswer:
    """One edit of a picture of ``16 + len(data)`` bytes."""
    pieces = write_form(number, data, model=model)
    async with dial(url) as sock:
        await send(sock, [write_head(sum(map(len, pieces))), *pieces])
        return await hear(sock)


def site(*ups: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A configuration for a process: the channels, a price, and a caller with money."""
    return {
        "channel": list(ups),
        "price": [PRICE, {**PRICE, "model": "other"}],
        "account": [{"name": "acme", "quota_usd": 100}],
        "key": [{"name": "test", "secret": KEY, "account": "acme"}],
        **more,
    }


def lead(up: UploadProvider, name: str = "up", **more: Any) -> dict[str, Any]:
    """A ``[[channel]]`` to that provider, whose timers are not what ends a test."""
    return {**channel(up.base_url, name, total_timeout_s=50, first_byte_timeout_s=50, idle_timeout_s=50), **more}


def list_named(data: Path) -> set[str]:
    """The names of what lies in the folder where uploads wait."""
    folder = data / "uploads"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@asynccontextmanager
async def watch_names(data: Path) -> AsyncIterator[set[str]]:
    """Every name that was seen there while the block ran."""
    seen: set[str] = set()

    async def look() -> None:
        for _ in itertools.count():
            seen.update(list_named(data))
            await asyncio.sleep(0.003)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()
        seen.update(list_named(data))
