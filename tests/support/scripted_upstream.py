"""A real provider that plays a script: a raw asyncio server of bytes, sleeps, FIN, RST and stalls.

It is not an HTTP server: what it sends is what the script says, well-formed or not.
"""

import asyncio
import enum
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

import attrs
import orjson


class Act(enum.Enum):
    """What a script can do besides sending and sleeping."""

    FIN = "close the connection in order"
    RST = "reset the connection"
    STALL = "say nothing more until the other side closes"


FIN, RST, STALL = Act.FIN, Act.RST, Act.STALL


@attrs.frozen
class Flood:
    """Send ``piece`` ``times`` over, as fast as the other side takes it; ``ScriptedUpstream.flooded`` counts bytes."""

    piece: bytes
    times: int


Step = bytes | float | Act | Flood | Callable[["Received"], Awaitable[None]]
Script = Sequence[Step]


@attrs.frozen
class Received:
    """One request as the provider saw it. Header names are lower-case; ``connection`` counts from 1."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


class ScriptedUpstream:
    """Plays one script a request, in order; the last one again and again.

    A script that comes to its end leaves the connection open for the next request.

    Args:
        scripts: what to play.
        greeting: sent on every connection before anything was asked, as no HTTP server would.
        tls: serve TLS with this context.
    """

    def __init__(self, *scripts: Script, greeting: bytes = b"", tls: ssl.SSLContext | None = None) -> None:
        self._scripts = list(scripts)
        self._greeting = greeting
        self._tls = tls
        self._played = 0
        self._server: asyncio.Server | None = None
        self._connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._players: set[asyncio.Task[None]] = set()
        self.received: list[Received] = []
        self.hung_up = asyncio.Event()
        """Set when the other side has closed a connection that a STALL was waiting on."""
        self.flooded = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for player in list(self._players):
            player.cancel()
        await asyncio.gather(*self._players, return_exceptions=True)
        await asyncio.sleep(0)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def base_url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    @property
    def open_connections(self) -> int:
        return len(self._writers)

    @property
    def connections(self) -> int:
        """How many have ever been made."""
        return self._connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        self._writers.add(writer)
        player: Any = asyncio.current_task()
        self._players.add(player)
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            writer.write(self._greeting)
            while True:
                received = await _read_request(reader, number)
                self.received.append(received)
                script = self._scripts[min(self._played, len(self._scripts) - 1)]
                self._played += 1
                for step in script:
                    if not await self._play(step, received, reader, writer):
                        return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the other side left, or the test is over
        finally:
            self._writers.discard(writer)
            self._players.discard(player)
            writer.close()

    async def _play(
        self, step: Step, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        match step:
            case bytes():
                writer.write(step)
                await writer.drain()
            case int() | float():
                await asyncio.sleep(step)
            case Flood():
                for _ in range(step.times):
                    writer.write(step.piece)
                    await writer.drain()
                    self.flooded += len(step.piece)
            case Act.FIN:
                return False
            case Act.RST:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            case Act.STALL:
                try:
                    await reader.read(1)
                finally:
                    self.hung_up.set()
                return False
            case _:
                await step(received)
        return True


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Received:
    head = await reader.readuntil(b"\r\n\r\n")
    start, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = start.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, body, connection)


def answer(body: bytes | dict[str, Any] | list[Any], status: int = 200, **headers: str) -> bytes:
    """A whole HTTP answer with a Content-Length; underscores in header names are hyphens."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = {"content-type": "application/json", "content-length": str(len(raw))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + raw


SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
SSE_HEAD_UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: dict[str, Any] | str) -> bytes:
    """One event with JSON (or plain) data."""
    data = value.encode() if isinstance(value, str) else orjson.dumps(value)
    return b"data: " + data + b"\n\n"


DONE = event("[DONE]")


def delta(text: str, finish_reason: str | None = None, **extra: Any) -> dict[str, Any]:
    """One chat chunk with a piece of content."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}],
        **extra,
    }


def usage_frame(prompt: int = 5, completion: int = 7) -> dict[str, Any]:
    """The extra frame that ``include_usage`` asks for."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [],
        "usage": usage,
    }


def chat_events(*words: str, usage: bool = True) -> list[bytes]:
    """A whole good chat stream, one event an item, the end mark last."""
    events = [event(delta(word)) for word in words] + [event(delta("", "stop"))]
    return [*events, *([event(usage_frame())] if usage else []), DONE]


def chat_script(*words: str, usage: bool = True) -> list[Step]:
    """The script of a whole good chat stream, every event a chunk of its own."""
    return [SSE_HEAD, *(chunk(item) for item in chat_events(*words, usage=usage)), LAST_CHUNK]


COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
}
