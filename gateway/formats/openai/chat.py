"""Chat completions in the OpenAI API format: the request, the stream's passthrough, and the usage at its end.

Shapes: OpenAI's OpenAPI document, ``CreateChatCompletionRequest`` and ``CreateChatCompletionStreamResponse``.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_sample, estimate_text
from gateway.domain.usage import MAX_TOKENS, Usage, attach_tier, parse_usage
from gateway.errors import InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats import sse
from gateway.formats.head_tail_buffer import HeadTailBuffer
from gateway.formats.json_values import as_object, list_objects, loads_or_none
from gateway.formats.openai.errors import Secrets, build_reported, mask, parse_error_value
from gateway.formats.openai.fields import (
    MAX_CHOICES,
    MAX_TEMPERATURE,
    Body,
    parse_flag,
    parse_integer,
    parse_list,
    parse_model,
    parse_number,
    parse_object,
    read_text,
)
from gateway.formats.openai.odd_answers import CallMender
from gateway.formats.openai.prompt import measure_prompt
from gateway.formats.openai.stream_tail import DONE, NOTHING, find_last_usage, parse_choice, parse_chunk, parse_tail
from gateway.formats.openai.token_bounds import bound_output
from gateway.formats.prompt_tokens import estimate_prompt
from gateway.formats.stream import PassthroughStream
from gateway.formats.vendor_errors import find_failure

NO_CHOICES = "The provider's answer has no choices"
DONE_EVENT = b"data: [DONE]\n\n"
MAX_AFFINITY_CHARS = 256
_AFFINITY_FIELDS = ("prompt_cache_key", "user", "safety_identifier")
_ANY_AFFINITY_FIELD = frozenset(_AFFINITY_FIELDS)
_BOUNDS = (
    ("temperature", 0.0, MAX_TEMPERATURE),
    ("top_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)
_NUMBERS: tuple[tuple[str, Callable[..., object], float, float], ...] = (
    ("max_tokens", parse_integer, 1, MAX_TOKENS),
    ("max_completion_tokens", parse_integer, 1, MAX_TOKENS),
    *((name, parse_number, low, high) for name, low, high in _BOUNDS),
    ("seed", parse_integer, -math.inf, math.inf),
)
"""In the order in which they are checked: the parser and the range of each."""
_CHUNK_BEGINS = (b"data: {", b"data:{")
_CHUNK_END = b"}\n\n"
"""A chunk with another end may have been cut by a proxy."""
_LAST_LINE = -2
"""Where the line ends begin that close a chunk."""
_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\{')
_LONGEST_BEGINNING = 512
_MOST_SHOWN = 2_048
_MARKUP = re.compile(r"<(?:script|style)\b.*?(?:</(?:script|style)>|\Z)|<[^>]*>?", re.DOTALL | re.IGNORECASE)
_UNKNOWN: tuple[()] = ()
"""For ``startswith``, which is false for an empty tuple. Also set while an event is incomplete."""
# Some servers write "error": null or "choices": [] into every chunk: only real errors and usage frames are parsed.
_ERROR_KEY = re.compile(rb'"error"\s*:\s*(?!null\b|\s)')
_CALLS, _SPACED_CALLS = b'"tool_calls":[{', b'"tool_calls": [{'
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')

_AUDIO_ID = re.compile(rb'"audio":\s?\{[^{}]{0,200}?"id":\s?"([^"\\]{1,256})"')
"""A recording that the model makes: a later turn may name it by its id."""


def _ignore() -> None:
    pass


def parse_chat_inference(body: Body) -> InferenceRequest:
    """Check a parsed body and return the request. Raises ``InvalidRequest`` naming the field.

    Checks only what the gateway relies on or what no provider accepts; every other field passes unchanged.
    """
    model = parse_model(body)
    prompt_chars, max_prompt_tokens, plain = measure_prompt(body)
    stream, include_usage = parse_stream(body) if "stream" in body or "stream_options" in body else (False, False)
    for name, read, low, high in _NUMBERS:
        if name in body:
            read(body, name, low, high)
    if "tools" in body:
        parse_list(body, "tools")
    if "user" in body:
        read_text(body, "user")
    choices = parse_integer(body, "n", 1, MAX_CHOICES) if "n" in body else None
    inference = InferenceRequest(  # positional: keyword arguments would cost more than the rest
        "chat",
        model,
        body,
        stream,
        choices or 1,
        include_usage,
        prompt_chars,
        max_prompt_tokens,
        bound_output(body),
        None if _ANY_AFFINITY_FIELD.isdisjoint(body) else find_affinity_key(body),
        plain=plain,
    )
    return attrs.evolve(inference, sounds=True) if "modalities" in body and "audio" in body else inference


def parse_stream(body: Body) -> tuple[bool, bool]:
    """Return whether the answer is streamed, and whether with a usage frame."""
    stream = "stream" in body and parse_flag(body, "stream")
    options = parse_object(body, "stream_options") if "stream_options" in body else None
    if options and not stream:
        raise InvalidRequest("'stream_options' is only allowed when 'stream' is true", param="stream_options")
    return stream, parse_flag(options, "include_usage", "stream_options.include_usage") if options else False


def check_sampling(body: Body) -> None:
    """Raise ``InvalidRequest`` for a temperature, a ``top_p`` or a penalty that no provider accepts."""
    for name, low, high in _BOUNDS:
        if name in body:
            parse_number(body, name, low, high)


def find_affinity_key(body: Body) -> str | None:
    """Return what the client's requests with the same prompt share: its cache key, else its user."""
    for name in _AFFINITY_FIELDS:
        value = body.get(name)
        if isinstance(value, str) and 0 < len(value) <= MAX_AFFINITY_CHARS:
            return value
    return None


