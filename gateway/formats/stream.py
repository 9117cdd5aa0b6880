"""The gate of a stream: a provider's bytes in, what may leave to the caller out, and the usage once it has ended.

Same language on both sides has a gate of its own, through which bytes pass as they lie. Between two languages it is
``TranslatingStream``: a reader of the one and a writer of the other, with hub events between them.
"""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

import attrs
import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_sample
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats import sse
from gateway.formats.chat import (
    Event,
    MessageStart,
    ReasoningDelta,
    RefusalDelta,
    StreamEnd,
    StreamError,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from gateway.formats.openai.errors import Secrets
from gateway.formats.prompt_tokens import estimate_prompt

_SAMPLED_EVENTS = 128
"""Of a stream that says more, the last that say something stand for all of them."""

LARGE_EVENT_BYTES = 1024 * 1024
"""Of one event. It takes milliseconds to read what is longer."""
_END_MARK = b"[DONE]"


class StreamTransform(Protocol):
    """What of one provider's stream may leave.

    Attributes:
        events: complete events with data so far, the end mark not counted.
        ended: the end mark has passed; whatever follows it is dropped.
        fault: the provider reported an error, or an event without an end; whatever follows it is dropped.
        noise: bytes so far of events without data (comments, blank lines).
    """

    ended: bool
    fault: ProviderError | None

    @property
    def noise(self) -> int:
        """How many so far."""
        ...

    @property
    def events(self) -> int:
        """How many so far."""
        ...

    @property
    def closed(self) -> bool:
        """Whether nothing more can leave."""
        ...

    def feed(self, data: bytes) -> bytes:
        """A piece in, what may leave out: whole events only. Never raises; see ``fault``."""
        ...

    def finish(self) -> bytes:
        """The transport has ended; what is still to be written. Raises ``ProviderBadResponse`` where the stream was
        cut.
        """
        ...

    def parse_usage(self) -> Usage:
        """What was used by what passed: the provider's word, else an estimate that says so."""
        ...


class StreamState:
    """How a gate ends: what a ``StreamTransform`` says of that. ``closed`` is kept, as it is asked with every piece.

    Attributes:
        closed: nothing more can leave.
    """

    __slots__ = ("_ended", "_fault", "closed")

    def __init__(self) -> None:
        self._ended = False
        self._fault: ProviderError | None = None
        self.closed = False

    @property
    def ended(self) -> bool:
        """See ``StreamTransform``."""
        return self._ended

    @ended.setter
    def ended(self, ended: bool) -> None:
        self._ended = ended
        self.closed = ended or self._fault is not None

    @property
    def noise(self) -> int:
        """See ``StreamTransform``."""
        return 0

    @property
    def fault(self) -> ProviderError | None:
        """See ``StreamTransform``."""
        return self._fault

    @fault.setter
    def fault(self, fault: ProviderError | None) -> None:
        self._fault = fault
        self.closed = self._ended or fault is not None


class PassthroughStream(StreamState):
    """What every gate between two sides of one language does: whole events leave as they lie, as long as they may.

    A language says in ``_judge`` what its events mean, and in a ``feed`` of its own which pieces need no look at all.
    An event that has not ended is held, so that a stream which breaks in the middle of one can still end in a clean
    error event.

    Attributes:
        events: complete events with data so far that say something of an answer.
        ended: see ``StreamTransform``.
        fault: see ``StreamTransform``.
    """

    __slots__ = ("_begun", "_secrets", "_splitter", "events")

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets
        self._splitter = sse.SseSplitter()
        self._begun = False
        self.events = 0

    def _feed_slowly(self, data: bytes) -> bytes:
        """A piece in, event by event."""
        if self.closed:
            return b""
        try:
            events = self._splitter.split(data)
        except sse.EventTooLong as error:
            return self._refuse(str(error))
        return b"".join([self._pass(event) for event in events])

    @property
    def noise(self) -> int:
        """See ``StreamTransform``."""
        return self._splitter.noise

    def _pass(self, event: bytes) -> bytes:
        """A whole event in, what may leave of it out."""
        if self.closed:
            return b""
        if not self._begun:
            self._begun = True
            event = event.removeprefix(sse.BOM)
        if not (event.isascii() or sse.is_utf8(event)):
            return self._refuse("The provider sent an event that is not UTF-8")
        payload = sse.parse_data(event)
        if not payload:
            self._splitter.noise += len(event)
            return event
        # Whether it is JSON in between is not looked at: that takes as long as all else that is done for an event.
        if not payload.endswith(b"}") and _is_broken(payload):
            return self._refuse("The provider sent an event that is not JSON")
        return self._judge(event, payload)

    def _refuse(self, reason: str) -> bytes:
        """The stream ends here."""
        self.fault = ProviderBadResponse(reason, phase="stream")
        return b""

    def _judge(self, event: bytes, payload: bytes) -> bytes:
        """An event with its data in, what may leave out."""
        raise NotImplementedError


def _is_broken(payload: bytes) -> bool:
    """Whether data is neither JSON nor the convention's end mark."""
    if payload.startswith(_END_MARK):
        return False
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return True
    return False


class StreamParser(Protocol):
    """One dialect's stream as events, from however its bytes were cut."""

    @property
    def held_bytes(self) -> int:
        """Of an event that has not ended."""
        ...

    @property
    def noise(self) -> int:
        """See ``StreamTransform``."""
        ...

    def feed(self, data: bytes) -> list[Event]:
        """What the events that ``data`` completes say. Nothing comes after an ``StreamEnd`` or a ``StreamError``.

        Never raises: an event that makes no sense, or has no end, is a ``StreamError``.
        """
        ...

    def finish(self) -> list[Event]:
        """The transport has ended. Ends with ``StreamEnd`` where the answer is whole without its mark, else raises.

        Raises ``ProviderBadResponse`` where the stream was cut.
        """
        ...


class StreamSerializer(Protocol):
    """Events as one dialect's stream."""

    def write(self, event: Event) -> bytes:
        """The bytes that say ``event``; none where the dialect need not say it. ``StreamEnd`` writes the end mark.

        ``StreamError`` writes nothing: how a stream ends in a fault is the relay's business. Raises
        ``ProviderBadResponse`` where an answer would have to be held back further than memory allows.
        """
        ...


class UsageCounter:
    """Counts what events say was used.

    Attributes:
        events: those that say something of an answer.
    """

    # ``_texts``: the last of what was said, and every text of a short answer.
    __slots__ = ("_begun", "_texts", "_usage", "events")

    def __init__(self) -> None:
        self._begun: Usage | None = None
        self._usage: Usage | None = None
        self._texts: deque[str] = deque(maxlen=_SAMPLED_EVENTS)
        self.events = 0

    def note(self, event: Event) -> None:
        """Count ``event``, which is neither ``StreamError`` nor ``StreamEnd``."""
        match event:
            case TextDelta() | ReasoningDelta() | RefusalDelta():
                self.events += 1
                self._texts.append(event.text)
            case ToolCallDelta():
                self.events += 1
                self._texts.append(event.arguments)
            case MessageStart():  # no answer yet: until there is something of one, another channel may do better
                self._begun = event.usage
            case UsageReport():
                self._usage = event.usage
            case _:
                self.events += 1

    def parse_usage(self, call: InferenceRequest) -> Usage:
        """The provider's word, else an estimate from a sample of what was said."""
        if self._usage is not None:
            return self._usage
        if not self.events:
            return Usage()
        begun = self._begun or Usage(estimate_prompt(call))
        sampled = len(self._texts)
        total = self.events if sampled == _SAMPLED_EVENTS else sampled
        return attrs.evolve(begun, completion_tokens=estimate_sample(self._texts, sampled, total), source="estimate")


def parse_events_usage(events: Iterable[Event], call: InferenceRequest) -> Usage:
    """What the events of a whole answer say was used, else an estimate."""
    meter = UsageCounter()
    for event in events:
        if not isinstance(event, StreamEnd | StreamError):
            meter.note(event)
    return meter.parse_usage(call)


class TranslatingStream(StreamState):
    """A gate between two languages; see ``StreamTransform``.

    Args:
        reader: of the provider's language.
        writer: of the caller's.
        call: what was asked.

    Attributes:
        events: those so far that say something of an answer.
    """

    __slots__ = ("_call", "_meter", "_read", "_reader", "_writer", "events")

    def __init__(self, reader: StreamParser, writer: StreamSerializer, call: InferenceRequest) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer
        self._call = call
        self._meter = UsageCounter()
        self._read: list[Event] = []
        self.events = 0

    @property
    def heavy(self) -> bool:
        """Whether a large event waits for its end, or to be written: what follows goes through ``read``."""
        return not self.closed and (bool(self._read) or self._reader.held_bytes > LARGE_EVENT_BYTES)

    @property
    def unwritten(self) -> bool:
        """Whether ``write`` has not written yet what was read."""
        return bool(self._read)

    def read(self, data: bytes) -> None:
        """A piece in. A thread may do it, as long as it is the only one that does anything with the gate."""
        self._read = self._reader.feed(data)

    def write(self) -> bytes:
        """What was read last out, as far as it may leave."""
        events, self._read = self._read, []
        return b"" if self.closed else self._pass(events)

    def feed(self, data: bytes) -> bytes:
        """A piece in, what may leave out."""
        return b"" if self.closed else self._pass(self._reader.feed(data))

    def finish(self) -> bytes:
        """The transport has ended. Raises ``ProviderBadResponse`` where the stream was cut."""
        if self.ended:
            return b""
        written = b"" if self.closed else self._pass(self._reader.finish())
        if self.fault is not None:
            raise self.fault
        if not self.closed:
            raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")
        return written

    @property
    def noise(self) -> int:
        """See ``StreamTransform``."""
        return self._reader.noise

    def parse_usage(self) -> Usage:
        """The provider's word, else an estimate."""
        return self._meter.parse_usage(self._call)

    def _pass(self, events: list[Event]) -> bytes:
        written = []
        for event in events:
            if isinstance(event, StreamError):
                self.fault = event.fault
                break
            try:
                written.append(self._writer.write(event))
            except ProviderBadResponse as fault:
                self.fault = fault
                break
            if isinstance(event, StreamEnd):
                self.ended = True
                break
            self._meter.note(event)
        self.events = self._meter.events
        return b"".join(written)
