"""Responses in the OpenAI API format: checks of a request, passthrough of answers, and usage.

An event has its type twice: as its name and in its data. The last event contains the whole response.
"""

import re
from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.domain.inference_request import STORED_RESPONSES, InferenceRequest
from gateway.domain.token_estimate import estimate_sample, estimate_text
from gateway.domain.usage import (
    MAX_TOKENS,
    Usage,
    attach_details,
    build_reported_usage,
    estimate_tokens,
    find_cost,
    find_modalities,
    find_tier,
    parse_count,
)
from gateway.errors import GatewayError, InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats.chat.openai.chat import check_sampling, find_affinity_key, parse_answer_object, parse_any_object
from gateway.formats.chat.responses.compaction import asks_for_summary, is_summary
from gateway.formats.chat.responses.failure import build_failure
from gateway.formats.chat.responses.reasoning import drop_gateway_items
from gateway.formats.errors import openai as errors
from gateway.formats.references.stored import list_created_ids
from gateway.formats.stream import PassthroughStream
from gateway.formats.stream_tail import DONE_MARK, HeadTailBuffer, split_events
from gateway.formats.usage.prompt_tokens import estimate_prompt, fill_counts
from gateway.formats.usage.token_bounds import MAX_RESERVED_OUTPUT, MESSAGE_TOKENS, PART_TOKENS, bound_text
from gateway.formats.wire import sse
from gateway.formats.wire.fields import (
    Body,
    name_json_type,
    parse_flag,
    parse_integer,
    parse_list,
    parse_model,
    parse_object,
    read_text,
)
from gateway.formats.wire.json_values import as_object, list_objects, loads_or_none

_PROMPT_FIELDS = ("input", "instructions", "tools", "text", "prompt")
"""Fields of a body that are part of the prompt."""
_MEDIA_FIELDS = frozenset({"image_url", "file_data", "file_url", "file_id", "data", "result"})
"""String fields of an item that represent an image, a recording or a file."""
_ENCRYPTED_FIELD = "encrypted_content"
_TEXT_FIELDS = frozenset(
    {"input", "instructions", "content", "text", "refusal", "arguments", "output", _ENCRYPTED_FIELD}
)

_START_EVENTS = frozenset({"response.created", "response.in_progress", "response.queued"})
_FAILED_EVENT = "response.failed"
_END_EVENTS = frozenset({"response.completed", "response.incomplete", "response.cancelled", _FAILED_EVENT})
UNFINISHED_STATUSES = frozenset({"queued", "in_progress"})
# The names of events about a part of the response have at least two dots; those about the whole response have one.
_PART_EVENT_NAME = re.compile(rb"response\.[a-z_]+\.[a-z_.]+\Z")
_PART_EVENTS_PATTERN = re.compile(rb"(?:event: response\.[a-z_]+\.[a-z_.]+\ndata: \{[^\r\n]*+(?<=\})\n\n)++")
_EVENT_NAME_PATTERN = re.compile(rb"(?:\A|[\r\n])event: ?([^\r\n]*)")
_UNKNOWN_ERROR = errors.ErrorBody(errors.NO_REASON)

_LIMIT_CODES = frozenset({"rate_limit_exceeded", "insufficient_quota"})
_INVALID_REQUEST_CODES = frozenset(
    {
        "bio_policy", "context_length_exceeded", "empty_image_file", "failed_to_download_image",
        "image_content_policy_violation", "image_file_not_found", "image_file_too_large", "image_parse_error",
        "image_too_large", "image_too_small", "invalid_base64_image", "invalid_image", "invalid_image_format",
        "invalid_image_mode", "invalid_image_url", "invalid_prompt", "invalid_request_error",
        "misalignment_policy_violation", "unsupported_image_media_type",
    },
)  # fmt: skip
"""Codes of ``ResponseError``, and a type of OpenAI's errors, that mean an invalid client request."""
_STATUSES_BY_CODE: Mapping[str, int] = dict.fromkeys(_INVALID_REQUEST_CODES, 400) | dict.fromkeys(_LIMIT_CODES, 429)


def parse_responses_inference(body: Body) -> InferenceRequest:
    """Check a parsed body and return the request. Raises ``InvalidRequest`` naming the field.

    The token bound excludes the content of an earlier response, which only its provider knows.
    """
    model = parse_model(body)
    _check_input(body.get("input"))
    read_text(body, "instructions")
    parse_object(body, "prompt")
    parse_list(body, "tools")
    read_text(body, "user")
    parse_flag(body, "background")
    check_sampling(body)
    max_output_tokens = parse_integer(body, "max_output_tokens", 1, MAX_TOKENS)
    chars, tokens = _measure_prompt({name: body[name] for name in _PROMPT_FIELDS if body.get(name) is not None})
    return InferenceRequest(
        operation="responses",
        model=model,
        body=body,
        stream=parse_flag(body, "stream"),
        prompt_chars=chars,
        max_prompt_tokens=tokens,
        max_output_tokens=min(max_output_tokens or MAX_RESERVED_OUTPUT, MAX_RESERVED_OUTPUT),
        affinity_key=_parse_affinity_key(body),
        compaction="item" if asks_for_summary(body.get("input")) else "",
    )