def build_chat_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body with the provider's name of the model; a stream is asked for usage.

    Returns a new dict with the request's own values; used for legacy completions too.
    """
    body = inference.body | {"model": model}
    if inference.stream:
        body["stream_options"] = (body.get("stream_options") or {}) | {"include_usage": True}
    return body


class ChatPassthrough(PassthroughStream):
    """Forwards whole events unchanged, up to the end mark, without a usage frame that the client did not request.

    An incomplete event is held back, so that a stream that breaks within one can still end with a valid error event.
    Also for legacy completions, whose chunks differ only in where their text is.

    ``events``: complete events with data so far, from the first choice on and without the end mark. ``note_mended``:
    called when an event was changed because every client library would read it wrongly.
    """

    __slots__ = ("_beginning", "_buffer", "_hollow", "_inference", "_mender", "_strip", "note_mended")

    def __init__(self, inference: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._inference = inference
        self._strip = not inference.include_usage
        self._mender: CallMender | None = None
        self.note_mended: Callable[[], None] = _ignore
        self._hollow = False  # there was a chunk without a choice, which alone is no answer
        self._beginning: bytes | tuple[()] = _UNKNOWN  # of the last chunk, up to its first choice, without an error
        self._buffer = HeadTailBuffer()

    def feed(self, data: bytes) -> bytes:
        # Hot path, run for every piece of every stream: ``HeadTailBuffer.feed`` is inlined. Text is searched, and not
        # bytes: ``in`` first takes those for a number, and an exception for every event costs more than the search.
        buffer = self._buffer
        buffer.pieces.append(data)
        buffer.room -= len(data)
        if buffer.room < 0:
            buffer.trim()
        # The usual piece is one chunk on one line. The chunks of a stream begin alike: the beginning of the last one
        # has been checked, and one with a choice is no usage frame. There is a known beginning only while no event is
        # incomplete and the stream is open.
        beginning = self._beginning
        try:
            if (
                data.startswith(beginning)
                and data.endswith(_CHUNK_END)
                and "\n" not in (rest := data[len(beginning) : _LAST_LINE].decode())
                and "\r" not in rest
                and '"error"' not in rest
                and ("[" not in rest or ('"tool_calls":[{' not in rest and '"tool_calls": [{' not in rest))
            ):
                self.events += 1
                return data
        except UnicodeDecodeError:  # reported when the piece is checked event by event
            pass
        return self._feed_chunks(data)

    def _feed_chunks(self, data: bytes) -> bytes:
        """Forward a piece with a new beginning or of several events, if nothing in it needs a closer look."""
        if (
            data.startswith(_CHUNK_BEGINS)
            and data.endswith(_CHUNK_END)
            and not self._splitter.waiting
            and not self.closed
            and "\ufffd" not in (text := data.decode(errors="replace"))
            and "[DONE]" not in text
            and '"error"' not in text
            and '"choices"' in text
            and '"base_resp"' not in text
            and '"tool_calls":[{' not in text
            and '"tool_calls": [{' not in text
            and "\nevent:" not in text
            and "\n:" not in text  # a comment or a blank line is no event
            and "\n\n\n" not in text
            and not ((self._strip or not self.events) and ("[]" in text or "[ ]" in text))
            and (ends := data.count(b"\n\n")) == data.count(_CHUNK_END)
        ):
            self._begun = True
            self.events += ends
            if not data.startswith(self._beginning):
                found = _CHOICE.search(data, 0, _LONGEST_BEGINNING)
                beginning = data[: found.end()] if found else b"\n"
                self._beginning = _UNKNOWN if b"\n" in beginning or b"\r" in beginning else beginning
            return data
        self._beginning = _UNKNOWN
        return self._feed_slowly(data)

    def _judge(self, event: bytes, payload: bytes) -> bytes:
        if payload.startswith(DONE):
            self.ended = True
            return event
        # A plain substring is found at the speed of memory, in images of megabytes too.
        failed = b"error" in event and (sse.has_match(_ERROR_KEY, b'"error"', payload) or sse.is_error_event(event))
        choices = payload.find(b'"choices"')
        if failed or choices < 0 or b'"base_resp"' in payload:
            self.error = _find_error(event, payload, self._secrets)
            if self.error is not None:
                return b""
        no_choice = choices >= 0 and _NO_CHOICES.match(payload, choices) is not None
        if self.events or not no_choice:
            self.events += 1
        else:
            self._hollow = True
        if no_choice and self._strip and b'"usage"' in payload and _is_usage_frame(payload):
            return b""
        called = _CALLS in payload or _SPACED_CALLS in payload
        return self._mend(event, payload) if called and self._inference.operation == "chat" else event

    def _mend(self, event: bytes, payload: bytes) -> bytes:
        if self._mender is None:
            self._mender = CallMender(self._inference)
        written = self._mender.mend(event, payload)
        if written is not event:
            self.note_mended()
        return written

    @property
    def empty(self) -> bool:
        """Whether the stream has ended without a choice, although it had chunks."""
        return self._hollow and not self.events and self.ended

    def finish(self) -> bytes:
        """Return the rest once the connection has ended.

        A stream is complete at its end mark, or if every choice has a finish reason. In the second case the mark is
        added, because clients wait for it.
        """
        if self.ended:
            return b""
        rest = self._splitter.take()
        marked = (sse.parse_data(rest) or b"").startswith(DONE)
        if marked or (not rest.strip() and parse_tail(self._buffer.tail).finished >= self._inference.choices):
            self.ended = True
            return DONE_EVENT
        raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")

    def parse_usage(self) -> Usage:
        """Return the provider's counts, else an estimate from a sample of the text."""
        buffer = self._buffer
        if self._inference.sounds and (named := _AUDIO_ID.findall(buffer.head)):
            self._inference.made[:] = [one.decode("utf-8", "replace") for one in dict.fromkeys(named)]
        # Providers report usage near the end: only events that mention it are parsed.
        reported = find_last_usage(buffer.tail)
        if reported is not None and reported.completion_tokens:
            return reported
        if not self.events:
            return reported or (Usage(source="estimate") if buffer.size else Usage())
        tail = parse_tail(buffer.tail)
        if reported is not None and not tail.sample:
            return reported
        # An unfinished event may fill the tail, which then is a poor sample: the head is used too.
        head = parse_tail(buffer.head) if tail.sample_events < self.events and not buffer.whole else NOTHING
        sampled = tail.sample_events + head.sample_events
        completion = estimate_sample((tail.sample, head.sample), sampled, self.events)
        return Usage(estimate_prompt(self._inference), completion, 0, "estimate")


