"""Parse Gemini's answers into events: streams of ``:streamGenerateContent?alt=sse``, and unstreamed answers.

A chunk of a stream has the same shape as a whole answer (``GenerateContentResponse``). Signatures:
ai.google.dev/gemini-api/docs/thought-signatures. The format has no end mark: an answer is complete if the connection
has ended and every candidate has a finish reason. An error in the middle is often bare JSON after the last event, not
an event.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.errors import ProviderBadResponse, ProviderError, ProviderRejected
from gateway.formats.chat import model as chat
from gateway.formats.chat.gemini.logprobs import parse_logprobs
from gateway.formats.chat.gemini.usage_metadata import attach_searches, has_completion, parse_usage_metadata
from gateway.formats.chat.openai.chunk_reader import MAX_CALLS
from gateway.formats.errors.openai import Secrets, build_reported_error, mask, parse_error_value
from gateway.formats.wire import sse
from gateway.formats.wire.fields import MAX_CHOICES
from gateway.formats.wire.json_values import as_text

_FILTER_REASONS = frozenset(
    {"SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY",
     "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "ESCALATION", "MODEL_ARMOR"},
)  # fmt: skip
_LENGTH_REASONS = frozenset({"MAX_TOKENS", "CONTINUATION"})
_MODEL_FAILURE_REASONS = frozenset(
    {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE",
     "MISSING_THOUGHT_SIGNATURE"},
)  # fmt: skip
"""Finish reasons of a failed or interrupted answer, even if it has content. They are reported as errors: OpenAI has no
equivalent reason, "stop" would present a partial answer as complete, and a retry may succeed.
"""
_UNSPECIFIED_REASONS = frozenset({"", "FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED"})
_USUAL_FIELDS = frozenset({"candidates", "usageMetadata", "modelVersion", "responseId", "createTime"})
_PLAIN_CANDIDATE_FIELDS = frozenset({"content", "index"})
"""Fields of a candidate in a chunk that has only a text: the content and the candidate's index."""
_CALL_FIELD = b'"functionCall"'
_INCOMPLETE_STREAM = "The provider's stream ended before it was complete"


class GenerateContentParser:
    """Parses a stream; see ``StreamParser``. ``ChoiceFinished`` comes only at the end: content may follow a reason.

    ``answer_id`` and ``model`` are used if Gemini reports none.
    """

    __slots__ = ("_answer", "_closed", "_has_started", "_splitter")

    def __init__(self, answer_id: str, model: str, secrets: Secrets = ()) -> None:
        self._answer = _AnswerReader(answer_id, model, secrets, "stream")
        self._splitter = sse.SseSplitter()
        self._has_started = False
        self._closed = False

    def feed(self, data: bytes) -> list[chat.Event]:
        """Return the events of a piece. Never includes ``StreamEnd``, because the format has no end mark."""
        if self._closed:
            return []
        events: list[chat.Event] = []
        try:
            for event in self._splitter.split(data):
                events += self._read_event(event)
        except sse.EventTooLong as error:
            self._closed = True
            events.append(chat.StreamError(ProviderBadResponse(str(error), phase="stream")))
        except ProviderError as provider_error:
            self._closed = True
            events.append(chat.StreamError(provider_error))
        return events

    def finish(self) -> list[chat.Event]:
        if self._closed:
            return []
        self._closed = True
        last_bytes = self._splitter.take()
        return [*self._read_event(last_bytes, is_last=True), *self._answer.finish()]

    @property
    def held_bytes(self) -> int:
        return self._splitter.held_bytes

    @property
    def noise(self) -> int:
        return self._splitter.noise

    def take_usage(self) -> chat.UsageReport | None:
        return self._answer.take_usage()

    def _read_event(self, event: bytes, *, is_last: bool = False) -> Iterable[chat.Event]:
        if not self._has_started:
            self._has_started = True
            event = event.removeprefix(sse.BOM)
        payload = sse.parse_data(event)
        if payload:
            try:
                value = orjson.loads(payload)
            except orjson.JSONDecodeError as error:
                value = _load_refused_json(payload, error, is_last=is_last)
            text = self._answer.read_text(value)
            if text is not None:
                return (text,)
            return self._answer.read(exact_json.load_exactly(payload, value) if _CALL_FIELD in payload else value)
        self._splitter.noise += len(event)
        return () if payload is not None else self._parse_bare_error(event.strip(), is_last=is_last)

    def _parse_bare_error(self, text: bytes, *, is_last: bool) -> Iterator[chat.Event]:
        """Parse an event without data: an error as bare JSON. Anything else is ignored, as the standard requires.

        Raises the reported error, or ``ProviderBadResponse`` for broken JSON at the end of the stream.
        """
        if not text.startswith((b"{", b"[")):
            return
        try:
            value = exact_json.loads(text)
        except orjson.JSONDecodeError:
            if is_last:
                raise ProviderBadResponse(_INCOMPLETE_STREAM, phase="stream") from None
            return
        if parse_error_value(value) is not None:
            yield from self._answer.read(value)


