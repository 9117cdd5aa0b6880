"""Responses in the convention: the call, the stream's gate, and the usage of an answer.

Shapes: the convention's OpenAPI document, ``CreateResponse``, ``Response``, ``ResponseUsage``, ``ResponseStreamEvent``.
An event has its type twice, as its name and in its data; the last one carries the whole response.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs
import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_sample, estimate_text
from gateway.domain.usage import MAX_TOKENS, Usage, estimate_tokens, parse_count, share_prompt
from gateway.errors import InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats import sse
from gateway.formats.head_tail_buffer import HeadTailBuffer
from gateway.formats.openai.chat import (
    check_sampling,
    find_sticky,
    parse_answer_object,
    parse_any_object,
)
from gateway.formats.openai.errors import ErrorBody, Secrets, build_reported, mask, parse_error_value, parse_fault
from gateway.formats.openai.fields import (
    Body,
    kind_of,
    parse_flag,
    parse_integer,
    parse_list,
    parse_model,
    read_text,
)
from gateway.formats.openai.stream_tail import DONE, split_events
from gateway.formats.openai.token_bounds import MAX_RESERVED_OUTPUT, MESSAGE_TOKENS, PART_TOKENS, bound_text
from gateway.formats.prompt_tokens import estimate_prompt
from gateway.formats.stream import PassthroughStream

_PROMPT = ("input", "instructions", "tools", "text", "prompt")
"""Fields of a body that become a part of the prompt."""
_MEDIA = frozenset({"image_url", "file_data", "file_url", "file_id", "data", "result"})
"""Strings in an item that stand for a picture, a recording or a file."""
_SEALED = "encrypted_content"
_TEXTS = frozenset({"input", "instructions", "content", "text", "refusal", "arguments", "output", _SEALED})

_BEGINS = frozenset({"response.created", "response.in_progress", "response.queued"})
_FAILED = "response.failed"
_ENDS = frozenset({"response.completed", "response.incomplete", "response.cancelled", _FAILED})
UNFINISHED = frozenset({"queued", "in_progress"})
# Two dots at least: an event about a part of the response. Those about the whole of it have one.
_PART = re.compile(rb"response\.[a-z_]+\.[a-z_.]+\Z")
_PARTS = re.compile(rb"(?:event: response\.[a-z_]+\.[a-z_.]+\ndata: \{[^\r\n]*+(?<=\})\n\n)++")
_NAME = re.compile(rb"(?:\A|[\r\n])event: ?([^\r\n]*)")
_NO_REASON = ErrorBody("The provider gave no reason")

_LIMITED = frozenset({"rate_limit_exceeded", "insufficient_quota"})
_REFUSED = frozenset(
    {
        "bio_policy", "context_length_exceeded", "empty_image_file", "failed_to_download_image",
        "image_content_policy_violation", "image_file_not_found", "image_file_too_large", "image_parse_error",
        "image_too_large", "image_too_small", "invalid_base64_image", "invalid_image", "invalid_image_format",
        "invalid_image_mode", "invalid_image_url", "invalid_prompt", "invalid_request_error",
        "misalignment_policy_violation", "unsupported_image_media_type",
    },
)  # fmt: skip
"""Codes of ``ResponseError``, and the type of the convention's errors, that blame the caller's request."""
_TOGETHER = "responses"
"""What all calls of an account have in common whose answers are stored."""
_STATUS: Mapping[str, int] = MappingProxyType(dict.fromkeys(_REFUSED, 400) | dict.fromkeys(_LIMITED, 429))


def parse_responses_call(body: Body) -> InferenceRequest:
    """A parsed body -> the checked call. Raises ``InvalidRequest`` naming the field.

    Checked is what the gateway relies on or what no provider accepts; every other field passes as it is. What an
    earlier response brings along is in no bound: only its provider knows it.
    """
    model = parse_model(body)
    _check_input(body.get("input"))
    read_text(body, "instructions")
    parse_list(body, "tools")
    read_text(body, "user")
    parse_flag(body, "background")
    check_sampling(body)
    longest = parse_integer(body, "max_output_tokens", 1, MAX_TOKENS)
    chars, tokens = _measure({name: body[name] for name in _PROMPT if body.get(name) is not None})
    return InferenceRequest(
        operation="responses",
        model=model,
        body=body,
        stream=parse_flag(body, "stream"),
        prompt_chars=chars,
        max_prompt_tokens=tokens,
        max_output_tokens=min(longest or MAX_RESERVED_OUTPUT, MAX_RESERVED_OUTPUT),
        affinity_key=_parse_sticky(body),
    )


def _check_input(value: object) -> None:
    """A text, items, or nothing where a stored prompt or an earlier response stands for it."""
    if value is None or isinstance(value, str):
        return
    if not isinstance(value, list):
        raise InvalidRequest(f"'input' must be a string or an array of items, not {kind_of(value)}", param="input")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            where = f"input[{index}]"
            raise InvalidRequest(f"'{where}' must be an object, not {kind_of(item)}", param=where)


def _parse_sticky(body: Body) -> str | None:
    """What is stored is known to its provider alone, and so is whatever goes on from it: such calls stay together."""
    read_text(body, "previous_response_id")
    conversation = body.get("conversation")
    if conversation is not None and not isinstance(conversation, str | dict):
        found = kind_of(conversation)
        raise InvalidRequest(f"'conversation' must be a string or an object, not {found}", param="conversation")
    goes_on = conversation is not None or body.get("previous_response_id") is not None
    stored = parse_flag(body, "store") or body.get("store") is None
    return _TOGETHER if goes_on or stored else find_sticky(body)


def _measure(value: Any) -> tuple[int, int]:
    """Characters of the texts in ``value``, and the tokens that all of it hardly exceeds."""
    chars = tokens = 0
    rest: list[tuple[str, Any]] = [("", value)]
    while rest:
        name, item = rest.pop()
        if isinstance(item, list):
            rest.extend((name, part) for part in item)
        elif not isinstance(item, str):
            tokens += MESSAGE_TOKENS
            rest.extend(item.items() if isinstance(item, dict) else ())
        elif name in _MEDIA:
            tokens += PART_TOKENS
        else:
            # A thought that was sealed is longer than the text in it.
            tokens += estimate_tokens(len(item)) if name == _SEALED else bound_text(item)
            chars += len(item) if name in _TEXTS else 0
    return chars, tokens


def _list_texts(value: Any) -> list[str]:
    """The texts in ``value``."""
    texts: list[str] = []
    rest: list[tuple[str, Any]] = [("", value)]
    while rest:
        name, item = rest.pop()
        if isinstance(item, list):
            rest.extend((name, part) for part in item)
        elif isinstance(item, dict):
            rest.extend(item.items())
        elif isinstance(item, str) and name in _TEXTS:
            texts.append(item)
    return texts


def build_responses_body(call: InferenceRequest, model: str) -> Body:
    """The body for the provider, under the provider's name of the model. A stream reports its usage unasked."""
    return call.body | {"model": model}


