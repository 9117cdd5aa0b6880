"""Passthrough of Gemini's answers to clients of the same format: streams (see ``StreamTransform``) and whole answers.

The stream has no end mark: an answer is complete if the connection has ended and every candidate has a finish reason,
or the prompt was blocked.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_sample, estimate_text
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.gemini.usage_metadata import attach_searches, parse_usage_metadata
from gateway.formats.errors.openai import Secrets, build_reported_error, parse_error_value
from gateway.formats.stream import PassthroughStream
from gateway.formats.stream_tail import HeadTailBuffer
from gateway.formats.usage.prompt_tokens import estimate_prompt, fill_counts
from gateway.formats.wire import sse
from gateway.formats.wire.json_values import as_object, as_text, list_objects, loads_or_none
from gateway.frozen import frozen

_EVENT_START = b'data: {"'
_EVENT_ENDS = (b"}\r\n\r\n", b"}\n\n")
_SAMPLE_BYTES = 512 * 1024
_INCOMPLETE_STREAM = "The provider's stream ended before it was complete"
_UNSPECIFIED_REASONS = frozenset({"", "FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED"})


class GenerateContentPassthrough(PassthroughStream):
    """Forwards complete events unchanged, except errors. The last event waits until the request is settled."""

    __slots__ = (
        "_buffer",
        "_finished",
        "_has_several_candidates",
        "_held_event",
        "_inference",
        "_search_chunk",
        "_usage",
    )

    def __init__(self, inference: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._inference = inference
        self._has_several_candidates = inference.choices > 1
        self._buffer = HeadTailBuffer()
        self._finished: dict[int, bool] = {}
        self._held_event = b""
        self._usage: Usage | None = None
        self._search_chunk: Mapping[str, Any] = {}

    def feed(self, data: bytes) -> bytes:
        # Fast path: a typical piece consists of complete events in the middle of an answer and needs no parsing.
        if (
            data.startswith(_EVENT_START)
            and data.endswith(_EVENT_ENDS)
            and b'"finishReason"' not in data
            and b'"error"' not in data
            and b'"promptFeedback"' not in data
            and not self._splitter.has_pending
            and not self.closed
            and not self._has_several_candidates
            and not self._held_event
            and (data.isascii() or sse.is_utf8(data))
        ):
            event_count = data.count(b"}\r\n\r\n") + data.count(b"}\n\n")
            if data.count(_EVENT_START) == event_count == data.count(b"data:"):
                self._has_started = True
                self.events += event_count
                self._buffer.feed(data)
                return data
        return self._feed_by_event(data)

    def _forward_event(self, event: bytes) -> bytes:
        """Return the bytes to forward for a complete event. Errors, which are often bare JSON, are not forwarded."""
        if not self.closed and event.lstrip().startswith((b"{", b"[")) and self._record_error(loads_or_none(event)):
            return b""
        return super()._forward_event(event)

    def _filter_event(self, event: bytes, payload: bytes) -> bytes:
        value = loads_or_none(payload)
        if self._record_error(value):
            return b""
        chunk = as_object(value)
        self.events += 1
        self._buffer.feed(event)
        is_prompt_block = is_blocked(chunk)
        for candidate in list_objects(chunk.get("candidates")):
            if "groundingMetadata" in candidate:
                self._search_chunk = chunk
            index_field = candidate.get("index")
            index = index_field if type(index_field) is int else 0
            reason = as_text(candidate.get("finishReason"))
            self._finished[index] = self._finished.get(index, False) or reason not in _UNSPECIFIED_REASONS
        held_event, self._held_event = self._held_event, b""
        if is_prompt_block or self._is_complete:
            self._held_event, self._usage = event, _parse_usage(chunk)
            return held_event
        return held_event + event

    def _record_error(self, value: object) -> bool:
        error = parse_error_value(value, self._secrets)
        if error is not None:
            self.error = build_reported_error(error, "stream")
        return error is not None

    @property
    def _is_complete(self) -> bool:
        return bool(self._finished) and all(self._finished.values())

    def finish(self) -> bytes:
        """Return the remaining bytes. Raises the stream's error, and ``ProviderBadResponse`` if it is incomplete."""
        if self.error is not None:
            raise self.error
        if self.ended:
            return b""
        last_bytes = self._splitter.take()
        output = b""
        if last_bytes.strip():
            if loads_or_none(sse.parse_data(last_bytes) or last_bytes) is None:
                raise ProviderBadResponse(_INCOMPLETE_STREAM, phase="stream")
            output = self._forward_event(last_bytes + b"\n\n")
            if self.error is not None:
                raise self.error
        if not self._held_event:
            raise ProviderBadResponse(_INCOMPLETE_STREAM, phase="stream")
        self.ended = True
        return output + self._held_event

    def parse_usage(self) -> Usage:
        """Return the provider's latest counts; missing ones are estimated if the stream had any content.

        The completion of a broken stream is estimated, too, because the counts so far may not cover all text.
        """
        return attach_searches(self._count_usage(), self._search_chunk) if self._search_chunk else self._count_usage()

    def _count_usage(self) -> Usage:
        if not self.events:
            return self._usage or Usage()
        if self._usage is not None and self._usage.completion_tokens:
            return self._usage
        tail = _parse_sample(self._buffer.tail)
        if self._held_event and (usage := self._usage or tail.usage) is not None:
            return fill_counts(usage, self._inference, lambda: self._estimate_completion(tail))
        start_usage = tail.usage or Usage(estimate_prompt(self._inference))
        return attrs.evolve(start_usage, completion_tokens=self._estimate_completion(tail), source="estimate")

    def _estimate_completion(self, tail: "_ChunkSample") -> int:
        if self._buffer.is_whole:
            return estimate_text(tail.text)
        head = _parse_sample(self._buffer.head)
        return estimate_sample((head.text, tail.text), head.event_count + tail.event_count, self.events)