def _load_refused_json(payload: bytes, error: orjson.JSONDecodeError, *, is_last: bool) -> Any:
    try:
        return exact_json.load_refused_json(payload, error)
    except orjson.JSONDecodeError:
        message = _INCOMPLETE_STREAM if is_last else "The provider's stream has an event that is not JSON"
        raise ProviderBadResponse(message, phase="stream") from None


def parse_answer(raw: bytes, *, answer_id: str, model: str, secrets: Secrets = ()) -> list[chat.Event]:
    """Parse an unstreamed answer into events, up to ``StreamEnd``.

    Raises the error that the answer reports, ``ProviderRejected`` if the prompt was blocked, and
    ``ProviderBadResponse`` for an answer that is incomplete or no answer.
    """
    try:
        value = exact_json.loads(raw)
    except orjson.JSONDecodeError:
        raise ProviderBadResponse("The provider's answer is not JSON") from None
    answer = _AnswerReader(answer_id, model, secrets, "answer")
    # A stream without ``alt=sse`` is an array of chunks.
    chunks = value if isinstance(value, list) and value else [value]
    return [*(event for chunk in chunks for event in answer.read(chunk)), *answer.finish()]


@attrs.define
class _Candidate:
    """The state of one candidate.

    Attributes:
        is_thinking: whether the last content so far is unsigned reasoning.
    """

    call_count: int = 0
    is_thinking: bool = False
    has_content: bool = False
    reason: str | None = None


