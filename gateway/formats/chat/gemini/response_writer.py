"""Build answers in Gemini's format from events: whole answers, and streams of ``:streamGenerateContent?alt=sse``.

A chunk of a stream has the same shape as a whole answer. The format has no end mark: the last chunk has the finish
reasons and the usage.
"""

from collections.abc import Iterable
from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.gemini.logprobs import build_logprobs
from gateway.formats.chat.gemini.signatures import build_foreign, build_redacted
from gateway.formats.chat.model import (
    GEMINI_PREFIX,
    ChoiceFinished,
    Event,
    ImageOutput,
    LogprobsReport,
    Reason,
    ReasoningDelta,
    ReasoningSignature,
    RedactedReasoning,
    RefusalDelta,
    StreamEnd,
    StreamError,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    UsageReport,
)

MAX_HELD_BYTES = 16 * 1024 * 1024
"""The limit on buffered function calls in approximate bytes. They are buffered because the format has no deltas."""
_FRAGMENT_BYTES = 64
_CALL_BYTES = 1_024
"""Approximate memory of a piece of arguments and of a function call, without their texts."""
_FINISH_REASONS: dict[Reason, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
}
_TEXT_EVENT = b'data: {"candidates":[{"content":{"parts":[{"text":%b}],"role":"model"},"index":%d%b'
_THOUGHT_EVENT = b'data: {"candidates":[{"content":{"parts":[{"text":%b,"thought":true}],"role":"model"},"index":%d%b'
"""Templates of chunks with one text. Arguments: text as JSON, index of the candidate, and the chunk's constant end."""
_MALFORMED_CALL = "MALFORMED_FUNCTION_CALL"
Json = dict[str, Any]


@attrs.define
class _FunctionCall:
    start: ToolCallStart
    arguments: list[str] = attrs.Factory(list)


@attrs.define
class _WrittenCandidate:
    calls: dict[int, _FunctionCall] = attrs.Factory(dict)
    reason: Reason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()

    def build_end(self) -> tuple[list[Json], Json]:
        """Return the parts of the function calls, and the fields that end the candidate, such as the finish reason.

        A call whose arguments are not a JSON object is left out. The reason then reports a malformed call, unless the
        answer was cut off or filtered.
        """
        parts, malformed_names = [], []
        for call in self.calls.values():
            part = _build_call(call)
            if part is None:
                malformed_names.append(call.start.name)
            else:
                parts.append(part)
        end_fields: Json = {"finishReason": _FINISH_REASONS[self.reason or "stop"]}
        if malformed_names and end_fields["finishReason"] == "STOP":
            end_fields = {
                "finishReason": _MALFORMED_CALL,
                "finishMessage": f"Malformed function call: {', '.join(malformed_names)}",
            }
        return parts, end_fields | self.take_logprobs()

    def take_logprobs(self) -> Json:
        tokens, self.logprobs = self.logprobs, ()
        return {"logprobsResult": build_logprobs(tokens)} if tokens else {}


def _build_call(call: _FunctionCall) -> Json | None:
    text = "".join(call.arguments)
    try:
        arguments = exact_json.load_arguments(text) if text.strip() else {}
    except ValueError:
        return None
    if not isinstance(arguments, dict):
        return None
    part: Json = {"functionCall": {"id": call.start.id, "name": call.start.name, "args": arguments}}
    return part | {"thoughtSignature": call.start.signature} if call.start.signature else part


def _build_part(event: Event) -> Json | None:
    match event:
        case TextDelta() | RefusalDelta():
            return {"text": event.text} if event.text else None
        case ReasoningDelta():
            return {"text": event.text, "thought": True} if event.text else None
        case ReasoningSignature():
            return {"thought": True, "thoughtSignature": _build_signature(event.signature)}
        case RedactedReasoning():
            return {"thought": True, "thoughtSignature": build_redacted(event.data)}
        case ImageOutput():
            return {"inlineData": {"mimeType": event.media_type, "data": event.data}}
    return None


def _build_signature(signature: str) -> str:
    if signature.startswith(GEMINI_PREFIX):
        return signature.removeprefix(GEMINI_PREFIX)
    return build_foreign(signature)


def build_usage_metadata(usage: Usage, reasoning_tokens: int) -> Json:
    """Build the usage metadata; like Gemini, omit cached and reasoning tokens if there are none."""
    metadata: Json = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": max(usage.completion_tokens - reasoning_tokens, 0),
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens:
        metadata["cachedContentTokenCount"] = usage.cached_tokens
    if reasoning_tokens:
        metadata["thoughtsTokenCount"] = reasoning_tokens
    return metadata


