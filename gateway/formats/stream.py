"""Stream transforms: convert a provider's stream into the client's, and report the usage at the end.

If both sides use the same format, a passthrough forwards the bytes unchanged. Otherwise ``TranslatingStream`` connects
a parser of the provider's format with a serializer of the client's. ``JsonOrStream`` is for providers that answer a
streaming request with one JSON object.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

import attrs
import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.token_estimate import estimate_sample, estimate_text
from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import GatewayError, ProviderBadResponse, ProviderError
from gateway.formats.chat.model import (
    Event,
    LogprobsReport,
    MessageStart,
    ReasoningDelta,
    RefusalDelta,
    StreamEnd,
    StreamError,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from gateway.formats.errors.openai import Secrets
from gateway.formats.usage.prompt_tokens import estimate_prompt, fill_counts
from gateway.formats.wire import sse

_MAX_SAMPLED_EVENTS = 128
"""Number of the last text events kept as a sample; estimates extrapolate from them to a longer stream."""
_MAX_SAMPLED_CHARS = 64 * 1024
"""Maximum length of a sampled text. A longer text is estimated at once and not kept."""

LARGE_EVENT_BYTES = 1024 * 1024
"""Size above which a thread parses an event, because parsing takes milliseconds."""
_END_MARK = b"[DONE]"
MAX_WHOLE_BYTES = 64 * 1024 * 1024
LARGE_ANSWER_BYTES = 1024 * 1024
MAX_CONTAINERS = 200_000
MAX_VALUES = 6_000_000
"""Limits for an answer over ``LARGE_ANSWER_BYTES``: objects and arrays; commas, including those in strings. 64 MiB of
empty objects would take gigabytes of memory. The largest embedding batches have a few million numbers."""
_BLANK_BYTES = b" \t\r\n\xef\xbb\xbf"
"""Bytes allowed before a stream or a JSON answer: whitespace and the byte order mark."""
_SSE_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Possible beginnings of an event stream line (WHATWG HTML, 9.2.6)."""


class StreamTransform(Protocol):
    """Converts one provider's stream into the client's.

    Attributes:
        events: number of complete events with data so far, without the end mark.
        ended: whether the end mark has passed; later data is dropped.
        error: an error that the provider reported, or an invalid event; later data is dropped.
        noise: number of bytes so far in events without data (comments, blank lines).
        closed: whether nothing more can be sent to the client.
        empty: whether the stream is complete but has no answer.
    """

    ended: bool
    error: ProviderError | None

    @property
    def noise(self) -> int: ...

    @property
    def events(self) -> int: ...

    @property
    def closed(self) -> bool: ...

    @property
    def empty(self) -> bool: ...

    def feed(self, data: bytes) -> bytes:
        """Return the whole events that ``data`` completes, as bytes for the client. Errors are stored in ``error``."""
        ...

    def finish(self) -> bytes:
        """Return the last bytes after the connection's end. Raises ``ProviderError``, also for an incomplete stream."""
        ...

    def parse_usage(self) -> Usage:
        """Return the usage of the forwarded part: the provider's counts, else an estimate, marked as such."""
        ...

    def write_error(self, error: GatewayError, request_id: str) -> bytes:
        """Return the events that end the stream with ``error``; empty if the format's usual error event suffices."""
        ...


class StreamState:
    """Base class of stream transforms: the end state, and the output of a thread's ``read``.

    ``closed`` is stored because it is read for every piece.

    Attributes:
        pending_data: data that a thread has yet to ``read``.
    """

    __slots__ = ("_ended", "_error", "_unwritten_output", "closed", "pending_data")

    def __init__(self) -> None:
        self._ended = False
        self._error: ProviderError | None = None
        self._unwritten_output = self.pending_data = b""
        self.closed = False

    def feed(self, data: bytes) -> bytes:
        raise NotImplementedError

    @property
    def heavy(self) -> bool:
        """Whether a thread must ``read`` the next piece, because a large event is incomplete or not yet written."""
        return False

    @property
    def ends_heavily(self) -> bool:
        """Whether a thread must call ``finish``, because it takes long."""
        return self.heavy

    @property
    def unwritten(self) -> bool:
        """Whether ``read`` has produced output that ``write`` has not returned yet."""
        return bool(self._unwritten_output)

    def may_end(self, data: bytes) -> bool:
        """Return whether an event may end in ``data``. A heavy stream reads such data in a thread."""
        return b"\n" in data or b"\r" in data

    def read(self, data: bytes) -> None:
        """Process ``data`` like ``feed``; ``write`` then returns the output.

        A thread may call this while nothing else uses the transform.
        """
        self._unwritten_output = self.feed(data)

    def write(self) -> bytes:
        data, self._unwritten_output = self._unwritten_output, b""
        return data

    @property
    def ended(self) -> bool:
        return self._ended

    @ended.setter
    def ended(self, ended: bool) -> None:
        self._ended = ended
        self.closed = ended or self._error is not None

    @property
    def noise(self) -> int:
        return 0

    @property
    def empty(self) -> bool:
        return False

    def write_error(self, error: GatewayError, request_id: str) -> bytes:  # noqa: ARG002
        return b""

    @property
    def error(self) -> ProviderError | None:
        return self._error

    @error.setter
    def error(self, error: ProviderError | None) -> None:
        self._error = error
        self.closed = self._ended or error is not None