def _check_input(value: object) -> None:
    """Raise ``InvalidRequest`` unless ``input`` is a text, a list of objects, or absent."""
    if value is None or isinstance(value, str):
        return
    if not isinstance(value, list):
        raise InvalidRequest(
            f"'input' must be a string or an array of items, not {name_json_type(value)}", param="input"
        )
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            param = f"input[{index}]"
            raise InvalidRequest(f"'{param}' must be an object, not {name_json_type(item)}", param=param)


def _parse_affinity_key(body: Body) -> str | None:
    """Return the affinity key, or None. Raises ``InvalidRequest``.

    Requests that store or use responses share a key, because one provider must serve them.
    """
    read_text(body, "previous_response_id")
    conversation = body.get("conversation")
    if conversation is not None and not isinstance(conversation, str | dict):
        json_type = name_json_type(conversation)
        raise InvalidRequest(f"'conversation' must be a string or an object, not {json_type}", param="conversation")
    is_continued = conversation is not None or body.get("previous_response_id") is not None
    is_stored = parse_flag(body, "store") or body.get("store") is None
    return STORED_RESPONSES if is_continued or is_stored else find_affinity_key(body)


def _measure_prompt(value: Any) -> tuple[int, int]:
    chars = tokens = 0
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        name, item = pending.pop()
        if isinstance(item, list):
            pending.extend((name, member) for member in item)
        elif not isinstance(item, str):
            tokens += MESSAGE_TOKENS
            pending.extend(item.items() if isinstance(item, dict) else ())
        elif name in _MEDIA_FIELDS:
            tokens += PART_TOKENS
        else:
            # Encrypted reasoning is longer than its text, so an estimate from its length is high enough.
            is_encrypted = name == _ENCRYPTED_FIELD and not is_summary(item)
            tokens += estimate_tokens(len(item)) if is_encrypted else bound_text(item)
            chars += len(item) if name in _TEXT_FIELDS else 0
    return chars, tokens


def _list_texts(value: Any) -> list[str]:
    texts: list[str] = []
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        name, item = pending.pop()
        if isinstance(item, list):
            pending.extend((name, member) for member in item)
        elif isinstance(item, dict):
            pending.extend(item.items())
        elif isinstance(item, str) and name in _TEXT_FIELDS:
            texts.append(item)
    return texts


def build_responses_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body with the provider's model name, without other providers' reasoning, and with summaries as text."""
    body = inference.body | {"model": model}
    if (items := body.get("input")) is not None:
        body["input"] = drop_gateway_items(items)
    return body


def parse_responses_answer(raw: bytes, inference: InferenceRequest, secrets: errors.Secrets = ()) -> Usage:
    """Return the usage of an unstreamed answer, and record the ids of what the answer created.

    Raises the error that the answer reports, or ``ProviderBadResponse``.
    """
    answer = parse_response(raw, secrets)
    record_created(answer, inference)
    return parse_response_usage(answer, inference)


def record_created(answer: Mapping[str, Any], inference: InferenceRequest) -> None:
    """Record the ids of what a whole answer created, because the client may refer to them."""
    inference.made[:] = list_created_ids(answer, keeps_answer=inference.body.get("store") is not False)


def parse_response(raw: bytes, secrets: errors.Secrets = ()) -> dict[str, Any]:
    """Parse a whole response. Raises the error that the answer reports, or ``ProviderBadResponse``."""
    value = parse_any_object(raw)
    if value.get("object") != "response":
        parse_answer_object(raw, secrets)
        raise ProviderBadResponse("The provider's answer is not a response")
    if value.get("status") == "failed":
        raise _parse_failure(value.get("error"), secrets, phase="answer")
    return value


def parse_response_usage(answer: Mapping[str, Any], inference: InferenceRequest) -> Usage:
    """Return the usage of a whole response. Counts that are missing, or 0 although it has output, are estimated.

    For an unfinished response the estimate is all of its reserved output.
    """
    usage = attach_details(parse_usage_object(answer.get("usage")) or Usage(source="estimate"), _find_details(answer))
    if not answer.get("output") and usage.source == "upstream":
        return usage

    def count_answer() -> int:
        status = answer.get("status")
        is_unfinished = isinstance(status, str) and status in UNFINISHED_STATUSES
        return (
            inference.max_output_tokens
            if is_unfinished
            else estimate_text("\n".join(_list_texts(answer.get("output"))))
        )

    return fill_counts(usage, inference, count_answer)


def parse_usage_object(raw: object) -> Usage | None:
    """Parse a ``ResponseUsage``; None if missing or implausible."""
    if not isinstance(raw, Mapping):
        return None
    prompt_tokens, completion_tokens = parse_count(raw.get("input_tokens")), parse_count(raw.get("output_tokens"))
    if prompt_tokens is None or completion_tokens is None:
        return None
    details = as_object(raw.get("input_tokens_details"))
    cached_tokens, written_tokens = details.get("cached_tokens"), details.get("cache_write_tokens")
    reasoning_tokens = as_object(raw.get("output_tokens_details")).get("reasoning_tokens")
    usage = build_reported_usage(
        prompt_tokens,
        completion_tokens,
        cached_tokens=cached_tokens,
        written_tokens=written_tokens,
        reasoning_tokens=reasoning_tokens,
    )
    return attach_details(usage, find_modalities(raw.get("input_tokens_details"), raw.get("output_tokens_details")))


def _find_details(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response's searches, service tier and cost (OpenRouter's) as ``UsageDetails`` fields.

    Opening or searching a page is not charged (platform.openai.com/docs/pricing, "Built-in tools").
    """
    details: dict[str, Any] = {}
    if tier := find_tier(answer.get("service_tier")):
        details["tier"] = tier
    if (cost := find_cost(as_object(answer.get("usage")))) is not None:
        details["cost_nanos"] = cost
    for item in list_objects(answer.get("output")):
        field = _SEARCH_FIELDS_BY_ITEM_TYPE.get(str(item.get("type")))
        if field and as_object(item.get("action")).get("type") in (None, "search"):
            details[field] = details.get(field, 0) + 1
    return details