class _AnswerReader:
    """Converts the chunks of one answer into events.

    Args:
        phase: the phase that errors report.
    """

    __slots__ = (
        "_candidates",
        "_has_started",
        "_id",
        "_is_silent",
        "_model",
        "_phase",
        "_search_chunk",
        "_secrets",
        "_usage_metadata",
    )

    def __init__(self, answer_id: str, model: str, secrets: Secrets, phase: str) -> None:
        self._id = answer_id
        self._model = model
        self._secrets = secrets
        self._phase = phase
        self._candidates: dict[int, _Candidate] = {}
        self._has_started = False
        self._is_silent = True  # no content so far, not even reasoning
        self._search_chunk: dict[str, Any] = {}  # the last chunk with searches
        self._usage_metadata: object = None  # the last usage metadata, not parsed yet

    def read(self, value: object) -> Iterator[chat.Event]:
        """Yield the events of a chunk or an unstreamed answer. Raises ``ProviderError``."""
        error = parse_error_value(value, self._secrets)
        if error is not None:
            raise build_reported_error(error, self._phase)
        if not isinstance(value, dict):
            raise self._make_error("The provider's answer is not a JSON object")
        self._check_prompt(value.get("promptFeedback"))
        metadata = value.get("usageMetadata")
        if not self._has_started:
            self._has_started = True
            usage_report = parse_usage_metadata(metadata)
            yield chat.MessageStart(
                as_text(value.get("responseId")) or self._id,
                as_text(value.get("modelVersion")) or self._model,
                usage=usage_report.usage if usage_report else None,
            )
        for candidate in self._expect_list(value.get("candidates")):
            candidate_fields = self._expect_object(candidate)
            if "groundingMetadata" in candidate_fields:
                self._search_chunk = value
            yield from self._parse_candidate(candidate_fields)
        if has_completion(metadata) or (metadata is not None and self._is_silent and self._has_stopped):
            self._usage_metadata = metadata
        if self._has_stopped and (report := self.take_usage()) is not None:
            yield report

    def read_text(self, value: object) -> chat.TextDelta | chat.ReasoningDelta | None:
        """Return the text or reasoning of a chunk that has nothing else, like most chunks; None for any other chunk.

        The chunk with which a text or reasoning begins also gives None. The usage is stored unparsed: each chunk
        repeats the totals so far, so only the last one matters.
        """
        if type(value) is not dict or not value.keys() <= _USUAL_FIELDS:
            return None
        delta = _find_only_text(value.get("candidates"))
        if delta is None:
            return None
        index, text, is_thought = delta
        candidate = self._candidates.get(index)
        if candidate is None or candidate.is_thinking is not is_thought or not (is_thought or candidate.has_content):
            return None
        metadata = value.get("usageMetadata")
        if has_completion(metadata):
            self._usage_metadata = metadata
        return chat.ReasoningDelta(text, index) if is_thought else chat.TextDelta(text, index)

    def take_usage(self) -> chat.UsageReport | None:
        metadata, self._usage_metadata = self._usage_metadata, None
        report = parse_usage_metadata(metadata)
        if report is None or not self._search_chunk:
            return report
        return attrs.evolve(report, usage=attach_searches(report.usage, self._search_chunk))

    def finish(self) -> list[chat.Event]:
        if self._phase == "stream" and not self._has_stopped:
            raise self._make_error(_INCOMPLETE_STREAM)
        if not self._candidates:
            raise self._make_error("The provider's answer has no candidates")
        finish_events = [
            chat.ChoiceFinished(self._find_reason(candidate), index)
            for index, candidate in sorted(self._candidates.items())
        ]
        report = self.take_usage()
        return [*finish_events, chat.STREAM_END] if report is None else [report, *finish_events, chat.STREAM_END]

    @property
    def _has_stopped(self) -> bool:
        return bool(self._candidates) and all(candidate.reason for candidate in self._candidates.values())

    def _find_reason(self, candidate: _Candidate) -> chat.Reason:
        """Convert the finish reason. An unknown reason counts as ``STOP`` if the candidate has content.

        Raises ``ProviderBadResponse`` if a candidate with an unknown reason has no content.
        """
        reason = candidate.reason or "STOP"
        if reason in _FILTER_REASONS:
            return "content_filter"
        if reason in _LENGTH_REASONS:
            return "length"
        if reason != "STOP" and not candidate.has_content:
            raise self._make_model_error(f"The model gave no answer: {mask(reason, self._secrets)}")
        return "tool_calls" if candidate.call_count else "stop"

    def _check_prompt(self, feedback: object) -> None:
        reason = feedback.get("blockReason") if isinstance(feedback, dict) else None
        if not isinstance(reason, str) or reason in _UNSPECIFIED_REASONS:
            return
        raise ProviderRejected(
            f"The provider blocked the prompt: {mask(reason, self._secrets)}",
            status=400,
            type="upstream_error",
            code="content_policy_violation",
        )

    def _parse_candidate(self, raw: Mapping[str, Any]) -> Iterator[chat.Event]:
        index = raw.get("index") or 0
        if type(index) is not int or not 0 <= index < MAX_CHOICES:
            raise self._make_error("The provider's answer has a candidate with an invalid index")
        candidate = self._candidates.setdefault(index, _Candidate())
        if raw.get("logprobsResult") and (tokens := parse_logprobs(raw["logprobsResult"])):
            yield chat.LogprobsReport(tokens, index)
        content = raw.get("content")
        for part in self._expect_list(self._expect_object(content).get("parts")) if content is not None else ():
            for event in self._parse_part(self._expect_object(part), index, candidate):
                self._is_silent = False
                yield event
        reason = raw.get("finishReason")
        if reason is not None and not isinstance(reason, str):
            raise self._make_error("The provider's answer has a candidate that stopped for no reason")
        if reason is None or reason in _UNSPECIFIED_REASONS:
            return
        if reason in _MODEL_FAILURE_REASONS:
            detail = as_text(raw.get("finishMessage"))
            raise self._make_model_error(f"The model spoiled its answer: {mask(f'{reason} {detail}', self._secrets)}")
        candidate.reason = reason

    def _parse_part(self, part: Mapping[str, Any], index: int, candidate: _Candidate) -> Iterator[chat.Event]:
        signature = as_text(part.get("thoughtSignature"))
        text = as_text(part.get("text"))
        if part.get("thought") is True and "functionCall" not in part:
            if text:
                candidate.is_thinking = True
                yield chat.ReasoningDelta(text, index)
            yield from _parse_signature(signature, index, candidate)
            return
        # Google puts the signature on the part after the reasoning; in the common model it belongs to the reasoning.
        yield from _parse_signature(signature, index, candidate)
        events = [*self._parse_call(part, index, candidate), *_parse_image(part, index)]
        if text:
            events.append(chat.TextDelta(text, index))
        if events:
            candidate.is_thinking = False
            candidate.has_content = True
        yield from events

    def _parse_call(self, part: Mapping[str, Any], index: int, candidate: _Candidate) -> Iterator[chat.Event]:
        raw = part.get("functionCall")
        if raw is None:
            return
        call = self._expect_object(raw)
        name = as_text(call.get("name"))
        if not name:
            raise self._make_error("The provider's answer has a tool call without a name")
        call_index = candidate.call_count
        candidate.call_count += 1
        if candidate.call_count > MAX_CALLS:
            raise self._make_error("The provider's answer has too many tool calls")
        call_id = as_text(call.get("id")) or f"call_{self._id}_{index}_{call_index}"
        yield chat.ToolCallStart(call_index, call_id, name, index, as_text(part.get("thoughtSignature")) or None)
        yield chat.ToolCallDelta(call_index, self._build_arguments(call.get("args")), index)

    def _build_arguments(self, args: object) -> str:
        try:
            return exact_json.dumps({} if args is None else self._expect_object(args)).decode()
        except orjson.JSONEncodeError:
            raise self._make_error("The provider's answer has a tool call that is nested too deeply") from None

    def _expect_object(self, value: object) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        raise self._make_error("The provider's answer has something else where an object should be")

    def _expect_list(self, value: object) -> list[Any]:
        if value is None or isinstance(value, list):
            return value or []
        raise self._make_error("The provider's answer has something else where an array should be")

    def _make_error(self, message: str) -> ProviderBadResponse:
        return ProviderBadResponse(message, phase=self._phase)

    def _make_model_error(self, message: str) -> ProviderBadResponse:
        error = self._make_error(message)
        error.failure_scope = "nobody"
        error.answered = True
        return error


