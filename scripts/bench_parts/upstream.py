"""The provider of the bench, in a process of its own: ``python -m scripts.bench_parts.upstream`` prints its port.

As cheap as Python makes it: raw protocols on uvloop, bytes made beforehand, no parsing but of a request's length. One
clock paces all streams: they stand in a ring, and at every tick as many get an event as are due, so that events are
spread evenly however many streams there are. ``POST /pace`` says how often a stream gets one (seconds, as text),
``POST /end`` that none gets another but its end, and ``GET /state`` tells what was sent.
"""

import asyncio
import gc
import os
import re
import time
from typing import cast

import uvloop

from scripts.bench_parts.wire import ANSWER, MODELS, STREAM_END, STREAM_HEAD, STREAMED, write_event

TICK_S = 0.001
BACKLOG = 4096
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_EVENTS = re.compile(rb'"max_(?:completion_)?tokens": *(\d+)')


class Ring:
    """The streams under way, and whose turn it is.

    Attributes:
        period_s: how often each gets an event.
        sent: events so far, those at once with a stream's head counted.
        missed: events that were due while this process was too busy to send them; they are sent later.
    """

    def __init__(self) -> None:
        self.streams: list[Provider] = []
        self.period_s = 0.01
        self.sent = 0
        self.missed = 0
        self._at = 0
        self._credit = 0.0
        self._looked = 0.0

    def start(self) -> None:
        """Tick from now on."""
        self._looked = time.monotonic()
        asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def enter(self, stream: "Provider") -> None:
        """One more."""
        stream.place = len(self.streams)
        self.streams.append(stream)

    def leave(self, stream: "Provider") -> None:
        """One less: the last takes its place."""
        last = self.streams.pop()
        if last is not stream:
            self.streams[stream.place] = last
            last.place = stream.place
        stream.place = -1

    def end(self) -> None:
        """The next turn of each stream is its last."""
        for stream in self.streams:
            stream.left = 0

    def _tick(self) -> None:
        asyncio.get_running_loop().call_later(TICK_S, self._tick)
        now = time.monotonic()
        streams = self.streams
        self._credit += (now - self._looked) * len(streams) / self.period_s
        self._looked = now
        due = int(self._credit)
        self._credit -= due
        if due > len(streams):
            self.missed += due - len(streams)
            due = len(streams)
        at = self._at
        for _ in range(due):
            if at >= len(streams):
                if not streams:
                    break
                at = 0
            streams[at].send_event()
            at += 1
        self._at = at


class Provider(asyncio.Protocol):
    """One connection.

    Attributes:
        left: events that its stream is still to get.
        place: in the ring; -1 without a stream.
    """

    __slots__ = ("_clogged", "_file", "_paused", "_ring", "_transport", "_waiting", "left", "place")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._waiting = b""
        self.left = 0
        self._clogged = self._paused = False
        self.place = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A relay has come."""
        transport = cast("asyncio.Transport", transport)  # uvloop is not of its class
        self._transport = transport
        self._file: int = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """And gone."""
        if self.place >= 0:
            self._ring.leave(self)

    def pause_writing(self) -> None:
        """The relay reads no more: its stream's turns pass."""
        self._paused = True

    def resume_writing(self) -> None:
        """It reads again."""
        self._paused = False

    def data_received(self, data: bytes) -> None:
        """A request, or a part of one."""
        data = self._waiting + data if self._waiting else data
        end = data.find(b"\r\n\r\n")
        length = _LENGTH.search(data, 0, end) if end >= 0 else None
        if end < 0 or len(data) < end + 4 + (int(length[1]) if length else 0):
            self._waiting = data
            return
        self._waiting = b""
        self._answer(data)

    def _answer(self, data: bytes) -> None:
        if data.startswith(b"POST /v1/"):
            if STREAMED in data or b'"stream": true' in data:
                self._begin(data)
            else:
                self._put(ANSWER)
        elif data.startswith(b"POST /pace"):
            self._ring.period_s = float(data.rpartition(b"\r\n")[2])
            self._put(b"HTTP/1.1 204 No Content\r\n\r\n")
        elif data.startswith(b"POST /end"):
            self._ring.end()
            self._put(b"HTTP/1.1 204 No Content\r\n\r\n")
        elif data.startswith(b"GET /state"):
            body = b"%d %d %d" % (self._ring.sent, self._ring.missed, len(self._ring.streams))
            self._put(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        else:
            self._put(MODELS)

    def _begin(self, data: bytes) -> None:
        events = _EVENTS.search(data)
        self.left = int(events[1]) - 1 if events else 15
        self._ring.sent += 1
        self._put(STREAM_HEAD + write_event())
        self._ring.enter(self)

    def send_event(self) -> None:
        """It is this stream's turn: an event, or its end where it has had all."""
        if self._paused:
            return
        if self.left:
            self.left -= 1
            self._ring.sent += 1
            self._put(write_event())
        else:
            self._ring.leave(self)
            self._put(STREAM_END)

    def _put(self, piece: bytes) -> None:
        """Into the socket itself, which costs half of what the transport does; through that where it takes no more."""
        if self._clogged:
            self._clogged = self._transport.get_write_buffer_size() > 0
        if self._clogged:
            self._transport.write(piece)
            return
        try:
            written = os.write(self._file, piece)
        except BlockingIOError:
            written = 0
        except OSError:
            self._transport.abort()
            return
        if written < len(piece):
            self._clogged = True
            self._transport.write(piece[written:])


async def serve() -> None:
    """Until it is killed."""
    ring = Ring()
    ring.start()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Provider(ring), "127.0.0.1", 0, backlog=BACKLOG)
    gc.disable()  # what there is stays, and a pause of its own would be counted as a relay's delay
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