class PassthroughStream(StreamState):
    """Forwards whole events unchanged between a provider and a client with the same format.

    A subclass implements ``_filter_event``, which interprets events, and ``feed``, which recognizes pieces that need no
    inspection. An incomplete event is buffered: if the stream breaks within it, the gateway can still end the stream
    with a valid error event.
    """

    __slots__ = ("_has_started", "_secrets", "_splitter", "events")

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets
        self._splitter = sse.SseSplitter()
        self._has_started = False
        self.events = 0

    @property
    def heavy(self) -> bool:
        splitter = self._splitter
        return bool(self._unwritten_output) or (
            splitter.has_pending and splitter.held_bytes > LARGE_EVENT_BYTES and not self.closed
        )

    def _feed_by_event(self, data: bytes) -> bytes:
        if self.closed:
            return b""
        try:
            events = self._splitter.split(data)
        except sse.EventTooLong as error:
            return self._record_invalid_event(str(error))
        return b"".join([self._forward_event(event) for event in events])

    @property
    def noise(self) -> int:
        return self._splitter.noise

    def _forward_event(self, event: bytes) -> bytes:
        if self.closed:
            return b""
        if not self._has_started:
            self._has_started = True
            event = event.removeprefix(sse.BOM)
        if not (event.isascii() or sse.is_utf8(event)):
            return self._record_invalid_event("The provider sent an event that is not UTF-8")
        payload = sse.parse_data(event)
        if not payload:
            self._splitter.noise += len(event)
            return event
        # A payload that ends in "}" is not parsed: that would double the cost of an event.
        if not payload.endswith(b"}") and _is_invalid_json(payload):
            return self._record_invalid_event("The provider sent an event that is not JSON")
        return self._filter_event(event, payload)

    def _record_invalid_event(self, reason: str) -> bytes:
        self.error = ProviderBadResponse(reason, phase="stream")
        return b""

    def _filter_event(self, event: bytes, payload: bytes) -> bytes:
        """Return the bytes to forward for an event, whose data is ``payload``."""
        raise NotImplementedError


def _is_invalid_json(payload: bytes) -> bool:
    if payload.startswith(_END_MARK):
        return False
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return True
    return False


class StreamParser(Protocol):
    """Parses one format's stream into events; the stream may be cut into pieces anywhere."""

    @property
    def held_bytes(self) -> int: ...

    @property
    def noise(self) -> int: ...

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that ``data`` completes. An invalid event becomes a ``StreamError``."""
        ...

    def finish(self) -> list[Event]:
        """Return the last events, plus a missing end mark. Raises ``ProviderError``, also for an incomplete stream."""
        ...


@runtime_checkable
class UsageKeeper(Protocol):
    """A parser of a format with running totals in every chunk; the parser reports only the last totals."""

    def take_usage(self) -> UsageReport | None:
        """Return received usage that no event has reported yet; a second call returns None."""
        ...


@runtime_checkable
class BinaryParser(Protocol):
    """A parser of binary messages, which do not end at line ends.

    Attributes:
        media_type: the stream's media type.
    """

    media_type: str


@runtime_checkable
class RepeatingWriter(Protocol):
    """A serializer that repeats all texts at the end of an answer.

    Attributes:
        chars: length of all texts so far.
    """

    chars: int


@runtime_checkable
class ErrorWriter(Protocol):
    """A serializer of a format whose error event depends on the events written before."""

    def write_error(self, error: GatewayError, request_id: str) -> bytes: ...


class StreamSerializer(Protocol):
    """Writes events as one format's stream."""

    def write(self, event: Event) -> bytes:
        """Return the bytes of ``event``. ``StreamEnd`` becomes the end mark.

        The bytes are empty if the format cannot express the event, or if it is written with a later event. A
        ``StreamError`` gives no bytes: the proxy writes that error. Raises ``ProviderBadResponse`` if too much would
        have to be buffered.
        """
        ...


