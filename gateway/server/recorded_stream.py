"""A client's stream that is also kept, and goes on after the client has left: ``x-gateway-resumable``."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from aiohttp import web

from gateway.domain.operation import Operation
from gateway.errors import ClientDisconnected, GatewayError, InvalidRequest, Overloaded
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.resumable_streams import ResumableStream, ResumableStreams
from gateway.proxy.stream_recorder import EventsLost, StreamReader
from gateway.request_context import RESUMABLE_HEADER, RequestContext
from gateway.server.context import Services

STREAM_HEADER = "x-gateway-stream"
_OPERATIONS: frozenset[Operation] = frozenset({"chat", "messages", "responses", "generate_content", "completions"})
_VALUES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_UNUSED_WARNING = f"{RESUMABLE_HEADER}: not used here; only the stream of a text can be taken up again"
_NO_ROOM_WARNING = f"{RESUMABLE_HEADER}: the gateway keeps too many streams; this one cannot be taken up again"


class RecordableRequest(Protocol):
    """The request that makes a stream, implemented by ``ActiveInference``."""

    request: web.Request
    context: RequestContext
    services: Services
    recorded: "RecordedStream | None"
    task: "asyncio.Task[object] | None"

    def cancel(self) -> bool: ...


class RecordedStream:
    """Implements ``proxy.client_stream.ClientStream``: sends to a client, and records the events for other readers.

    The provider is read no slower for this client: what a slow client misses is sent to it later, from the recorder.
    If the recorder is full, the provider waits for the client, as for any other stream.

    Attributes:
        was_given_up: whether the request was ended because no client reads its stream.
    """

    def __init__(self, active: RecordableRequest, client: ClientStream, streams: ResumableStreams) -> None:
        self._active = active
        self._client = client
        self._streams = streams
        self._stream: ResumableStream | None = None
        self._catch_up: asyncio.Task[None] | None = None
        self._unrecorded: list[bytes] = []
        self._is_open = self._has_left = self._may_stay_unread = False
        self.was_given_up = False

    def begin(self, *, may_stay_unread: bool = False) -> ResumableStream | None:
        """Begin to keep the stream as ``ResumableStreams.open`` does; return None if there is no room."""
        self._may_stay_unread = may_stay_unread
        self._stream = stream = self._streams.open(self, may_stay_unread=may_stay_unread)
        if stream is None:
            self._active.context.warn(_NO_ROOM_WARNING)
        else:
            stream.enter()
        return stream

    @property
    def context(self) -> RequestContext:
        return self._active.context

    def cancel(self) -> bool:
        return self._active.cancel()

    def give_up(self) -> None:
        """End the request: its client has left, and no other one reads its stream."""
        active = self._active
        if active.context.record is None:
            self.was_given_up = True
            if not active.services.proxy.give_up(active.context) and active.task is not None:
                active.task.cancel()

    def detach(self) -> bool:
        """Go on without the disconnected client. Return False if no client could take up the stream again."""
        stream = self._stream
        if stream is None or not (self._is_open or self._may_stay_unread) or stream.recorder.is_full:
            return False
        if not self._has_left:
            self._has_left = True
            if self._catch_up is not None:
                self._catch_up.cancel()
            stream.leave()
        return True

    def close(self) -> None:
        """Record that the request has ended and is settled. Forget a stream whose id the client never got."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        self._streams.end(stream, self._active.context.record)
        if not self._has_left:
            stream.leave()
        if not self._is_open:  # the client has never learnt its id
            self._streams.forget(stream)

    @property
    def full(self) -> bool:
        if self._has_left or (self._stream is not None and not self._stream.recorder.is_full):
            return False
        return self._catch_up is not None or self._client.full

    def open(self, media_type: str, data: bytes) -> None:
        if self._is_open:
            self.write(data)
            return
        comment, stream, ctx = b"", self._stream, self._active.context
        if stream is not None:
            ctx.headers = {**(ctx.headers or {}), STREAM_HEADER: stream.id}
            comment = f": {STREAM_HEADER} {stream.id}\n\n".encode()
            stream.recorder.append(data)
        if not self._has_left:
            self._client.open(media_type, comment + data)
        self._is_open = True

    def write(self, data: bytes, framed: bytes | None = None) -> bool:
        stream = self._stream
        if stream is None:
            return self._client.write(data, framed)
        recorder = stream.recorder
        recorder.append(data)
        if self._has_left:
            if recorder.ended and not self.was_given_up:  # no reader can get what follows
                self.give_up()
        elif self._catch_up is not None:
            if recorder.ended:  # it has become full since the last event, and has not taken this one
                self._unrecorded.append(data)
        elif self._client.write(data, framed) and not recorder.is_full:
            reader = recorder.open_reader(recorder.count)
            self._catch_up = asyncio.get_running_loop().create_task(self._send_missing(reader))
        return self.full

    async def _send_missing(self, reader: StreamReader) -> None:
        """Send a slow client what it has missed, and abort its connection if that is impossible."""
        try:
            await self._client.drain()
            while reader.has_next:
                self._client.write(b"".join(await reader.read()))
                while self._client.full:
                    await self._client.drain()
            if self._unrecorded:
                self._client.write(b"".join(self._unrecorded))
                self._unrecorded.clear()
        except (ClientDisconnected, EventsLost):
            self._client.abort()
        else:
            self._catch_up = None  # no await since the last look: the next event is sent directly

    async def drain(self) -> None:
        if (catch_up := self._catch_up) is not None:
            await asyncio.wait([catch_up])
            if catch_up is self._catch_up:  # it has failed
                raise ClientDisconnected
        elif not self._has_left:
            await self._client.drain()

    def add_doc_url(self, error: GatewayError) -> None:
        self._client.add_doc_url(error)

    def wake(self) -> None:
        self._client.wake()

    def discard_writes(self, max_bytes: int, give_up: Callable[[], None]) -> None:
        self._client.discard_writes(max_bytes, give_up)

    async def finish(self, data: bytes) -> None:
        stream = self._stream
        if stream is not None:
            is_recorded = not stream.recorder.is_full
            stream.recorder.append(data)
            stream.recorder.end(complete=True)
            if (catch_up := self._catch_up) is not None and not self._has_left:
                await asyncio.wait([catch_up])
                data = b"" if is_recorded else data
        if self._has_left:
            return
        try:
            await self._client.finish(data)
        except ClientDisconnected:
            if not self._has_left:
                raise

    def abort(self) -> None:
        self._client.abort()


