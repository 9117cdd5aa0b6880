"""Passthrough of Anthropic's stream to a client of the same format; see ``StreamTransform``."""

from typing import Any

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_sample, estimate_text
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.anthropic.response import extract_text, parse_delta_usage, parse_start_usage, record_container
from gateway.formats.chat.anthropic.stream import STOP_EVENT, is_end, parse_error_event, parse_event
from gateway.formats.errors.openai import Secrets
from gateway.formats.stream import PassthroughStream
from gateway.formats.stream_tail import HeadTailBuffer
from gateway.formats.usage.prompt_tokens import estimate_prompt, fill_counts
from gateway.formats.wire import sse
from gateway.frozen import frozen

_CONTENT_EVENT_START = b"event: content_block_"
_EVENT_END = b"}\n\n"
"""End of a content event. An event with another end, possibly cut by a proxy, takes the slow path."""
_NEXT_CONTENT = _EVENT_END + _CONTENT_EVENT_START
_CONTENT_DATA = (b'{"type":"content_block_', b'{"type": "content_block_')
_SAMPLE_BYTES = 512 * 1024
_SILENT_EVENTS = frozenset({"ping", "message_start"})
"""Events that do not belong to an answer. Until an answer begins, the gateway may still try another channel."""


class MessagesPassthrough(PassthroughStream):
    """Forwards whole events unchanged, up to ``message_stop``. An ``error`` event is not forwarded.

    Attributes:
        events: number of complete events with data so far, except ``ping``, ``message_start`` and the end mark.
    """

    __slots__ = ("_buffer", "_finished", "_inference", "_start_usage", "_usage")

    def __init__(self, inference: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._inference = inference
        self._buffer = HeadTailBuffer()
        self._start_usage: object = None
        self._finished = False
        self._usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        # Fast path: a piece usually consists of whole content events and is forwarded after a few checks. A text that
        # happens to contain one of these words takes the slow path, which also handles it correctly.
        if (
            data.startswith(_CONTENT_EVENT_START)
            and data.endswith(_EVENT_END)
            and b'"message_' not in data
            and b'"error"' not in data
            and not self._splitter.has_pending
            and not self.closed
            and (data.isascii() or sse.is_utf8(data))
        ):
            event_count = data.count(b"\n\n")
            if data.count(_NEXT_CONTENT) == event_count - 1 and data.count(b"event:") == event_count:
                self._has_started = True
                self.events += event_count
                self._buffer.feed(data)
                return data
        return self._feed_by_event(data)

    def _filter_event(self, event: bytes, payload: bytes) -> bytes:
        if payload.startswith(_CONTENT_DATA):
            self.events += 1
            self._buffer.feed(event)
            return event
        kind, value = parse_event(event, payload)
        if kind == "error":
            self.error = parse_error_event(value, self._secrets)
            return b""
        self._record_event(kind, value if isinstance(value, dict) else {}, event)
        return event

    def _record_event(self, kind: str, value: dict[str, Any], event: bytes) -> None:
        if kind == "message_stop":
            self.ended = True
            return
        self.events += kind not in _SILENT_EVENTS
        if kind == "message_start":
            message = value.get("message")
            self._start_usage = message.get("usage") if isinstance(message, dict) else None
        elif kind == "message_delta":
            delta = value.get("delta")
            self._finished |= isinstance(delta, dict) and delta.get("stop_reason") is not None
            if isinstance(delta, dict) and delta.get("container"):
                record_container(delta, self._inference)
            report = parse_delta_usage(self._start_usage, value.get("usage"))
            self._usage = report.usage if report is not None else self._usage
        elif kind.startswith("content_block_"):
            self._buffer.feed(event)

    def finish(self) -> bytes:
        """Return the last bytes. A message with a stop reason gets a missing end mark, because clients wait for it.

        Raises the error that the stream reports, and ``ProviderBadResponse`` if the message is incomplete.
        """
        if self.error is not None:
            raise self.error
        if self.ended:
            return b""
        last_bytes = self._splitter.take()
        if is_end(last_bytes) or (
            not last_bytes.strip() and self._finished and _parse_sample(self._buffer.tail).ends_block
        ):
            self.ended = True
            return STOP_EVENT
        raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")

    def parse_usage(self) -> Usage:
        """Return the counts of ``message_delta``; a count of 0 is estimated if the stream had any content.

        Without ``message_delta``, the usage is zero until the stream has content. After that, the prompt tokens are
        those of ``message_start``, or an estimate if it has no counts, and the completion tokens are an estimate.
        """
        if self._usage is not None:
            return fill_counts(self._usage, self._inference, self._estimate_completion) if self.events else self._usage
        if not self.events:
            return Usage()
        start_usage = parse_start_usage(self._start_usage) or Usage(estimate_prompt(self._inference))
        return attrs.evolve(start_usage, completion_tokens=self._estimate_completion(), source="estimate")

    def _estimate_completion(self) -> int:
        tail = _parse_sample(self._buffer.tail)
        if self._buffer.is_whole:
            return estimate_text(tail.text)
        head = _parse_sample(self._buffer.head)
        return estimate_sample((head.text, tail.text), head.event_count + tail.event_count, self.events)


@frozen
class _MessageSample:
    """A part of a stream's content.

    Attributes:
        ends_block: whether the last event of the sample ends a block.
    """

    event_count: int
    text: str
    ends_block: bool


def _parse_sample(raw: bytes) -> _MessageSample:
    event_count, texts = 0, []
    kind = "content_block_stop"
    for event in sse.SseSplitter().split(raw[-_SAMPLE_BYTES:]):
        kind, value = parse_event(event, sse.parse_data(event) or b"")
        event_count += 1
        if isinstance(value, dict):
            texts += [extract_text(value.get("delta")), extract_text(value.get("content_block"))]
    return _MessageSample(event_count, "".join(texts), kind == "content_block_stop")
