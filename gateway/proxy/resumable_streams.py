"""Streams that clients can take up again after their connection was lost: by id, until ``keep_s`` after the end."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from gateway.domain.operation import Operation
from gateway.domain.request_log import ID_PREFIX, RequestRecord
from gateway.frozen import frozen
from gateway.proxy.stream_recorder import EventMemory, MemoryShare, StreamRecorder
from gateway.request_context import RequestContext

STREAM_PREFIX = "st_"
"""Prefix of a stream's id. The hexadecimal digits of its request's id follow, and in a cluster ``.`` and a node's
id."""
MAX_STREAMS = 20_000
"""Maximum number of kept streams. For one more, an ended stream of the key that has most is forgotten."""
STREAMS_FORGOTTEN = "streams_forgotten"
"""The cluster notification to delete the streams of an account or of users."""
_LAST_READ_S = 5.0


def _count_streams(share: MemoryShare) -> int:
    return share.stream_count


def _count_bytes(share: MemoryShare) -> int:
    return share.total_bytes


class StreamRequest(Protocol):
    """The request that makes a stream. ``server/recorded_stream.py`` implements it."""

    @property
    def context(self) -> RequestContext: ...

    def cancel(self) -> bool: ...

    def give_up(self) -> None:
        """End the request: no client reads its stream any more."""
        ...


@frozen
class StreamBounds:
    """How long streams are kept, and how much of them.

    ``keep_s``: how long a stream goes on without a reader, and is kept after its end. ``max_bytes``: the most bytes of
    one stream.
    """

    keep_s: int
    max_bytes: int


@frozen
class StreamOrigin:
    """The request of a stream. ``response_id``: the provider's id of the response, empty if it has none so far."""

    request_id: str
    account_id: int
    key_id: int
    operation: Operation
    model: str
    started_ms: int
    response_id: str = ""


class ResumableStream:
    """One stream: its events, who may read it, and what becomes of its request.

    Attributes:
        request: makes the stream; None after its end.
        record: the request's record; None before its end.
        reader_count: clients that read the stream now, the first one included.
    """

    def __init__(
        self,
        stream_id: str,
        origin: StreamOrigin,
        recorder: StreamRecorder,
        unread_s: float | None,
        request: StreamRequest | None = None,
    ) -> None:
        self.id = stream_id
        self.origin = origin
        self.request_id = origin.request_id
        self.account_id = origin.account_id
        self.key_id = origin.key_id
        self.operation = origin.operation
        self.model = origin.model
        self.started_ms = origin.started_ms
        self.recorder = recorder
        self.request = request
        self.record: RequestRecord | None = None
        self.reader_count = 0
        self._unread_s = unread_s
        self._response_id = origin.response_id
        self._timer: asyncio.TimerHandle | None = None

    @property
    def response_id(self) -> str:
        """The provider's id of the response that is streamed; empty if it has none."""
        attempts = [] if self.request is None else self.request.context.attempts
        return attempts[-1].response_id if attempts else self._response_id

    @property
    def end_user(self) -> str:
        """The end user for whom the request was made, as the request log names them; empty without one."""
        if self.request is not None:
            return self.request.context.attribution.end_user
        return "" if self.record is None else self.record.end_user

    @property
    def settled_record(self) -> RequestRecord | None:
        """The request's record once it is settled, maybe before a slow client has the last events; None before that."""
        return self.record if self.request is None else self.request.context.record

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
        """Count one reader less. After the last one, the request ends in ``unread_s`` unless another reader comes."""
        self.reader_count -= 1
        if not self.reader_count and self.request is not None and self._unread_s is not None:
            self.stop_timer()
            self._timer = asyncio.get_running_loop().call_later(self._unread_s, self.request.give_up)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def discard_soon(self) -> None:
        """Delete the events: now, or after ``_LAST_READ_S`` seconds if clients still read the last ones."""
        self.stop_timer()
        if self.reader_count:
            self._timer = asyncio.get_running_loop().call_later(_LAST_READ_S, self.recorder.discard)
        else:
            self.recorder.discard()

    def forget_later(self, after_s: float, forget: Callable[["ResumableStream"], None]) -> None:
        self.stop_timer()
        self._timer = asyncio.get_running_loop().call_later(after_s, forget, self)


