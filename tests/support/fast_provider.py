"""A provider that serves crowds: it answers as it is told at that moment, to each request, and counts.

Lighter than a script, so that what a test measures is the gateway. It reads HTTP/1.1 as the gateway sends it.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, Self

import attrs

from tests.support.scripted_upstream import COMPLETION, answer, chat_script


@attrs.frozen
class Reaction:
    """What becomes of one request: ``data``, or where that is None a reset, after ``wait_s``; None waits for ever."""

    data: bytes | None
    wait_s: float | None = 0.0


WHOLE = answer(COMPLETION)
STREAMED = b"".join(step for step in chat_script("good", " words") if isinstance(step, bytes))
LIST = answer({"object": "list", "data": [{"id": "m", "object": "model"}]})
DEAD = Reaction(None)
HANGING = Reaction(None, None)


@attrs.frozen
class Seen:
    """One request as it came: with which key, from 0 on the how manieth, and when (loop time)."""

    key: str
    body: bytes
    number: int
    at: float

    @property
    def stream(self) -> bool:
        return b'"stream":true' in self.body


Behaviour = Callable[[Seen], Reaction]


def well(seen: Seen) -> Reaction:
    return Reaction(STREAMED if seen.stream else WHOLE)


def dead(_seen: Seen) -> Reaction:
    return DEAD


def hanging(_seen: Seen) -> Reaction:
    return HANGING


def slow(wait_s: float) -> Behaviour:
    return lambda seen: attrs.evolve(well(seen), wait_s=wait_s)


def failing(status: int, body: dict[str, Any] | None = None, wait_s: float = 0.0, **headers: str) -> Behaviour:
    """Always the same error; underscores in header names are hyphens."""
    data = answer({"error": {"message": "no"}} if body is None else body, status, **headers)
    return lambda _seen: Reaction(data, wait_s)


def by_key(behaviours: Mapping[str, Behaviour]) -> Behaviour:
    """Well, but with these keys."""
    fixed = dict(behaviours)
    return lambda seen: fixed.get(seen.key, well)(seen)


class SwiftUpstream:
    """The server. ``behaviour`` may be changed at any time; it decides over calls, and whether a list is given at all.

    Attributes:
        seen: every call, in their order.
        lists: how often its list of models was asked for.
        running: requests that have no answer yet.
        most_running: the most there ever were at once.
    """

    def __init__(self, behaviour: Behaviour = well) -> None:
        self.behaviour = behaviour
        self.seen: list[Seen] = []
        self.lists = 0
        self.running = 0
        self.most_running = 0
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self, self._open), "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._open):
            connection.reset()
        while self._open:  # noqa: ASYNC110 - a connection that was reset says so on the next turn
            await asyncio.sleep(0)

    @property
    def base_url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    def die(self) -> None:
        """As a machine does: every call under way is lost, and every further one."""
        self.behaviour = dead
        for connection in list(self._open):
            connection.reset()

    def react(self, key: str, body: bytes) -> Reaction:
        seen = Seen(key, body, len(self.seen), asyncio.get_running_loop().time())
        if not body:
            self.lists += 1
            reaction = self.behaviour(seen)
            return attrs.evolve(reaction, data=LIST) if reaction.data == WHOLE else reaction
        self.seen.append(seen)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        return self.behaviour(seen)


class _Connection(asyncio.Protocol):
    """One request after the other; a connection that is lost takes the request on it along."""

    def __init__(self, upstream: SwiftUpstream, opened: set["_Connection"]) -> None:
        self._upstream = upstream
        self._opened = opened
        self._transport: Any = None
        self._got = b""
        self._waiting: asyncio.TimerHandle | None = None
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._opened.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._opened.discard(self)
        if self._waiting is not None:
            self._waiting.cancel()
        self._end()

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        if not end:
            return
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(headers.get(b"content-length", b"0")):
            return
        self._got = b""
        self._busy = bool(body)
        reaction = self._upstream.react(_read_key(head), body)
        if reaction.wait_s == 0:
            self._answer(reaction.data)
        elif reaction.wait_s is not None:
            self._waiting = asyncio.get_running_loop().call_later(reaction.wait_s, self._answer, reaction.data)

    def _answer(self, data: bytes | None) -> None:
        self._end()
        if data is None:
            self.reset()
        else:
            self._transport.write(data)

    def _end(self) -> None:
        self._upstream.running -= self._busy
        self._busy = False

    def reset(self) -> None:
        sock: socket.socket = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


def _read_key(head: bytes) -> str:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b": ")
        if name.lower() == b"authorization":
            return value.decode().removeprefix("Bearer ")
    return ""
