"""Chat completions in the convention: the call, the stream's gate, and the usage at its end.

Shapes: the convention's OpenAPI document, ``CreateChatCompletionRequest`` and ``CreateChatCompletionStreamResponse``.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.token_estimate import estimate_sample, estimate_text
from gateway.domain.usage import MAX_TOKENS, Usage, parse_usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats import sse
from gateway.formats.head_tail_buffer import HeadTailBuffer
from gateway.formats.openai.errors import Secrets, build_reported, parse_error_value
from gateway.formats.openai.fields import (
    MAX_CHOICES,
    Body,
    parse_flag,
    parse_integer,
    parse_list,
    parse_model,
    parse_number,
    parse_object,
    read_text,
)
from gateway.formats.openai.prompt import parse_prompt
from gateway.formats.openai.stream_tail import (
    DONE,
    NOTHING,
    find_last_usage,
    list_objects,
    parse_choice,
    parse_chunk,
    parse_tail,
)
from gateway.formats.openai.token_bounds import bound_output
from gateway.formats.prompt_tokens import estimate_prompt
from gateway.formats.stream import PassthroughStream

DONE_EVENT = b"data: [DONE]\n\n"
MAX_STICKY_CHARS = 256
_STICKY = ("prompt_cache_key", "user", "safety_identifier")
_ANY_STICKY = frozenset(_STICKY)
_BOUNDS = (
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)
_NUMBERS: tuple[tuple[str, Callable[..., object], float, float], ...] = (
    ("max_tokens", parse_integer, 1, MAX_TOKENS),
    ("max_completion_tokens", parse_integer, 1, MAX_TOKENS),
    *((name, parse_number, low, high) for name, low, high in _BOUNDS),
)
"""In the order in which they are refused: how each is read, and between what."""
_CHUNK_BEGINS = (b"data: {", b"data:{")
_NAMED = b"\nevent:"
_CHUNK_END = b"}\n\n"
"""What ends otherwise may have been cut by whoever rewrote it."""
_CR = 13
"""As a number: a single byte is looked for at the speed of memory."""
_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\{')
_LONGEST_BEGINNING = 512
_UNKNOWN = b"\n\n\n"
"""What nothing can begin with whose first line's end is its last but one. It stands there too while an event waits."""
_ERROR_NAME = re.compile(rb"(?:^|[\r\n])event: ?error[\r\n]")
# Some servers write "error": null or "tool_calls": [] into every chunk: only these two are worth a parser's time.
_ERROR_KEY = re.compile(rb'"error"\s*:\s*(?!null\b|\s)')
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')


def parse_chat_call(body: Body) -> InferenceRequest:
    """A parsed body -> the checked call. Raises ``InvalidRequest`` naming the field.

    Checked is what the gateway relies on or what no provider accepts; every other field passes as it is.
    """
    model = parse_model(body)
    prompt_chars, max_prompt_tokens = parse_prompt(body)
    stream, include_usage = parse_stream(body)
    for name, read, low, high in _NUMBERS:
        if name in body:
            read(body, name, low, high)
    if "tools" in body:
        parse_list(body, "tools")
    if "user" in body:
        read_text(body, "user")
    choices = parse_integer(body, "n", 1, MAX_CHOICES) if "n" in body else None
    return InferenceRequest(  # in the order of its fields: named, they cost more than all of it
        "chat",
        model,
        body,
        stream,
        choices or 1,
        include_usage,
        prompt_chars,
        max_prompt_tokens,
        bound_output(body),
        find_sticky(body),
    )


def parse_stream(body: Body) -> tuple[bool, bool]:
    """Whether the answer is to be streamed, and whether with the usage frame."""
    stream = "stream" in body and parse_flag(body, "stream")
    options = parse_object(body, "stream_options") if "stream_options" in body else None
    if options and not stream:
        raise InvalidRequest("'stream_options' is only allowed when 'stream' is true", param="stream_options")
    return stream, parse_flag(options, "include_usage", "stream_options.include_usage") if options else False