class GenerateContentSerializer:
    """Writes events as a stream of this format. Each function call is sent as a whole.

    ``write`` raises ``ProviderBadResponse`` if unfinished calls would take more than ``MAX_HELD_BYTES``.
    """

    __slots__ = ("_candidates", "_chunk_tail", "_has_logprobs", "_held_bytes", "_identity_fields", "_report")

    def __init__(self, model: str, answer_id: str) -> None:
        self._identity_fields = {"modelVersion": model, "responseId": answer_id}
        self._chunk_tail = b"}]," + orjson.dumps(self._identity_fields)[1:] + b"\n\n"
        self._candidates: dict[int, _WrittenCandidate] = {}
        self._held_bytes = 0
        self._has_logprobs = False  # the answer has log probabilities
        self._report: UsageReport | None = None

    def write(self, event: Event) -> bytes:
        # Hot path for nearly every event of a stream.
        if type(event) is TextDelta and event.text and not self._has_logprobs:
            return _TEXT_EVENT % (orjson.dumps(event.text), event.choice, self._chunk_tail)
        if type(event) is ReasoningDelta and event.text:
            return _THOUGHT_EVENT % (orjson.dumps(event.text), event.choice, self._chunk_tail)
        match event:
            case ToolCallStart() | ToolCallDelta():
                self._hold_call(event)
            case ChoiceFinished():
                candidate = self._candidates.setdefault(event.choice, _WrittenCandidate())
                candidate.reason = candidate.reason or event.reason
            case UsageReport():
                self._report = event
            case LogprobsReport():
                self._candidates.setdefault(event.choice, _WrittenCandidate()).logprobs += event.tokens
                self._has_logprobs = True
            case StreamEnd():
                return self._build_last_chunk()
            case TextDelta() | RefusalDelta() | ReasoningSignature() | RedactedReasoning() | ImageOutput():
                part = _build_part(event)
                return b"" if part is None else self._build_part_chunk(part, event.choice)
        return b""

    def _build_part_chunk(self, part: Json, choice: int) -> bytes:
        logprobs_field = (
            self._candidates[choice].take_logprobs() if self._has_logprobs and choice in self._candidates else {}
        )
        return self._build_chunk([_build_candidate([part], choice) | logprobs_field])

    def _hold_call(self, event: ToolCallStart | ToolCallDelta) -> None:
        self._held_bytes += _record_call(self._candidates, event)
        if self._held_bytes > MAX_HELD_BYTES:
            raise ProviderBadResponse("The provider's answer has unfinished tool calls", phase="stream")

    def _build_last_chunk(self) -> bytes:
        candidates = []
        for index, candidate in sorted(self._candidates.items()) or [(0, _WrittenCandidate())]:
            parts, end_fields = candidate.build_end()
            # Google's SDK treats a content without parts as a broken answer; Gemini, too, ends with an empty text.
            candidates.append(_build_candidate(parts or [{"text": ""}], index) | end_fields)
        chunk_fields: Json = {}
        if self._report is not None:
            chunk_fields["usageMetadata"] = build_usage_metadata(self._report.usage, self._report.reasoning_tokens)
        return self._build_chunk(candidates, chunk_fields)

    def _build_chunk(self, candidates: list[Json], extra_fields: Json | None = None) -> bytes:
        return b"data: %b\n\n" % exact_json.dumps(
            {"candidates": candidates, **(extra_fields or {}), **self._identity_fields}
        )


def _build_candidate(parts: list[Json], index: int) -> Json:
    return {"content": {"parts": parts, "role": "model"}, "index": index}


def _record_call(candidates: dict[int, _WrittenCandidate], event: ToolCallStart | ToolCallDelta) -> int:
    calls = candidates.setdefault(event.choice, _WrittenCandidate()).calls
    if isinstance(event, ToolCallStart):
        calls.setdefault(event.index, _FunctionCall(event))
        return _CALL_BYTES
    if event.index in calls:
        calls[event.index].arguments.append(event.arguments)
    return _FRAGMENT_BYTES + len(event.arguments)


def build_answer(events: Iterable[Event], *, model: str, answer_id: str) -> bytes:
    """Build a whole answer from events. Raises the error of a ``StreamError``."""
    candidates: dict[int, _WrittenCandidate] = {}
    contents: dict[int, list[Json]] = {}
    report: UsageReport | None = None
    for event in events:
        match event:
            case ToolCallStart() | ToolCallDelta():
                _record_call(candidates, event)
            case ChoiceFinished():
                candidates.setdefault(event.choice, _WrittenCandidate()).reason = event.reason
            case UsageReport():
                report = event
            case LogprobsReport():
                candidates.setdefault(event.choice, _WrittenCandidate()).logprobs += event.tokens
            case StreamError():
                raise event.error
            case _ if (part := _build_part(event)) is not None:
                _append_part(contents.setdefault(getattr(event, "choice", 0), []), part)
    candidate_bodies = []
    for index in sorted(candidates.keys() | contents.keys()) or [0]:
        calls, end_fields = candidates.get(index, _WrittenCandidate()).build_end()
        parts = [_close_part(part) for part in contents.get(index, [])] + calls
        candidate_bodies.append(_build_candidate(parts or [{"text": ""}], index) | end_fields)
    answer: Json = {"candidates": candidate_bodies}
    if report is not None:
        answer["usageMetadata"] = build_usage_metadata(report.usage, report.reasoning_tokens)
    return exact_json.dumps({**answer, "modelVersion": model, "responseId": answer_id})


def _append_part(parts: list[Json], part: Json) -> None:
    """Append a part, or extend the last one.

    A text extends the last part if both are reasoning or neither is. A signature is added to the last part if that is
    reasoning. The pieces of a text are kept as a list until ``_close_part``.
    """
    last_part = parts[-1] if parts else None
    if last_part is None or "thoughtSignature" in last_part or "inlineData" in last_part or "inlineData" in part:
        parts.append(_open_part(part))
    elif last_part.get("thought") is part.get("thought"):
        if "text" in part:
            last_part.setdefault("text", []).append(part["text"])
        if "thoughtSignature" in part:
            last_part["thoughtSignature"] = part["thoughtSignature"]
    else:
        parts.append(_open_part(part))


def _open_part(part: Json) -> Json:
    return part | {"text": [part["text"]]} if "text" in part else dict(part)


def _close_part(part: Json) -> Json:
    return part | {"text": "".join(part["text"])} if "text" in part else part