def _find_error(event: bytes, payload: bytes, secrets: Secrets) -> ProviderError | None:
    """Return the error that an event reports: in its data, or as data of an event named ``error``."""
    value = loads_or_none(payload)
    error = parse_error_value(value, secrets)
    if error is None and sse.is_error_event(event):
        error = parse_error_value({"error": value or {"message": None}}, secrets)
    return build_reported(error) if error else find_failure(as_object(value), secrets)


def _is_usage_frame(payload: bytes) -> bool:
    value = parse_chunk(payload)
    return value is not None and value.get("choices") == [] and isinstance(value.get("usage"), dict)


def parse_chat_answer(value: Mapping[str, Any], inference: InferenceRequest) -> Usage:
    """Return the usage of an unstreamed answer. Raises ``ProviderBadResponse`` if it is no completion.

    A legacy completion is one too. The bytes are forwarded unchanged.
    """
    listed = value.get("choices")
    if type(listed) is not list or not listed:
        raise ProviderBadResponse(NO_CHOICES)
    if inference.sounds:
        spoken = [as_object(as_object(one.get("message")).get("audio")) for one in list_objects(listed)]
        inference.made[:] = [one["id"] for one in spoken if isinstance(one.get("id"), str)]
    usage = parse_usage(value.get("usage"), completes=True)
    if usage is not None and usage.completion_tokens:
        tier = value.get("service_tier")
        return attach_tier(usage, tier) if tier and tier != "default" else usage
    text = "".join(parse_choice(choice, "message") for choice in list_objects(value.get("choices")))
    if usage is not None and not text:
        return usage
    return Usage(estimate_prompt(inference), estimate_text(text), 0, "estimate")