def wants_resumable(active: RecordableRequest) -> bool:
    """Return whether the header, or else the key, asks for a stream that can be taken up again.

    Raises ``InvalidRequest`` if the header is malformed.
    """
    texts = {text.strip().lower() for text in active.request.headers.getall(RESUMABLE_HEADER, ())}
    if len(texts) > 1 or not texts <= _VALUES.keys():
        raise InvalidRequest(f"'{RESUMABLE_HEADER}' must be true or false", param=RESUMABLE_HEADER)
    return _VALUES[texts.pop()] if texts else active.context.caller.key.resumable


def open_recorded(active: RecordableRequest, client: ClientStream, *, in_background: bool = False) -> ClientStream:
    """Return a stream that can be taken up again, if the client wants one; else ``client``.

    Without room for its events, the stream returned only forwards them to ``client``.

    A stream ``in_background`` can be taken up again in any case, and goes on however long no client reads it. Raises
    ``InvalidRequest`` if the header is malformed, and ``Overloaded`` if there is no room for a background stream.
    """
    ctx, is_wanted = active.context, wants_resumable(active)
    if not (is_wanted or in_background):
        return client
    if ctx.operation not in _OPERATIONS:
        if RESUMABLE_HEADER in active.request.headers:
            ctx.warn(_UNUSED_WARNING)
        return client
    active.recorded = recorded = RecordedStream(active, client, active.services.open_streams())
    if recorded.begin(may_stay_unread=in_background) is None and in_background:
        raise Overloaded("The gateway keeps too many streams for another one in the background", retry_after_s=5)
    return recorded