class UsageCounter:
    """Counts the usage of a sequence of events.

    Attributes:
        events: number of events that belong to an answer.
    """

    # ``_sampled_texts``: the last texts that are not large; for a short answer, all of them.
    __slots__ = ("_large_count", "_large_tokens", "_sampled_texts", "_start_usage", "_usage", "events")

    def __init__(self) -> None:
        self._start_usage: Usage | None = None
        self._usage: Usage | None = None
        self._sampled_texts: deque[str] = deque(maxlen=_MAX_SAMPLED_EVENTS)
        self._large_count = self._large_tokens = 0
        self.events = 0

    def count_event(self, event: Event) -> None:
        """Count ``event``, which is neither ``StreamError`` nor ``StreamEnd``."""
        match event:
            case TextDelta() | ReasoningDelta() | RefusalDelta():
                self.events += 1
                if len(event.text) <= _MAX_SAMPLED_CHARS:
                    self._sampled_texts.append(event.text)
                else:
                    self._count_large(event.text)
            case ToolCallDelta():
                self.events += 1
                if len(event.arguments) <= _MAX_SAMPLED_CHARS:
                    self._sampled_texts.append(event.arguments)
                else:
                    self._count_large(event.arguments)
            case MessageStart():  # not part of an answer: before one begins, the gateway may still try another channel
                self._start_usage = event.usage
            case UsageReport():
                self._usage = event.usage
            case LogprobsReport():  # belongs to a text, which is counted already
                pass
            case _:
                self.events += 1

    def _count_large(self, text: str) -> None:
        """Estimate the tokens of a large text at once: a sample of such texts could take gigabytes."""
        self._large_count += 1
        self._large_tokens += estimate_text(text)

    @property
    def has_report(self) -> bool:
        return self._usage is not None

    def parse_usage(self, inference: InferenceRequest) -> Usage:
        if self._usage is not None:
            return fill_counts(self._usage, inference, self._estimate_completion) if self.events else self._usage
        if not self.events:
            return Usage()
        usage = self._start_usage or Usage(estimate_prompt(inference))
        return attrs.evolve(usage, completion_tokens=self._estimate_completion(), source="estimate")

    def _estimate_completion(self) -> int:
        sample_count = len(self._sampled_texts)
        total = self.events - self._large_count if sample_count == _MAX_SAMPLED_EVENTS else sample_count
        return self._large_tokens + estimate_sample(self._sampled_texts, sample_count, total)


def parse_events_usage(events: Iterable[Event], inference: InferenceRequest) -> Usage:
    """Return the usage of a complete answer's events: the provider's counts, else an estimate."""
    counter = UsageCounter()
    for event in events:
        if not isinstance(event, StreamEnd | StreamError):
            counter.count_event(event)
    return counter.parse_usage(inference)