@frozen
class _ChunkSample:
    event_count: int
    text: str
    usage: Usage | None


def _parse_sample(raw: bytes) -> _ChunkSample:
    event_count, texts = 0, []
    usage: Usage | None = None
    for event in sse.SseSplitter().split(raw[-_SAMPLE_BYTES:]):
        chunk = as_object(loads_or_none(sse.parse_data(event) or b""))
        event_count += 1
        texts += list(_list_texts(chunk))
        usage = _parse_usage(chunk) or usage
    return _ChunkSample(event_count, "".join(texts), usage)


def _list_texts(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of an answer or chunk for an estimate. Function calls count as JSON text."""
    for candidate in list_objects(answer.get("candidates")):
        for part in list_objects(as_object(candidate.get("content")).get("parts")):
            yield as_text(part.get("text"))
            if part.get("functionCall"):
                yield exact_json.dumps(part["functionCall"]).decode()


def _parse_usage(answer: Mapping[str, Any]) -> Usage | None:
    report = parse_usage_metadata(answer.get("usageMetadata"))
    return None if report is None else report.usage


def is_blocked(answer: Mapping[str, Any]) -> bool:
    """Return whether an answer reports that the prompt was blocked."""
    return as_text(as_object(answer.get("promptFeedback")).get("blockReason")) not in _UNSPECIFIED_REASONS


def parse_passed_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> Usage:
    """Return the usage of a whole answer that is forwarded unchanged.

    Raises the error that the answer reports, or ``ProviderBadResponse``.
    """
    return _parse_answer_usage(_parse_chunk(loads_or_none(raw), secrets), inference)


def build_whole(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return a whole answer, or an array of chunks (a stream without ``alt=sse``), as a stream, and its usage.

    Raises the error that the answer reports, or ``ProviderBadResponse``.
    """
    value = loads_or_none(raw, exact=True)
    chunks = [_parse_chunk(chunk, secrets) for chunk in (value if isinstance(value, list) and value else [value])]
    usage = _parse_answer_usage(chunks[-1], inference)
    for candidate in list_objects(chunks[-1].get("candidates")):
        if as_text(candidate.get("finishReason")) in _UNSPECIFIED_REASONS:
            candidate["finishReason"] = "STOP"
    return b"".join(b"data: %b\n\n" % exact_json.dumps(chunk) for chunk in chunks), usage


def _parse_chunk(value: object, secrets: Secrets) -> dict[str, Any]:
    error = parse_error_value(value, secrets)
    if error is not None:
        raise build_reported_error(error, "answer")
    if not isinstance(value, dict):
        raise ProviderBadResponse("The provider's answer is not a JSON object")
    if not list_objects(value.get("candidates")) and not is_blocked(value):
        raise ProviderBadResponse("The provider's answer has no candidates")
    return value


def _parse_answer_usage(answer: Mapping[str, Any], inference: InferenceRequest) -> Usage:
    usage = _parse_usage(answer) or Usage(source="estimate")
    usage = fill_counts(usage, inference, lambda: estimate_text("".join(_list_texts(answer))))
    return attach_searches(usage, answer)