_SEARCH_FIELDS_BY_ITEM_TYPE = {"web_search_call": "searches", "file_search_call": "file_searches"}


def _parse_failure(error: object, secrets: errors.Secrets, *, phase: str = "stream") -> ProviderError:
    error_value = errors.parse_error_value({"error": error}, secrets) or _UNKNOWN_ERROR
    status = _STATUSES_BY_CODE.get(error_value.code or "") or _STATUSES_BY_CODE.get(error_value.type or "")
    if status is None:
        return errors.build_reported_error(error_value, phase)
    return errors.parse_provider_error(status, orjson.dumps({"error": attrs.asdict(error_value)}), secrets)


def _make_incomplete_error() -> ProviderBadResponse:
    return ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")


def find_response_id(raw: bytes) -> str:
    """Return the id of a response, or an empty text. ``raw`` is a whole response or the first events of a stream."""
    is_json = raw.lstrip().startswith(b"{")
    for payload in (raw,) if is_json else (sse.parse_data(event) or b"" for event in split_events(raw)):
        value = as_object(loads_or_none(payload))
        if isinstance(response_id := as_object(value.get("response", value)).get("id"), str):
            return response_id
    return ""


class ResponsesPassthrough(PassthroughStream):
    """Forwards complete events up to the event that ends the response; see ``StreamTransform``.

    Events are unchanged, except that secrets and URLs in a failure message are masked. Events about the response itself
    (created, queued, in progress) are forwarded but not counted: until an answer begins, another channel may be tried.

    Attributes:
        events: number of complete events with data so far, except those about the response itself.
        ended: the response is complete, incomplete, cancelled, or failed after it began. Everything afterwards is
            dropped: some servers add the end mark of chat streams after the last event, and no client needs it.
    """

    __slots__ = ("_buffer", "_inference", "_usage")

    def __init__(self, inference: InferenceRequest, secrets: errors.Secrets = ()) -> None:
        super().__init__(secrets)
        self._inference = inference
        self._buffer = HeadTailBuffer()
        self._usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        self._buffer.feed(data)
        # Fast path: a typical piece consists of complete events about parts of the response and needs no parsing.
        is_complete = data.endswith(b"\n\n") and not self._splitter.has_pending
        if (
            is_complete
            and not self.closed
            and _PART_EVENTS_PATTERN.fullmatch(data)
            and (data.isascii() or sse.is_utf8(data))
        ):
            self._has_started = True
            self.events += data.count(b"\n\n")
            return data
        return self._feed_by_event(data)

    def _filter_event(self, event: bytes, payload: bytes) -> bytes:
        if payload.startswith(DONE_MARK):  # no client takes the mark for the event that ends a response
            self.error = _make_incomplete_error()
            return b""
        kind, value = _parse_event(event, payload)
        if kind == "error" or (not kind.startswith("response.") and value.get("error")):
            self.error = _parse_failure(value.get("error") or _pick_error_fields(value), self._secrets)
            return b""
        if kind in _END_EVENTS and value:
            return self._finish_response(event, kind, value)
        if kind not in _START_EVENTS:
            self.events += 1
        return event

    def _finish_response(self, event: bytes, kind: str, value: dict[str, Any]) -> bytes:
        answer = as_object(value.get("response"))
        if kind == _FAILED_EVENT and not self.events:
            self.error = _parse_failure(answer.get("error"), self._secrets)
            return b""
        self.ended = True
        record_created(answer, self._inference)
        if answer.get("output") or parse_usage_object(answer.get("usage")) is not None:
            self._usage = parse_response_usage(answer, self._inference)
        return _mask_failure(event, value, self._secrets) if kind == _FAILED_EVENT else event

    def finish(self) -> bytes:
        """Return the remaining bytes, with the last event's blank line.

        Raises the error that the stream reports, and ``ProviderBadResponse`` if the stream is incomplete.
        """
        last_event = self._splitter.take().rstrip(b"\r\n")
        output = (
            self._forward_event(last_event + b"\n\n")
            if last_event.endswith((b"}", DONE_MARK)) and not self.closed
            else b""
        )
        if self.error is not None:
            raise self.error
        if not self.ended:
            raise _make_incomplete_error()
        return output

    def write_error(self, error: GatewayError, request_id: str) -> bytes:
        start_response, sequence_number = _find_stream_state(self._buffer)
        response = start_response or {
            "id": f"resp_{request_id}",
            "object": "response",
            "model": self._inference.model,
            "output": [],
        }
        return build_failure(error, request_id, response, sequence_number)

    def parse_usage(self) -> Usage:
        if self._usage is not None:
            return self._usage
        if not self.events:
            return Usage(source="estimate") if self._buffer.size else Usage()
        event_count, text = _sample_text(self._buffer.tail)
        if event_count < self.events and not self._buffer.is_whole:
            head_event_count, head_text = _sample_text(self._buffer.head)
            event_count, text = event_count + head_event_count, text + head_text
        completion_tokens = estimate_sample((text,), event_count, self.events)
        return Usage(estimate_prompt(self._inference), completion_tokens, source="estimate")


