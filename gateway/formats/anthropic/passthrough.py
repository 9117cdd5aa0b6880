"""The gate of Anthropic's stream to a caller of the same language: bytes pass as they lie; see ``gate.Gate``.

Shapes: platform.claude.com/docs/en/build-with-claude/streaming.
"""

from typing import Any

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_sample, estimate_text
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats import sse
from gateway.formats.anthropic.response import parse_begun, parse_said, parse_used
from gateway.formats.anthropic.stream import STOP_EVENT, is_end, parse_event, parse_failure
from gateway.formats.head_tail_buffer import HeadTailBuffer
from gateway.formats.openai.errors import Secrets
from gateway.formats.prompt_tokens import estimate_prompt
from gateway.formats.stream import PassthroughStream

_CONTENT = b"event: content_block_"
_END = b"}\n\n"
"""What ends otherwise may have been cut by whoever rewrote it."""
_NEXT_CONTENT = _END + _CONTENT
_CONTENT_DATA = (b'{"type":"content_block_', b'{"type": "content_block_')
_SAMPLE_BYTES = 512 * 1024
_SILENT = frozenset({"ping", "message_start"})
"""No answer yet: until there is something of one, another channel may do better."""


class MessagesPassthrough(PassthroughStream):
    """What of a provider's stream may leave: whole events, up to ``message_stop``, and no ``error``.

    An event that has not ended is held, so that a stream which breaks in the middle of one can still end in a clean
    error event. What is let through is byte for byte what came.

    Attributes:
        events: complete events with data so far; ``ping``, ``message_start`` and the end mark are not counted.
        ended: ``message_stop`` has passed; whatever follows it is dropped.
        fault: the provider reported an error, or an event without an end; whatever follows it is dropped.
    """

    __slots__ = ("_begun_usage", "_call", "_finished", "_tap", "_usage")

    def __init__(self, call: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._call = call
        self._tap = HeadTailBuffer()
        self._begun_usage: object = None
        self._finished = False
        self._usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        """A piece in, what may leave out."""
        # The usual piece is whole events of content and nothing else: a few looks and it leaves as it lies. A text that
        # has one of these words in it is looked at more slowly.
        if (
            data.startswith(_CONTENT)
            and data.endswith(_END)
            and b'"message_' not in data
            and b'"error"' not in data
            and not self._splitter.waiting
            and not self.closed
            and (data.isascii() or sse.is_utf8(data))
        ):
            ends = data.count(b"\n\n")
            if data.count(_NEXT_CONTENT) == ends - 1 and data.count(b"event:") == ends:
                self._begun = True
                self.events += ends
                self._tap.feed(data)
                return data
        return self._feed_slowly(data)

    def _judge(self, event: bytes, payload: bytes) -> bytes:
        if payload.startswith(_CONTENT_DATA):
            self.events += 1
            self._tap.feed(event)
            return event
        kind, value = parse_event(event, payload)
        if kind == "error":
            self.fault = parse_failure(value, self._secrets)
            return b""
        self._note(kind, value if isinstance(value, dict) else {}, event)
        return event

    def _note(self, kind: str, value: dict[str, Any], event: bytes) -> None:
        if kind == "message_stop":
            self.ended = True
            return
        self.events += kind not in _SILENT
        if kind == "message_start":
            message = value.get("message")
            self._begun_usage = message.get("usage") if isinstance(message, dict) else None
        elif kind == "message_delta":
            delta = value.get("delta")
            self._finished |= isinstance(delta, dict) and delta.get("stop_reason") is not None
            used = parse_used(self._begun_usage, value.get("usage"))
            self._usage = used.usage if used is not None else self._usage
        elif kind.startswith("content_block_"):
            self._tap.feed(event)

    def finish(self) -> bytes:
        """The transport has ended; what is still to be written. Raises ``ProviderBadResponse`` where the stream was
        cut.

        A stream is complete at its end mark, or where a reason was given and no block is open. In the second case the
        mark is added: clients wait for it, and nothing is missing.
        """
        if self.fault is not None:
            raise self.fault
        if self.ended:
            return b""
        rest = self._splitter.take()
        if is_end(rest) or (not rest.strip() and self._finished and _parse_sample(self._tap.tail).stopped):
            self.ended = True
            return STOP_EVENT
        raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")

    def parse_usage(self) -> Usage:
        """The provider's word, else what it counted at the beginning and an estimate of the rest."""
        if self._usage is not None:
            return self._usage
        if not self.events:
            return Usage()
        begun = parse_begun(self._begun_usage) or Usage(estimate_prompt(self._call))
        return attrs.evolve(begun, completion_tokens=self._estimate_completion(), source="estimate")

    def _estimate_completion(self) -> int:
        """Tokens of all content, from a sample of its beginning and its end."""
        tail = _parse_sample(self._tap.tail)
        if self._tap.whole:
            return estimate_text(tail.text)
        head = _parse_sample(self._tap.head)
        return estimate_sample((head.text, tail.text), head.events + tail.events, self.events)


@attrs.frozen
class _Sample:
    """Some of a stream's content. ``stopped``: no block is open after it."""

    events: int
    text: str
    stopped: bool


def _parse_sample(raw: bytes) -> _Sample:
    events, texts = 0, []
    last = "content_block_stop"
    for event in sse.SseSplitter().split(raw[-_SAMPLE_BYTES:]):
        last, value = parse_event(event, sse.parse_data(event) or b"")
        events += 1
        if isinstance(value, dict):
            texts += [parse_said(value.get("delta")), parse_said(value.get("content_block"))]
    return _Sample(events, "".join(texts), last == "content_block_stop")