class ResumableStreams:
    """All resumable streams of this process. ``node``: id of this node in a cluster; empty for a single process.

    Accounts have equal shares of the room, and the keys of an account have equal shares of the account's. A key that
    uses less than its share always has room. The ended streams of the key that uses most are deleted first.
    """

    def __init__(self, memory: EventMemory, find_bounds: Callable[[], StreamBounds], node: str = "") -> None:
        self.memory = memory
        self.node = node
        self._find_bounds = find_bounds
        self.streams: dict[str, ResumableStream] = {}
        self._ended: dict[int, dict[str, ResumableStream]] = {}
        self._running_responses: dict[str, ResumableStream] = {}
        self._ended_responses: dict[tuple[int, str], ResumableStream] = {}
        self._shares: dict[int, MemoryShare] = {}
        self._account_shares: dict[int, MemoryShare] = {}

    def make_id(self, request_id: str) -> str:
        """Return the id of the stream of a request, which names this node."""
        return f"{STREAM_PREFIX}{request_id.removeprefix(ID_PREFIX)}{self.node and f'.{self.node}'}"

    @property
    def running_count(self) -> int:
        """How many of the streams have not ended."""
        return sum(stream.request is not None for stream in self.streams.values())

    def open(self, request: StreamRequest, *, may_stay_unread: bool = False) -> ResumableStream | None:
        """Begin to keep the stream of ``request``; return None if there is no room.

        With ``may_stay_unread``, only the provider's timeouts end a stream that no client reads.
        """
        ctx, memory, bounds = request.context, self.memory, self._find_bounds()
        key = ctx.caller.key
        share = self._find_share(ctx.caller.account.id, key.id)
        while len(self.streams) >= MAX_STREAMS and self._make_room(share, _count_streams):
            pass
        while memory.used_bytes > 1.5 * memory.max_bytes or memory.is_exhausted:
            if not self._make_room(share):
                break
        is_crowded = len(self.streams) >= MAX_STREAMS and share.is_over(MAX_STREAMS - 1, _count_streams)
        if is_crowded or memory.refuses(share):
            return None
        origin = StreamOrigin(ctx.id, ctx.caller.account.id, key.id, ctx.operation, ctx.inference.model, ctx.started_ms)
        recorder = StreamRecorder(memory, bounds.max_bytes, self._make_room, share)
        unread_s = None if may_stay_unread else bounds.keep_s
        stream = ResumableStream(self.make_id(ctx.id), origin, recorder, unread_s, request)
        self._add(stream, share)
        if may_stay_unread:
            self._running_responses[stream.id] = stream
        return stream

    def restore(
        self, stream_id: str, origin: StreamOrigin, record: RequestRecord, keep_s: float, *, is_background: bool
    ) -> ResumableStream:
        """Keep a stream that ended in an earlier process for ``keep_s`` more seconds; it has no events yet."""
        share = self._find_share(origin.account_id, origin.key_id)
        recorder = StreamRecorder(self.memory, self._find_bounds().max_bytes, self._make_room, share)
        stream = ResumableStream(stream_id, origin, recorder, None if is_background else 0)
        stream.record = record
        self._add(stream, share)
        self._note_ended(stream)
        stream.forget_later(keep_s, self.forget)
        return stream

    def find(self, stream_id: str, key_id: int) -> ResumableStream | None:
        """Return the stream with this id; None if there is none, or if it is another key's."""
        stream = self.streams.get(stream_id)
        return None if stream is None or stream.key_id != key_id else stream

    def find_response(self, response_id: str, account_id: int) -> ResumableStream | None:
        """Return the stream of a background response, by the gateway's or the provider's id of it.

        None if there is none, or if it is another account's. Every key of an account may get the account's stored
        responses.
        """
        stream = self.streams.get(self.make_id(response_id.removeprefix("resp_")))
        if stream is not None and stream.is_background and stream.account_id == account_id:
            return stream
        wanted_response = (account_id, response_id)
        running = self._running_responses.values()  # the provider's id of a response comes while it runs
        return self._ended_responses.get(wanted_response) or next(
            (stream for stream in running if (stream.account_id, stream.response_id) == wanted_response), None
        )

    def end(self, stream: ResumableStream, record: RequestRecord | None) -> None:
        """Record the end of a stream's request. Keep the events for ``keep_s``, unless the stream is deleted."""
        stream.recorder.end(complete=False)  # no-op after a regular end
        stream.note_end(record)
        self._running_responses.pop(stream.id, None)
        if stream.id in self.streams:
            self._note_ended(stream)
            stream.forget_later(self._find_bounds().keep_s, self.forget)
        else:
            stream.discard_soon()

    def forget(self, stream: ResumableStream) -> None:
        """Delete a stream. If it has not ended, its events are deleted at its end."""
        if self.streams.pop(stream.id, None) is not None:
            self._find_share(stream.account_id, stream.key_id).add_stream(-1)
            self._running_responses.pop(stream.id, None)
            response = (stream.account_id, stream.response_id)
            if self._ended_responses.get(response) is stream:
                del self._ended_responses[response]
            ended = self._ended.get(stream.key_id, {})
            ended.pop(stream.id, None)
            if not ended:
                self._ended.pop(stream.key_id, None)
        if stream.request is None:
            stream.discard_soon()

    def forget_streams(self, account_id: int | None, end_users: Collection[str] | None) -> None:
        """Delete the streams of an account (None: of all) that were made for ``end_users`` (None: for anyone)."""
        for stream in list(self.streams.values()):
            if account_id in {None, stream.account_id} and (end_users is None or stream.end_user in end_users):
                self.forget(stream)

    def close(self) -> None:
        """Delete all streams, at the end of the process."""
        for stream in self.streams.values():
            stream.stop_timer()
            stream.recorder.discard()
        for streams in (self.streams, self._ended, self._running_responses, self._ended_responses):
            streams.clear()

    def _add(self, stream: ResumableStream, share: MemoryShare) -> None:
        self.streams[stream.id] = stream
        share.add_stream(1)

    def _note_ended(self, stream: ResumableStream) -> None:
        self._ended.setdefault(stream.key_id, {})[stream.id] = stream
        if stream.is_background and stream.response_id:
            self._ended_responses[stream.account_id, stream.response_id] = stream

    def _find_share(self, account_id: int, key_id: int) -> MemoryShare:
        """Return the share of a key. A share remains for ever: it is smaller than the key in memory."""
        share = self._shares.get(key_id)
        if share is None:
            account_share = self._account_shares.get(account_id)
            if account_share is None:
                account_share = self._account_shares[account_id] = MemoryShare(self.memory.root)
            share = self._shares[key_id] = MemoryShare(account_share)
        return share

    def _make_room(self, asking_share: MemoryShare, measure: Callable[[MemoryShare], int] = _count_bytes) -> bool:
        """Delete the oldest stream that has ended and that no client reads, of the key that uses most.

        Keys and accounts that use less than the asking one make no room. Return False if nothing was deleted.
        """

        def rank(share: MemoryShare) -> tuple[int, int]:
            return (0 if share.parent is None else measure(share.parent), measure(share))

        for key_id in sorted(self._ended, key=lambda key_id: rank(self._shares[key_id]), reverse=True):
            share = self._shares[key_id]
            is_own_account = share.parent is asking_share.parent
            if rank(share)[is_own_account] < rank(asking_share)[is_own_account]:
                continue
            for stream in self._ended[key_id].values():
                if not stream.reader_count:
                    self.forget(stream)
                    return True
        return False
