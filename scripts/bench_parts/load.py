"""The callers of the bench: raw protocols on uvloop, which cost less than any relay they ask.

An answer is not parsed: a whole one ends in a brace, a stream in its last chunk, events are counted by a string that
each has once, and only a sample of them is asked when they were sent.
"""

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from typing import cast

import attrs

from scripts.bench_parts.wire import LAST_CHUNK, TRUSTING, Address, read_delay_ns, write_call

OK = b"HTTP/1.1 200"
AT_ONCE = 32
"""Connections, or streams, that are opened side by side."""
PATIENCE_S = 60.0
TICK_S = 0.001
_ENDS = b"\r\n" + LAST_CHUNK
_WHOLE_ENDS = (b"}", b"}\n", _ENDS)


class BrokenAnswer(Exception):
    """A relay did not answer as it was asked: no figure of it counts. ``port`` is the relay's."""

    def __init__(self, message: str, port: int = 0) -> None:
        super().__init__(message)
        self.port = port


@attrs.define
class Tally:
    """What came back.

    Attributes:
        answered: calls that ended as they should.
        broken: what those said that did not; the first few.
        events: of streams.
        pieces: reads that they came in.
        firsts_ns: from each call's request to the first byte of its answer, of a stream to its first event.
    """

    answered: int = 0
    events: int = 0
    pieces: int = 0
    broken: list[bytes] = attrs.Factory(list)
    firsts_ns: list[int] = attrs.Factory(list)