def _parse_event(event: bytes, payload: bytes) -> tuple[str, dict[str, Any]]:
    """Return an event's type and its data.

    The data is empty if it is not an object. The data of an event about a part of the response is not parsed.
    """
    match = _EVENT_NAME_PATTERN.search(event) if sse.has_name(event) else None
    name = match[1] if match else b""
    if _PART_EVENT_NAME.match(name):
        return name.decode(), {}
    value = as_object(loads_or_none(payload))
    kind = value.get("type")
    if name == b"error" or not isinstance(kind, str):
        kind = name.decode(errors="replace")
    return kind, value


def _find_stream_state(buffer: HeadTailBuffer) -> tuple[dict[str, Any], int]:
    """Return the response as it began, and the sequence number for the next event.

    The response is empty if the stream has not begun, or if its first event was too large to be kept whole.
    """
    response: dict[str, Any] = {}
    last_number = -1
    for event in (*([] if buffer.is_whole else split_events(buffer.head)), *split_events(buffer.tail)):
        value = as_object(loads_or_none(sse.parse_data(event) or b""))
        kind, number = value.get("type"), value.get("sequence_number")
        if kind in ("error", _FAILED_EVENT) or value.get("error"):
            continue
        if kind == "response.created":
            response = as_object(value.get("response"))
        if type(number) is int:
            last_number = max(last_number, number)
    return response, last_number + 1


def _pick_error_fields(value: dict[str, Any]) -> dict[str, Any]:
    return {name: value.get(name) for name in ("message", "param", "code")}


def _mask_failure(event: bytes, value: dict[str, Any], secrets: errors.Secrets) -> bytes:
    answer = value.get("response")
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or not isinstance(message := error.get("message"), str):
        return event
    error["message"] = errors.mask(message, secrets)
    if error["message"] == message:
        return event
    try:
        return b"event: response.failed\ndata: " + exact_json.dumps(value) + b"\n\n"
    except orjson.JSONEncodeError:  # nested too deeply to be serialized
        return b'event: response.failed\ndata: {"type":"response.failed"}\n\n'


def _sample_text(raw: bytes) -> tuple[int, str]:
    event_count, texts = 0, []
    for event in split_events(raw):
        value = as_object(loads_or_none(sse.parse_data(event) or b""))
        kind = value.get("type")
        if not isinstance(kind, str) or kind in _START_EVENTS | _END_EVENTS:
            continue
        event_count += 1
        delta = value.get("delta")
        if isinstance(delta, str) and kind != "response.audio.delta":
            texts.append(delta)
    return event_count, "".join(texts)