class TranslatingStream(StreamState):
    """Translates a stream between two formats; see ``StreamTransform``."""

    __slots__ = ("_inference", "_reader", "_repeating_writer", "_usage_counter", "_writer", "events")

    def __init__(self, reader: StreamParser, writer: StreamSerializer, inference: InferenceRequest) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer
        self._repeating_writer = writer if isinstance(writer, RepeatingWriter) else None
        self._inference = inference
        self._usage_counter = UsageCounter()
        self.events = 0

    @property
    def heavy(self) -> bool:
        return not self.closed and bool(
            self._unwritten_output or self.pending_data or self._reader.held_bytes > LARGE_EVENT_BYTES
        )

    @property
    def ends_heavily(self) -> bool:
        return self.heavy or (self._repeating_writer is not None and self._repeating_writer.chars > LARGE_EVENT_BYTES)

    def may_end(self, data: bytes) -> bool:
        return isinstance(self._reader, BinaryParser) or super().may_end(data)

    def feed(self, data: bytes) -> bytes:
        if self._repeating_writer is not None and self._repeating_writer.chars > LARGE_EVENT_BYTES:
            self.pending_data += data  # a thread reads it: this may be the end, where the writer repeats all texts
            return b""
        return b"" if self.closed else self._forward_event(self._reader.feed(data))

    def read(self, data: bytes) -> None:
        data, self.pending_data = self.pending_data + data, b""
        self._unwritten_output = b"" if self.closed else self._forward_event(self._reader.feed(data))

    def finish(self) -> bytes:
        if self.ended:
            return b""
        output = b""
        if self.pending_data:
            self.read(b"")
            output = self.write()
        output += b"" if self.closed else self._forward_event(self._reader.finish())
        if self.error is not None:
            raise self.error
        if not self.closed:
            raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")
        return output

    @property
    def noise(self) -> int:
        return self._reader.noise

    def write_error(self, error: GatewayError, request_id: str) -> bytes:
        return self._writer.write_error(error, request_id) if isinstance(self._writer, ErrorWriter) else b""

    def parse_usage(self) -> Usage:
        if isinstance(self._reader, UsageKeeper) and (report := self._reader.take_usage()) is not None:
            self._usage_counter.count_event(report)  # the stream was cut off before its last chunk
        return self._usage_counter.parse_usage(self._inference)

    @property
    def _lacks_usage(self) -> bool:
        return OPERATIONS[self._inference.operation].requires_usage and not self._usage_counter.has_report

    def _forward_event(self, events: list[Event]) -> bytes:
        output = []
        for event in events:
            if type(event) is StreamError:
                self.error = event.error
                break
            try:
                if type(event) is StreamEnd and self._lacks_usage:
                    output.append(self._writer.write(UsageReport(self._usage_counter.parse_usage(self._inference))))
                output.append(self._writer.write(event))
            except ProviderBadResponse as error:
                self.error = error
                break
            if type(event) is StreamEnd:
                self.ended = True
                break
            self._usage_counter.count_event(event)
        self.events = self._usage_counter.events
        return b"".join(output)


def strip_beginning(data: bytes) -> bytes:
    """Strip leading whitespace and the byte order mark from the first bytes of an answer."""
    return data.lstrip(_BLANK_BYTES)


def is_json(head: bytes) -> bool:
    """Return whether an answer with this beginning is JSON: event stream lines never begin with a bracket."""
    return head.startswith((b"{", b"["))


def is_event_stream(head: bytes) -> bool:
    """Return whether an answer with this beginning is an event stream. The first piece may end within a field name."""
    return head.startswith(_SSE_FIELDS) or any(field.startswith(head) for field in _SSE_FIELDS)


def check_parts(raw: bytes) -> None:
    """Raise ``ProviderBadResponse`` for JSON with more values than any valid answer. Call this before parsing."""
    if len(raw) <= LARGE_ANSWER_BYTES or not is_json(strip_beginning(raw[:LARGE_ANSWER_BYTES])):
        return
    if raw.count(b"{") + raw.count(b"[") > MAX_CONTAINERS or raw.count(b",") > MAX_VALUES:
        raise ProviderBadResponse("The provider's answer has too many parts")


class JsonOrStream(StreamState):
    """Buffers a complete answer, which the function ``write`` converts into a stream; see ``StreamTransform``."""

    __slots__ = ("_held_bytes", "_pieces", "_usage", "_write", "events")

    def __init__(self, write: Callable[[bytes], tuple[bytes, Usage]]) -> None:
        super().__init__()
        self._write = write
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._usage = NO_USAGE
        self.events = 0

    def feed(self, data: bytes) -> bytes:
        self._held_bytes += len(data)
        if self._held_bytes > MAX_WHOLE_BYTES:
            self._pieces.clear()
            self.error = ProviderBadResponse(
                f"The provider's answer is larger than {MAX_WHOLE_BYTES} bytes", phase="body"
            )
        else:
            self._pieces.append(data)
        return b""

    @property
    def heavy(self) -> bool:
        return not self.closed and self._held_bytes > LARGE_ANSWER_BYTES

    def may_end(self, data: bytes) -> bool:  # noqa: ARG002 - ``finish`` reads everything
        return False

    def finish(self) -> bytes:
        if self.error is not None:
            raise self.error
        raw = b"".join(self._pieces)
        self._pieces.clear()
        check_parts(raw)
        output, self._usage = self._write(raw)
        self.events, self.ended = 1, True
        return output

    def parse_usage(self) -> Usage:
        return self._usage