class Line(asyncio.Protocol):
    """One kept connection to ``address``, and at most one call on it.

    Args:
        ended: called with the line when its call has ended.
    """

    def __init__(self, address: Address, tally: Tally, ended: Callable[["Line"], None]) -> None:
        self.address = address
        self.tally = tally
        self.busy = self.closed = False
        self.started_ns = 0
        self._ended = ended
        self._fresh = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to call."""
        transport = cast("asyncio.Transport", transport)  # uvloop is not of its class
        self.transport = transport
        self._file: int = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:
        """The relay has closed, or we have."""
        self.closed = True
        if self.busy:
            self.tally.broken.append(b"closed: %a" % exc)
            self.end()

    def call(self, request: bytes) -> None:
        """Ask; if not encrypted, into the socket itself, which costs half of what the transport does."""
        self.busy = self._fresh = True
        self.started_ns = time.monotonic_ns()
        if self.address.tls:
            self.transport.write(request)
        elif os.write(self._file, request) != len(request):
            raise BrokenAnswer("A relay did not take a whole request", self.address.port)

    def end(self) -> None:
        """The call has ended."""
        self.busy = False
        self._ended(self)


class WholeLine(Line):
    """Asks for whole answers."""

    def data_received(self, data: bytes) -> None:
        """An answer, or a part of one."""
        tally = self.tally
        if self._fresh:
            self._fresh = False
            tally.firsts_ns.append(time.monotonic_ns() - self.started_ns)
            if not data.startswith(OK):
                tally.broken.append(data)
        if data.endswith(_WHOLE_ENDS) or data == LAST_CHUNK:
            tally.answered += 1
            self.end()


class StreamLine(Line):
    """Asks for streams.

    Attributes:
        delays_ns: of a sample of its events, from the upstream's write to this read.
        every: one event of so many is looked at; a power of two.
    """

    def __init__(self, address: Address, tally: Tally, ended: Callable[[Line], None], *, every: int = 8) -> None:
        super().__init__(address, tally, ended)
        self.delays_ns: list[int] = []
        self.every = every
        self._seen = 0
        self._last = b""
        self._mark = address.format.mark

    def data_received(self, data: bytes) -> None:
        """Some events, the head before them or the end behind them."""
        tally = self.tally
        count = data.count(self._mark)
        tally.events += count
        tally.pieces += 1
        self._seen += 1
        if self._fresh:
            self._begin(data, count)
        elif not self._seen & (self.every - 1):
            delay = read_delay_ns(data, self._mark)
            if delay is not None:
                self.delays_ns.append(delay)
        if data.endswith(_ENDS) or data == LAST_CHUNK:
            self._finish(self._last + data)
        self._last = data

    def _begin(self, data: bytes, count: int) -> None:
        if count:
            self._fresh = False
            self.tally.firsts_ns.append(time.monotonic_ns() - self.started_ns)
        elif not data.startswith(OK):
            self.tally.broken.append(data)
            self._fresh = False

    def _finish(self, end: bytes) -> None:
        if self.address.format.done in end and not self._fresh:
            self.tally.answered += 1
        else:
            self.tally.broken.append(b"a stream without its end: " + end[-300:])
        self.end()


class Load:
    """Callers of one relay, or of the upstream itself.

    Args:
        kind: what they ask for.

    Attributes:
        running: calls under way.
    """

    def __init__(self, address: Address, kind: type[Line]) -> None:
        self.tally = Tally()
        self.lines: list[Line] = []
        self.address = address
        self.running = 0
        self._kind = kind
        self._idle: list[Line] = []
        self._again = b""

    async def connect(self, count: int) -> None:
        """Have at least so many idle connections; those that the relay has closed do not count."""
        for line in [line for line in self._idle if line.closed]:
            self._idle.remove(line)
            self.lines.remove(line)
        while len(self._idle) < count:
            wanted = min(AT_ONCE, count - len(self._idle))
            self._idle += await asyncio.gather(*(self._open() for _ in range(wanted)))

    async def _open(self) -> Line:
        make = partial(self._kind, self.address, self.tally, self._note_ended)
        tls = TRUSTING if self.address.tls else None
        _, line = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", self.address.port, ssl=tls)
        self.lines.append(line)
        return line

    def _note_ended(self, line: Line) -> None:
        if self._again and not line.closed:
            line.call(self._again)
            return
        self.running -= 1
        if line.closed:
            self.lines.remove(line)
        else:
            self._idle.append(line)

    def leave(self) -> None:
        """Hang up on every call that is under way."""
        for line in [line for line in self.lines if line.busy]:
            line.busy = False
            line.transport.abort()
            self.lines.remove(line)
        self.running = 0

    def check(self) -> None:
        """Raises ``BrokenAnswer`` where anything did not come as it should."""
        if self.tally.broken:
            broken = self.tally.broken
            message = f"{len(broken)} of the answers were broken; the first: {broken[0][:600]!r}"
            raise BrokenAnswer(message, self.address.port)

    def close(self) -> None:
        """Leave."""
        for line in self.lines:
            line.busy = False
            line.transport.abort()

    def _take(self) -> Line | None:
        while self._idle:
            line = self._idle.pop()
            if not line.closed:
                return line
            self.lines.remove(line)
        return None

    def begin(self, request: bytes) -> bool:
        """One call on an idle connection; False where there is none."""
        line = self._take()
        if line is not None:
            self.running += 1
            line.call(request)
        return line is not None

    async def call_again(self, callers: int, seconds: float) -> float:
        """Whole answers, so many at a time, one after the other. How long it took (s), to the end of the last."""
        self._again = write_call(self.address)
        await self.connect(callers)
        began = time.monotonic()
        for _ in range(callers):
            self.begin(self._again)
        await asyncio.sleep(seconds)
        self._again = b""
        await self.settle()
        return time.monotonic() - began

    async def call_steadily(self, rate: float, seconds: float, request: bytes) -> None:
        """So many calls a second, whatever becomes of those before."""
        await self.connect(AT_ONCE)
        began, calls = time.monotonic(), 0
        while (now := time.monotonic() - began) < seconds:
            while calls < now * rate:
                if not self.begin(request):
                    await self.connect(AT_ONCE)
                    continue
                calls += 1
            await asyncio.sleep(TICK_S)
        await self.settle()

    async def open_at_once(self, count: int, events: int) -> None:
        """Begin so many streams in one turn of the loop, on connections that stand; returns when all have ended."""
        request = write_call(self.address, events=events)
        await self.connect(count)
        for _ in range(count):
            self.begin(request)
        await self.settle()

    async def open_streams(self, count: int, events: int) -> None:
        """Begin so many streams of so many events; returns when all have sent something. Raises ``BrokenAnswer``."""
        request = write_call(self.address, events=events)
        await self.connect(count)
        began = len(self.tally.firsts_ns)
        until = time.monotonic() + PATIENCE_S + count / 100
        for number in range(count):
            while number - (len(self.tally.firsts_ns) - began) >= AT_ONCE and time.monotonic() < until:
                await asyncio.sleep(TICK_S)
            self.begin(request)
        while len(self.tally.firsts_ns) - began < count:
            if time.monotonic() > until:
                opened = len(self.tally.firsts_ns) - began
                raise BrokenAnswer(f"Only {opened} of {count} streams sent an event in time", self.address.port)
            await asyncio.sleep(TICK_S)
        self.check()

    async def settle(self, timeout_s: float = PATIENCE_S) -> None:
        """Until no call is under way. Raises ``BrokenAnswer`` where one never ends."""
        until = time.monotonic() + timeout_s
        while self.running:
            if time.monotonic() > until:
                raise BrokenAnswer(f"{self.running} calls did not end within {timeout_s:g} s", self.address.port)
            await asyncio.sleep(TICK_S)
        self.check()