def parse_responses_answer(raw: bytes, call: InferenceRequest, secrets: Secrets = ()) -> Usage:
    """A whole (not streamed) answer -> its usage. The bytes go to the caller as they are.

    Raises ``ProviderBadResponse`` where it is no response, and the fault it reports where it failed:
    ``ProviderRejected`` where that blames the caller's request.
    """
    return parse_used(parse_response(raw, secrets), call)


def parse_response(raw: bytes, secrets: Secrets = ()) -> dict[str, Any]:
    """A whole response, parsed. Raises as ``parse_responses_answer`` does."""
    value = parse_any_object(raw)
    if value.get("object") != "response":
        parse_answer_object(raw, secrets)
        raise ProviderBadResponse("The provider's answer is no response")
    if value.get("status") == "failed":
        raise _parse_failure(value.get("error"), secrets, phase="answer")
    return value


def parse_used(answer: Mapping[str, Any], call: InferenceRequest) -> Usage:
    """The usage of a response as its provider reports it, else an estimate.

    One that goes on in the background is taken for as long as was set aside for: nobody will hear of its end.
    """
    usage = parse_response_usage(answer.get("usage"))
    if usage is not None:
        return usage
    status = answer.get("status")
    running = isinstance(status, str) and status in UNFINISHED
    completion = call.max_output_tokens if running else estimate_text("\n".join(_list_texts(answer.get("output"))))
    return Usage(estimate_prompt(call), completion, source="estimate")


def parse_response_usage(raw: object) -> Usage | None:
    """A ``ResponseUsage`` -> ``Usage``; None where it is missing or cannot be believed."""
    if not isinstance(raw, Mapping):
        return None
    prompt, completion = parse_count(raw.get("input_tokens")), parse_count(raw.get("output_tokens"))
    if prompt is None or completion is None:
        return None
    said: Any = raw.get("input_tokens_details")
    details = said if isinstance(said, Mapping) else {}
    cached, written = details.get("cached_tokens"), details.get("cache_write_tokens")
    answered = raw.get("output_tokens_details")
    thought = answered.get("reasoning_tokens") if isinstance(answered, Mapping) else None
    return share_prompt(prompt, completion, cached=cached, written=written, thought=thought)


def _parse_failure(error: object, secrets: Secrets, *, phase: str = "stream") -> ProviderError:
    """The error of a response, or of an error event -> the fault it is."""
    told = parse_error_value({"error": error}, secrets) or _NO_REASON
    status = _STATUS.get(told.code or "") or _STATUS.get(told.type or "")
    if status is None:
        return build_reported(told.message, phase)
    return parse_fault(status, orjson.dumps({"error": attrs.asdict(told)}), secrets)


def find_response_id(told: bytes) -> str:
    """The id of a whole response, or of the one that the first events of a stream are of; empty if there is none."""
    for payload in (told, *(sse.parse_data(event) or b"" for event in split_events(told))):
        try:
            value = orjson.loads(payload)
        except orjson.JSONDecodeError:
            continue
        response = value.get("response", value) if isinstance(value, dict) else None
        if isinstance(response, dict) and isinstance(found := response.get("id"), str):
            return found
    return ""