def parse_answer_object(raw: bytes, secrets: Secrets = (), *, exact: bool = False) -> dict[str, Any]:
    """Parse a provider's JSON answer with status 200, ``exact``: with all digits of its numbers.

    Raises ``ProviderError`` for an error, and ``ProviderBadResponse`` for what is no object.
    """
    value = parse_any_object(raw)
    if exact:
        value = exact_json.load_exactly(raw, value)
    error = parse_error_value(value, secrets) if value.get("error") else None
    if error is not None:
        raise build_reported(error, "answer")
    if not value.get("choices") and (failure := find_failure(value, secrets)) is not None:
        raise failure
    return value


def _describe_other(raw: bytes) -> str:
    """Say what an answer is that is not JSON: a web page, or nothing, comes from a wrong address."""
    text = raw[:_MOST_SHOWN].decode("utf-8", "replace").strip()
    if not text:
        return "The provider's answer is not JSON: it is empty; is the base URL right?"
    if not text.startswith("<"):
        return "The provider's answer is not JSON"
    shown = " ".join(_MARKUP.sub(" ", text).split())[:80]
    return f"The provider's answer is not JSON: it returned HTML (200, {mask(shown)!r}); is the base URL right?"


def _load_refused(raw: bytes, error: orjson.JSONDecodeError) -> Any:
    try:
        return exact_json.load_refused(raw, error)
    except orjson.JSONDecodeError:
        raise ProviderBadResponse(_describe_other(raw)) from None


def parse_any_object(raw: bytes) -> dict[str, Any]:
    """Parse a provider's JSON object, with or without an error. Raises ``ProviderBadResponse``."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        value = _load_refused(raw, error)
    if not isinstance(value, dict):
        raise ProviderBadResponse("The provider's answer is not a JSON object")
    return value
