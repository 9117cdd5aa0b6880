"""Streams that clients can take up again after their connection was lost: by id, until ``keep_s`` after the end."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from gateway.domain.operation import Operation
from gateway.domain.request_log import ID_PREFIX, RequestRecord
from gateway.frozen import frozen
from gateway.proxy.stream_recorder import EventMemory, StreamRecorder
from gateway.request_context import RequestContext

STREAM_PREFIX = "st_"
"""The prefix of a stream's id. The hexadecimal digits of its request's id follow, and in a cluster ``.`` and a node."""
MAX_STREAMS = 20_000
"""Maximum number of kept streams. Beyond it the oldest that has ended is forgotten."""
_LAST_READ_S = 5.0


class StreamRequest(Protocol):
    """The request that makes a stream, implemented by its handler."""

    @property
    def context(self) -> RequestContext: ...

    def cancel(self) -> bool: ...

    def give_up(self) -> None:
        """End the request: no client reads its stream any more."""
        ...


@frozen
class StreamBounds:
    """``keep_s``: how long a stream goes on without a reader, and is kept after its end. ``max_bytes``: of one."""

    keep_s: int
    max_bytes: int


class ResumableStream:
    """One stream: its events, who may read it, and what becomes of its request.

    Attributes:
        request: makes the stream; None after its end.
        record: the request's record; None before its end.
        reader_count: clients that read the stream now, the first one included.
    """

    def __init__(
        self, stream_id: str, request: StreamRequest, recorder: StreamRecorder, unread_s: float | None
    ) -> None:
        ctx = request.context
        self.id = stream_id
        self.request_id = ctx.id
        self.account_id = ctx.caller.account.id
        self.key_id = ctx.caller.key.id
        self.operation: Operation = ctx.operation
        self.model = ctx.inference.model
        self.started_ms = ctx.started_ms
        self.recorder = recorder
        self.request: StreamRequest | None = request
        self.record: RequestRecord | None = None
        self.reader_count = 0
        self._unread_s = unread_s
        self._response_id = ""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def response_id(self) -> str:
        """The provider's id of the response that is streamed; empty if it has none."""
        attempts = [] if self.request is None else self.request.context.attempts
        return attempts[-1].response_id if attempts else self._response_id

    @property
    def end_user(self) -> str:
        """For whom the request was made, as its row names it; empty if it names no end user."""
        if self.request is not None:
            return self.request.context.attribution.end_user
        return "" if self.record is None else self.record.end_user

    def note_end(self, record: RequestRecord | None) -> None:
        """Take the record of the request, which has ended."""
        self._response_id = self.response_id
        self.record, self.request = record, None

    @property
    def is_background(self) -> bool:
        """Whether the request goes on however long no client reads the stream."""
        return self._unread_s is None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Count a reader while the block runs."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        self.reader_count += 1
        if self.request is not None:  # else the timer is that of ``forget_later``
            self.stop_timer()

    def leave(self) -> None:
        """Uncount a reader. After the last one, the request ends in ``unread_s`` unless another one comes."""
        self.reader_count -= 1
        if not self.reader_count and self.request is not None and self._unread_s is not None:
            self.stop_timer()
            self._timer = asyncio.get_running_loop().call_later(self._unread_s, self.request.give_up)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def discard_soon(self) -> None:
        """Delete the events as soon as the present readers had time for the last ones."""
        self.stop_timer()
        if self.reader_count:
            self._timer = asyncio.get_running_loop().call_later(_LAST_READ_S, self.recorder.discard)
        else:
            self.recorder.discard()

    def forget_later(self, after_s: float, forget: Callable[["ResumableStream"], None]) -> None:
        self.stop_timer()
        self._timer = asyncio.get_running_loop().call_later(after_s, forget, self)


class ResumableStreams:
    """All resumable streams of this process. ``node``: id of this node in a cluster; empty for a single process."""

    def __init__(self, memory: EventMemory, find_bounds: Callable[[], StreamBounds], node: str = "") -> None:
        self.memory = memory
        self.node = node
        self._find_bounds = find_bounds
        self.streams: dict[str, ResumableStream] = {}

    def make_id(self, request_id: str) -> str:
        """Return the id of the stream of a request, which names this node."""
        return f"{STREAM_PREFIX}{request_id.removeprefix(ID_PREFIX)}{self.node and f'.{self.node}'}"

    def open(self, request: StreamRequest, *, may_stay_unread: bool = False) -> ResumableStream | None:
        """Begin to keep the stream of ``request``; return None if there is no room.

        With ``may_stay_unread``, only the provider's timeouts end a stream that no client reads.
        """
        memory, bounds = self.memory, self._find_bounds()
        while len(self.streams) >= MAX_STREAMS or memory.used_bytes > 1.5 * memory.max_bytes or memory.is_exhausted:
            if not self._forget_oldest():
                break
        if len(self.streams) >= MAX_STREAMS or memory.is_exhausted:
            return None
        stream_id = self.make_id(request.context.id)
        recorder = StreamRecorder(memory, bounds.max_bytes, self._forget_oldest)
        stream = ResumableStream(stream_id, request, recorder, None if may_stay_unread else bounds.keep_s)
        self.streams[stream_id] = stream
        return stream

    def find(self, stream_id: str, key_id: int) -> ResumableStream | None:
        """Return a stream of the key; None for another key's stream."""
        stream = self.streams.get(stream_id)
        return None if stream is None or stream.key_id != key_id else stream

    def find_response(self, response_id: str, account_id: int) -> ResumableStream | None:
        """Return the stream of a background response, by the gateway's or the provider's id of it.

        None for another account's. Every key of an account may get its stored responses.
        """
        stream = self.streams.get(self.make_id(response_id.removeprefix("resp_")))
        if stream is None:
            stream = next((kept for kept in self.streams.values() if kept.response_id == response_id), None)
        if stream is None or not stream.is_background or stream.account_id != account_id:
            return None
        return stream

    def end(self, stream: ResumableStream, record: RequestRecord | None) -> None:
        """Record the end of a stream's request, and keep the events for ``keep_s``."""
        stream.recorder.end(complete=False)  # no-op after a regular end
        stream.note_end(record)
        if stream.id in self.streams:
            stream.forget_later(self._find_bounds().keep_s, self.forget)
        else:
            stream.discard_soon()

    def forget(self, stream: ResumableStream) -> None:
        """Delete a stream. The events of one that goes on are deleted at its end."""
        self.streams.pop(stream.id, None)
        if stream.request is None:
            stream.discard_soon()

    def forget_of(self, covers: Callable[[int, str], bool]) -> None:
        """Delete the streams whose account's id and end user ``covers`` accepts."""
        for stream in list(self.streams.values()):
            if covers(stream.account_id, stream.end_user):
                self.forget(stream)

    def close(self) -> None:
        """Delete all streams, at the end of the process."""
        for stream in self.streams.values():
            stream.stop_timer()
            stream.recorder.discard()
        self.streams.clear()

    def _forget_oldest(self) -> bool:
        """Delete the oldest stream that has ended and that no client reads; return False if there is none."""
        for stream in self.streams.values():
            if stream.request is None and not stream.reader_count:
                self.forget(stream)
                return True
        return False