def _find_only_text(candidates: object) -> tuple[int, str, bool] | None:
    """Return index, text and whether it is reasoning, for a single candidate with a single text part; else None."""
    if type(candidates) is not list or len(candidates) != 1:
        return None
    candidate = candidates[0]
    if type(candidate) is not dict or not candidate.keys() <= _PLAIN_CANDIDATE_FIELDS:
        return None
    content = candidate.get("content")
    parts = content.get("parts") if type(content) is dict else None
    if type(parts) is not list or len(parts) != 1 or type(part := parts[0]) is not dict:
        return None
    is_thought = part.get("thought") is True
    index, text = candidate.get("index", 0), part.get("text")
    if len(part) != 1 + is_thought or type(text) is not str or not text or type(index) is not int:
        return None
    return index, text, is_thought


def _parse_signature(signature: str, index: int, candidate: _Candidate) -> Iterator[chat.Event]:
    if signature and candidate.is_thinking:
        candidate.is_thinking = False
        yield chat.ReasoningSignature(chat.GEMINI_PREFIX + signature, index)


def _parse_image(part: Mapping[str, Any], index: int) -> Iterator[chat.Event]:
    """Yield the image of a part, if it has one. Audio and other data are dropped: a chat answer cannot hold them."""
    blob = part.get("inlineData")
    if not isinstance(blob, dict):
        return
    media_type, data = as_text(blob.get("mimeType")), as_text(blob.get("data"))
    if media_type.startswith("image/") and data:
        yield chat.ImageOutput(media_type, data, index)