class ResponsesPassthrough(PassthroughStream):
    """What of a provider's stream of events may leave: whole events, up to the one that ends the response.

    Fits the port ``gate.Gate``. What is let through is byte for byte what came, except for a reason to fail that names
    a secret or an address. Events about the response as such (created, queued, in progress) leave, but do not count:
    until there is something of an answer, another channel may do better.

    Attributes:
        events: complete events with data so far, those and the end not counted.
        ended: the response is complete, incomplete, cancelled, or failed after it had begun; what follows is dropped,
            also the convention's other end mark, which some servers add and no client needs.
        fault: the provider reported an error, or an event without an end; whatever follows it is dropped.
    """

    __slots__ = ("_call", "_tap", "_usage")

    def __init__(self, call: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._call = call
        self._tap = HeadTailBuffer()
        self._usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        """A piece in, what may leave out."""
        self._tap.feed(data)
        # The usual piece is whole events about parts of the response, and leaves as it lies.
        whole = data.endswith(b"\n\n") and not self._splitter.waiting
        if whole and not self.closed and _PARTS.fullmatch(data) and (data.isascii() or sse.is_utf8(data)):
            self._begun = True
            self.events += data.count(b"\n\n")
            return data
        return self._feed_slowly(data)

    def _judge(self, event: bytes, payload: bytes) -> bytes:
        if payload.startswith(DONE):
            self.ended = True
            return event
        kind, value = _parse_event(event, payload)
        if kind == "error" or (not kind.startswith("response.") and value.get("error")):
            self.fault = _parse_failure(value.get("error") or _without_type(value), self._secrets)
            return b""
        if kind in _ENDS and value:
            return self._end(event, kind, value)
        if kind not in _BEGINS:
            self.events += 1
        return event

    def _end(self, event: bytes, kind: str, value: dict[str, Any]) -> bytes:
        answer = value.get("response")
        if not isinstance(answer, dict):
            answer = {}
        if kind == _FAILED and not self.events:
            self.fault = _parse_failure(answer.get("error"), self._secrets)
            return b""
        self.ended = True
        if answer.get("output") or parse_response_usage(answer.get("usage")) is not None:
            self._usage = parse_used(answer, self._call)
        return _mask_failure(event, value, self._secrets) if kind == _FAILED else event

    def finish(self) -> bytes:
        """The stream has ended at its transport; what is still to be written. Raises ``ProviderBadResponse`` if it was
        cut.

        An end that only lacks its blank line is completed.
        """
        rest = self._splitter.take().rstrip(b"\r\n")
        written = self._pass(rest + b"\n\n") if rest.endswith((b"}", DONE)) and not self.closed else b""
        if self.fault is not None:
            raise self.fault
        if not self.ended:
            raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")
        return written

    def parse_usage(self) -> Usage:
        """The usage of what was streamed: the provider's word, else an estimate from the text or a sample of it."""
        if self._usage is not None:
            return self._usage
        if not self.events:
            return Usage(source="estimate") if self._tap.size else Usage()
        events, text = _sample(self._tap.tail)
        if events < self.events and not self._tap.whole:
            more_events, more_text = _sample(self._tap.head)
            events, text = events + more_events, text + more_text
        completion = estimate_sample((text,), events, self.events)
        return Usage(estimate_prompt(self._call), completion, source="estimate")


def _parse_event(event: bytes, payload: bytes) -> tuple[str, dict[str, Any]]:
    """An event's type and its data as an object, empty where it is none. Data about a part is not looked into."""
    found = _NAME.search(event)
    name = found[1] if found else b""
    if _PART.match(name):
        return name.decode(), {}
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        value = {}
    kind = value.get("type")
    if name == b"error" or not isinstance(kind, str):
        kind = name.decode(errors="replace")
    return kind, value


def _without_type(value: dict[str, Any]) -> dict[str, Any]:
    """An error event that is the error itself, without the type that says it is an event."""
    return {name: value.get(name) for name in ("message", "param", "code")}


def _mask_failure(event: bytes, value: dict[str, Any], secrets: Secrets) -> bytes:
    """The event of a failed response, with its reason as it may be shown."""
    answer = value.get("response")
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or not isinstance(message := error.get("message"), str):
        return event
    error["message"] = mask(message, secrets)
    if error["message"] == message:
        return event
    try:
        return b"event: response.failed\ndata: " + orjson.dumps(value) + b"\n\n"
    except orjson.JSONEncodeError:  # nested deeper than can be written
        return b'event: response.failed\ndata: {"type":"response.failed"}\n\n'


def _sample(raw: bytes) -> tuple[int, str]:
    """How many whole events of an answer are in ``raw``, and what their deltas say."""
    events, texts = 0, []
    for event in split_events(raw):
        try:
            value = orjson.loads(sse.parse_data(event) or b"")
        except orjson.JSONDecodeError:
            continue
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind in _BEGINS | _ENDS:
            continue
        events += 1
        delta = value.get("delta")
        if isinstance(delta, str) and kind != "response.audio.delta":
            texts.append(delta)
    return events, "".join(texts)