def check_sampling(body: Body) -> None:
    """Refuse a temperature, a ``top_p`` or a penalty that no provider accepts."""
    for name, low, high in _BOUNDS:
        if name in body:
            parse_number(body, name, low, high)


def find_sticky(body: Body) -> str | None:
    """What the caller says its calls with the same prompt have in common: its cache key, else whom it calls for."""
    if _ANY_STICKY.isdisjoint(body):
        return None
    for name in _STICKY:
        value = body.get(name)
        if isinstance(value, str) and 0 < len(value) <= MAX_STICKY_CHARS:
            return value
    return None


def build_chat_body(call: InferenceRequest, model: str) -> Body:
    """The body for the provider: the call's, under the provider's name of the model, asking for usage when streamed.

    A fresh dict of the call's own values; ``parse_completions_call`` makes calls for it too.
    """
    body = call.body | {"model": model}
    if call.stream:
        body["stream_options"] = (body.get("stream_options") or {}) | {"include_usage": True}
    return body


class ChatPassthrough(PassthroughStream):
    """What of a provider's stream may leave: whole events, up to the end mark, without a usage frame nobody asked for.

    An event that has not ended is held, so that a stream which breaks in the middle of one can still end in a clean
    error event. What is let through is byte for byte what came. It fits the port ``gate.Gate``, for chat and for the
    legacy completions, whose frames differ only in where their text is.

    Attributes:
        events: complete events with data so far, the end mark not counted.
        ended: the end mark has passed; whatever follows it is dropped.
        fault: the provider reported an error, or an event without an end; whatever follows it is dropped.
    """

    __slots__ = ("_beginning", "_call", "_strip", "_tap")

    def __init__(self, call: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._call = call
        self._strip = not call.include_usage
        self._beginning = _UNKNOWN  # of the last chunk, up to its first choice; there is no error in it
        self._tap = HeadTailBuffer()

    def feed(self, data: bytes) -> bytes:
        """A piece in, what may leave out."""
        # Every piece of every stream comes here: this is ``HeadTailBuffer.feed``, without a call of its own.
        tap = self._tap
        tap.pieces.append(data)
        tap.room -= len(data)
        if tap.room < 0:
            tap.trim()
        # The usual piece is one chunk on one line. Those of a stream begin alike: what was looked for in the beginning
        # of the last one is not looked for again, and one with a choice in it is no usage frame. There is a beginning
        # only as long as nothing waits and the gate is open.
        beginning = self._beginning
        try:
            if (
                data.startswith(beginning)
                and data.find(b"\n") == len(data) - 2
                and data.endswith(_CHUNK_END)
                and _CR not in data
                and data.find(b'"error"', len(beginning)) < 0
                and (data.isascii() or data.decode())
            ):
                self.events += 1
                return data
        except UnicodeDecodeError:  # found again, and told, where each event is looked at
            pass
        return self._feed_chunks(data)

    def _feed_chunks(self, data: bytes) -> bytes:
        """A piece that begins otherwise, or is of several events: where nothing special is in it, it leaves as well."""
        if (
            data.startswith(_CHUNK_BEGINS)
            and data.endswith(_CHUNK_END)
            and not self._splitter.waiting
            and DONE not in data
            and b'"error"' not in data
            and _NAMED not in data
            and b"\n:" not in data  # a comment, or nothing at all, is no event
            and b"\n\n\n" not in data
            and not (self._strip and (b"[]" in data or b"[ ]" in data))
            and not self.closed
            and (ends := data.count(b"\n\n")) == data.count(_CHUNK_END)
            and (data.isascii() or sse.is_utf8(data))
        ):
            self._begun = True
            self.events += ends
            if not data.startswith(self._beginning):
                found = _CHOICE.search(data, 0, _LONGEST_BEGINNING)
                self._beginning = data[: found.end()] if found else _UNKNOWN
            return data
        self._beginning = _UNKNOWN
        return self._feed_slowly(data)

    def _judge(self, event: bytes, payload: bytes) -> bytes:
        if payload.startswith(DONE):
            self.ended = True
            return event
        # A plain word is found at the speed of memory, in images of megabytes too.
        if b"error" in event and (_ERROR_KEY.search(payload) or _ERROR_NAME.search(event)):
            self.fault = _find_error(event, payload, self._secrets)
            if self.fault is not None:
                return b""
        self.events += 1
        if self._strip and b'"usage"' in payload and _NO_CHOICES.search(payload) and _is_usage_frame(payload):
            return b""
        return event

    def finish(self) -> bytes:
        """The stream has ended at its transport; what is still to be written. Raises ``ProviderBadResponse`` if it was
        cut.

        A stream is complete at its end mark, or where every choice has given its finish reason. In the second case
        the mark is added: clients wait for it, and nothing is missing.
        """
        if self.ended:
            return b""
        rest = self._splitter.take()
        marked = (sse.parse_data(rest) or b"").startswith(DONE)
        if marked or (not rest.strip() and parse_tail(self._tap.tail).finished >= self._call.choices):
            self.ended = True
            return DONE_EVENT
        raise ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")

    def parse_usage(self) -> Usage:
        """The usage of what was streamed: the provider's word, else an estimate from a sample of the text."""
        tap = self._tap
        # Providers report usage near the end: an event that mentions it is parsed, not all of the tail.
        reported = find_last_usage(tap.tail)
        if reported is not None:
            return reported
        if not self.events:
            return Usage(source="estimate") if tap.size else Usage()
        tail = parse_tail(tap.tail)
        # The end alone is a poor sample where an event that never ended fills it: the beginning is one too.
        head = parse_tail(tap.head) if tail.sample_events < self.events and not tap.whole else NOTHING
        sampled = tail.sample_events + head.sample_events
        completion = estimate_sample((tail.sample, head.sample), sampled, self.events)
        return Usage(estimate_prompt(self._call), completion, 0, "estimate")


def _find_error(event: bytes, payload: bytes, secrets: Secrets) -> ProviderBadResponse | None:
    """The error an event reports: an ``error`` in its data, or data under the name ``error``."""
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        value = None
    error = parse_error_value(value, secrets)
    if error is None and _ERROR_NAME.search(event):
        error = parse_error_value({"error": value or {"message": None}}, secrets)
    return build_reported(error.message) if error else None


def _is_usage_frame(payload: bytes) -> bool:
    value = parse_chunk(payload)
    return value is not None and value.get("choices") == [] and isinstance(value.get("usage"), dict)


def parse_chat_answer(value: Mapping[str, Any], call: InferenceRequest) -> Usage:
    """A whole (not streamed) answer, of ``parse_answer_object`` -> its usage. Raises ``ProviderBadResponse``: no
    completion.

    A legacy completion is one too. The bytes themselves go to the caller as they are.
    """
    if not isinstance(value.get("choices"), list):
        raise ProviderBadResponse("The provider's answer has no choices")
    usage = parse_usage(value.get("usage"), completes=True)
    if usage is not None:
        return usage
    said = "".join(parse_choice(choice, "message") for choice in list_objects(value.get("choices")))
    return Usage(estimate_prompt(call), estimate_text(said), 0, "estimate")


def parse_answer_object(raw: bytes, secrets: Secrets = ()) -> dict[str, Any]:
    """A provider's JSON answer with status 200. Raises ``ProviderBadResponse`` for anything but an object without
    error.
    """
    value = parse_any_object(raw)
    error = parse_error_value(value, secrets) if value.get("error") else None
    if error is not None:
        raise ProviderBadResponse(f"The provider reported an error: {error.message}")
    return value


def parse_any_object(raw: bytes) -> dict[str, Any]:
    """The same, with or without an error in it."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise ProviderBadResponse("The provider's answer is not JSON") from None
    if not isinstance(value, dict):
        raise ProviderBadResponse("The provider's answer is not a JSON object")
    return value
