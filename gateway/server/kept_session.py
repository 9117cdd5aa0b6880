"""The bodies of a realtime session while it runs: the events of the client, and those that it was sent.

An event costs the loop an entry in a list. The entries go to the thread of the store, some hundred kilobytes at a time,
where audio is replaced, unless media are kept, and the rest is compressed: a session of hours holds little memory.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

import structlog

from gateway.domain.kept_body import BodyKind, BodyPart
from gateway.formats.realtime.event_log import EventLog, Frame
from gateway.formats.redaction.body import EVENT_STREAM
from gateway.request_context import RequestContext
from gateway.server.kept_exchange import MAX_BODY_BYTES, KeepingServices, KeptExchange

MAX_FRAME_BYTES = 256 * 1024
"""Maximum size of the events that wait on the loop; then they go to the thread."""
_EVENT_BYTES = 128
"""Bytes that an event takes in memory besides its own."""

_Event = tuple[bool, float, bytes]
"""Whether the event was sent to the client, when it came (monotonic seconds), and its bytes."""
_Logs = tuple[EventLog, EventLog]
"""The events of the client, and those that it was sent."""

log = structlog.stdlib.get_logger(__name__)


class KeptSession(KeptExchange):
    """Collects the events of one session."""

    __slots__ = ("_events", "_has_ended", "_logs", "_waiting_bytes")

    def __init__(self, ctx: RequestContext, services: KeepingServices, *, only_failed: bool) -> None:
        super().__init__(ctx, services, only_failed=only_failed)
        keeps_media = services.live_config.config.bodies.media
        self._logs = EventLog("input", keeps_media=keeps_media), EventLog("output", keeps_media=keeps_media)
        self._events: list[_Event] = []
        self._waiting_bytes = 0
        self._has_ended = False

    def note_event(self, event: bytes, *, sent: bool) -> None:
        """Take an event. ``sent``: whether it was sent to the client; else the client has sent it."""
        if self.loss is not None:
            return
        size = len(event) + _EVENT_BYTES
        memory = self._memory
        memory.used += size
        self._size += size
        self._waiting_bytes += size
        self._events.append((sent, monotonic(), event))
        if self._waiting_bytes > MAX_FRAME_BYTES or memory.used > memory.limit:
            self._pass_on()

    def close(self) -> None:
        self._has_ended = True
        super().close()

    def _pass_on(self) -> None:
        """Let the thread add the waiting events to the logs; keep nothing if memory is full or the store is closed."""
        size, events = self._waiting_bytes, self._events
        if self._memory.used > self._memory.limit:
            self._lose("memory")
            return
        future = self._store.prepare(partial(_add_events, self._logs, events, self._started_at))
        if future is None:
            self._lose("disk")
            return
        self._waiting_bytes, self._events = 0, []
        future.add_done_callback(partial(self._note_added, size))

    def _note_added(self, size: int, future: "asyncio.Future[int]") -> None:
        """Count what the logs hold now in place of ``size`` bytes of events.

        Nothing of the session is kept if the events could not be added, or if a log has become too large.
        """
        error = None if future.cancelled() else future.exception()
        if error is not None:
            log.error("bodies_lost", request_id=self._ctx.id, exc_info=error)
        if self._has_ended or self.loss is not None:  # counted when the session ended
            return
        if error is not None or future.cancelled():
            self._lose("fault")
            return
        change = future.result() - size
        self._size += change
        self._memory.used += change
        if max(events.text_bytes for events in self._logs) > MAX_BODY_BYTES:
            self._lose("size")

    @property
    def has_answer(self) -> bool:
        return self._size > 0 or any(events.received_bytes for events in self._logs)

    def _make_answer_builder(self) -> Callable[[], Sequence[BodyPart]]:
        logs, events, started_at = self._logs, self._events, self._started_at

        def build() -> list[BodyPart]:
            _add_events(logs, events, started_at)
            input_log, output_log = logs
            return [
                part for part in (_build_part("request", input_log), _build_part("answer", output_log)) if part.content
            ]

        return build

    def _release(self) -> None:
        super()._release()
        self._events = []
        self._waiting_bytes = 0
        self._logs = EventLog("input", keeps_media=False), EventLog("output", keeps_media=False)


def _build_part(kind: BodyKind, event_log: EventLog) -> BodyPart:
    content, times_ms = event_log.build()
    return BodyPart(kind, content, EVENT_STREAM, event_log.received_bytes, event_times_ms=times_ms)


def _add_events(logs: _Logs, events: Sequence[_Event], started_at: float) -> int:
    """Add events to the logs. Return by how many bytes these have grown in memory."""
    stored_bytes = sum(event_log.stored_bytes for event_log in logs)
    for number, event_log in enumerate(logs):
        frames: list[Frame] = [(int((at - started_at) * 1000), event) for sent, at, event in events if sent == number]
        event_log.add(frames)
    return sum(event_log.stored_bytes for event_log in logs) - stored_bytes
