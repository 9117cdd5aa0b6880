"""OpenAI's Realtime API: parse and build the events that concern the gateway, and estimate a session's tokens.

Events pass unchanged. Those of the client must be strict JSON: a provider must not read another value than the gateway.
Names of the beta version are supported too.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import attrs
import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import (
    MAX_TOKENS,
    Usage,
    UsageDetails,
    attach_details,
    build_reported_usage,
    estimate_tokens,
    find_modalities,
    parse_count,
)
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.references.provider_reads import find_reads
from gateway.formats.usage.token_bounds import bound_text
from gateway.formats.wire.fields import name_json_type
from gateway.formats.wire.json_values import MAX_DUPLICATE_CHECK_BYTES, as_object, loads_or_none, parse_json_object
from gateway.frozen import frozen
from gateway.wording import fold_name

Event = dict[str, Any]

SESSION_UPDATE, RESPONSE_CREATE, AUDIO_APPEND = "session.update", "response.create", "input_audio_buffer.append"
SESSION_UPDATED = "session.updated"
RESPONSE_CREATED, RESPONSE_DONE, ERROR = "response.created", "response.done", "error"
TRANSCRIBED_EVENT = "conversation.item.input_audio_transcription.completed"
ASSUMED_OUTPUT_TOKENS = 4_096
"""Output tokens assumed for a response without a limit (``inf``): OpenAI's own maximum."""
MAX_MODEL_CHARS = 256
MAX_CONTEXT_TOKENS, MAX_RESPONSE_TOKENS = 262_144, 16_384
"""Upper limits of believable token counts for a prompt and a response: no model of this API exceeds them."""
_ADDED_TOKENS = 64
"""Tokens that a provider adds to a conversation."""
_IMAGE_TOKENS = 2_048
_INPUT_TOKENS_A_SECOND, _OUTPUT_TOKENS_A_SECOND = 10, 20
"""Tokens per second of the user's and the model's audio ("Managing costs" in OpenAI's guide to this API)."""
_PCM_BYTES_A_SECOND, _G711_BYTES_A_SECOND = 48_000, 8_000
"""Bytes per second: 16 bits at 24 kHz, 8 bits at 8 kHz."""
_TEXT_DELTAS = frozenset(
    {
        "response.text.delta",
        "response.output_text.delta",
        "response.audio_transcript.delta",
        "response.output_audio_transcript.delta",
        "response.function_call_arguments.delta",
    }
)
_AUDIO_DELTAS = frozenset({"response.audio.delta", "response.output_audio.delta"})


_TYPE_PATTERN = re.compile(r"[a-z0-9_.]{1,128}", re.ASCII)
_LIMIT_FIELDS = ("max_output_tokens", "max_response_output_tokens")
"""The names of the output limit in the current version and in the beta version."""
_GOVERNED_NAMES = frozenset(
    {"type", "session", "response", "item", "audio", "delta", "model", "input", "output", "tools", "prompt",
     "instructions", "conversation", "format", "transcription", "input_audio_transcription", "input_audio_format",
     "output_audio_format", *_LIMIT_FIELDS}
)  # fmt: skip
"""Fields by which a session is bounded and charged. Misspelt ones are rejected: a tolerant server might accept them."""
_FOLDED_NAMES = {fold_name(name): name for name in _GOVERNED_NAMES}
_NESTED_NAMES = frozenset({"audio", "input", "output", "format", "transcription", "input_audio_transcription"})
"""Fields of a session that contain fields of ``_GOVERNED_NAMES``."""
SETTINGS_OBJECTS = ("session", "response")
"""Fields of an event that contain settings."""
CHECKED_OBJECTS = (*SETTINGS_OBJECTS, "item")
"""Fields of an event that may refer to objects stored at a provider."""
_SETTING_NAMES = frozenset(
    {"type", "object", "id", "model", "conversation", "output_modalities", "modalities", "audio", "voice", "metadata",
     "input_audio_format", "output_audio_format", "turn_detection", "input_audio_transcription", "expires_at",
     "input_audio_noise_reduction", "tracing", "truncation", "tool_choice", "include", "client_secret", "reasoning",
     *_LIMIT_FIELDS}
)  # fmt: skip
"""Settings of a session or a response that add nothing to its prompt."""


def parse_client_event(raw: bytes, models: Collection[str]) -> tuple[Event, bytes]:
    """Parse a client event. Return it with the bytes to send. Raises ``InvalidRequest`` naming the field.

    ``models`` are the accepted names of the session's model. An event that is too long to be searched for duplicate
    keys is serialized again, because the parser dropped duplicates.
    """
    try:
        event = parse_json_object(raw)
    except InvalidRequest as error:
        raise InvalidRequest(error.message.replace("request body", "event")) from None
    check_names(event, "")
    kind = event.get("type")
    if not isinstance(kind, str) or _TYPE_PATTERN.fullmatch(kind) is None:
        raise InvalidRequest("'type' must be the name of an event, such as 'response.create'", param="type")
    for object_name in SETTINGS_OBJECTS:
        fields = event.get(object_name)
        if fields is None:
            continue
        if not isinstance(fields, dict):
            raise InvalidRequest(f"'{object_name}' must be an object, not {name_json_type(fields)}", param=object_name)
        check_names(fields, f"{object_name}.")
        check_limits(fields, f"{object_name}.")
        if "model" in fields and fields["model"] not in models:
            message = f"'{object_name}.model' must be the model of the session; open another session for another model"
            raise InvalidRequest(message, param=f"{object_name}.model")
    return event, raw if len(raw) <= MAX_DUPLICATE_CHECK_BYTES else orjson.dumps(event)


def check_names(fields: Event, param: str) -> None:
    """Raise ``InvalidRequest`` for a misspelt field of ``_GOVERNED_NAMES``."""
    for name, value in fields.items():
        known_name = _FOLDED_NAMES.get(fold_name(name), name)
        if name != known_name:
            raise InvalidRequest(
                f"Unknown field '{param}{name}'; did you mean '{param}{known_name}'?", param=param + name
            )
        if name in _NESTED_NAMES and isinstance(value, dict):
            check_names(value, f"{param}{name}.")


def check_limits(settings: Event, param: str) -> None:
    """Raise ``InvalidRequest`` for an invalid output limit, because a provider might ignore it."""
    for name in _LIMIT_FIELDS:
        limit = settings.get(name)
        if limit is not None and limit != "inf" and not (type(limit) is int and 1 <= limit <= MAX_TOKENS):
            raise InvalidRequest(
                f"'{param}{name}' must be an integer from 1 to {MAX_TOKENS}, or 'inf'", param=param + name
            )


def parse_event(raw: bytes) -> Event | None:
    """Parse a provider event; None if the bytes are not a JSON object."""
    event = loads_or_none(raw)
    return event if isinstance(event, dict) else None


def build_session_inference(model: str | None) -> InferenceRequest:
    """Build the request for a session from the ``model`` in its URL. Raises ``InvalidRequest``."""
    if not model:
        raise InvalidRequest("The query needs 'model': /v1/realtime?model=…", param="model")
    if not check_model(model):
        raise InvalidRequest("'model' is not the name of a model", param="model")
    return InferenceRequest("realtime", model, {}, stream=True, sounds=True)


def check_model(model: object) -> bool:
    """Return whether ``model`` is a valid model name."""
    return isinstance(model, str) and 0 < len(model) <= MAX_MODEL_CHARS and model.isprintable()


def estimate_transcript(event: Event, audio_tokens: int) -> Usage:
    """Estimate the usage of the transcript in ``event`` if the provider reports none, from the tokens of the audio."""
    text = event.get("transcript")
    output_tokens = estimate_tokens(len(text)) if isinstance(text, str) else 0
    details = UsageDetails(audio_input=audio_tokens) if audio_tokens else None
    return Usage(
        audio_tokens,
        output_tokens,
        0,
        "estimate",
        duration_ms=1_000 * audio_tokens // _INPUT_TOKENS_A_SECOND,
        details=details,
    )


def limit_transcript(usage: Usage, audio_tokens: int) -> Usage:
    """Limit the reported usage of a transcript to the maximum for ``audio_tokens`` of audio."""
    duration_ms = min(usage.duration_ms, 1_000 * audio_tokens // _INPUT_TOKENS_A_SECOND)
    if (
        usage.prompt_tokens <= audio_tokens
        and usage.completion_tokens <= audio_tokens
        and usage.duration_ms == duration_ms
    ):
        return usage
    return Usage(
        min(usage.prompt_tokens, audio_tokens),
        min(usage.completion_tokens, audio_tokens),
        source=usage.source,
        duration_ms=duration_ms,
        details=UsageDetails(audio_input=min(usage.prompt_tokens, audio_tokens)),
    )


def bound_transcript(audio_tokens: int) -> Usage:
    """Return the maximum usage of a transcript of ``audio_tokens`` of audio."""
    details = UsageDetails(audio_input=audio_tokens)
    return Usage(
        audio_tokens, audio_tokens, duration_ms=1_000 * audio_tokens // _INPUT_TOKENS_A_SECOND, details=details
    )


def build_response_inference(model: str, prompt_tokens: int, output_tokens: int) -> InferenceRequest:
    """Build the request for one response of a session, with the expected prompt and output tokens."""
    body = {"max_output_tokens": output_tokens}
    return InferenceRequest(
        "realtime",
        model,
        body,
        stream=True,
        prompt_chars=4 * prompt_tokens,
        max_prompt_tokens=prompt_tokens,
        max_output_tokens=output_tokens,
        sounds=True,
    )


def parse_realtime_usage(raw: object) -> Usage | None:
    """Parse the ``usage`` of a response or transcription; None if missing or implausible."""
    if not isinstance(raw, dict):
        return None
    seconds = raw.get("seconds")
    if raw.get("type") == "duration" and isinstance(seconds, int | float) and 0 <= seconds <= MAX_CONTEXT_TOKENS:
        return Usage(duration_ms=round(seconds * 1000), source="upstream")
    prompt_tokens, completion_tokens = parse_count(raw.get("input_tokens")), parse_count(raw.get("output_tokens"))
    if prompt_tokens is None or completion_tokens is None:
        return None
    input_details, output_details = raw.get("input_token_details"), raw.get("output_token_details")
    cached_tokens = input_details.get("cached_tokens") if isinstance(input_details, dict) else None
    usage = build_reported_usage(prompt_tokens, completion_tokens, cached_tokens=cached_tokens, written_tokens=None)
    return attach_details(usage, find_modalities(input_details, output_details))


@frozen
class ResponseEnd:
    """The content of a ``response.done`` event.

    Attributes:
        failure: description of the failure; empty without one.
        is_complete: whether the model has read the whole prompt, and the response belongs to the conversation.
    """

    id: str
    status: str
    usage: Usage | None
    failure: str
    is_complete: bool = True


def parse_response_end(event: Event) -> ResponseEnd:
    """Parse ``response.done``."""
    response = _get_object_field(event, "response")
    details = _get_object_field(response, "status_details")
    status = str(response.get("status"))
    failure = ""
    if status == "failed":
        message = _get_object_field(details, "error").get("message")
        failure = message if isinstance(message, str) and message else "The provider gave no reason"
    is_complete = status in {"completed", "incomplete"} and response.get("conversation_id", "") is not None
    return ResponseEnd(
        find_response_id(event), status, parse_realtime_usage(response.get("usage")), failure, is_complete
    )


def find_response_id(event: Event) -> str:
    """Return the response id in a provider event; empty if it has none."""
    response_id = event.get("response_id") or _get_object_field(event, "response").get("id")
    return response_id if isinstance(response_id, str) else ""


def find_cause(event: Event) -> str | None:
    """Return the id of the client event that caused an ``error`` event; None if not given."""
    event_id = _get_object_field(event, "error").get("event_id")
    return event_id if isinstance(event_id, str) else None


def list_transcribers(session: Event) -> list[tuple[str, str]]:
    """Return the transcription models in a session's settings of either API version, each with its path."""
    audio_input = _get_object_field(_get_object_field(session, "audio"), "input")
    transcription_settings = (
        ("audio.input.transcription", audio_input.get("transcription")),
        ("input_audio_transcription", session.get("input_audio_transcription")),
    )
    models = [
        (settings.get("model") if isinstance(settings, dict) else None, f"{param}.model")
        for param, settings in transcription_settings
    ]
    return [(model, param) for model, param in models if isinstance(model, str) and model]


def build_error_event(error: GatewayError, request_id: str, cause: object = None) -> str:
    """Build an ``error`` event. ``cause`` is the ``event_id`` of the client event that caused the error, or None."""
    return orjson.dumps(
        {
            "type": ERROR,
            "event_id": f"event_{request_id}",
            "error": {
                "type": error.type,
                "code": error.public_code,
                "message": f"{error.message} (request id: {request_id})",
                "param": error.param,
                "event_id": cause if isinstance(cause, str) else None,
                **({} if error.doc_url is None else {"doc_url": error.doc_url}),
            },
        }
    ).decode()


def build_cancel_event(response_id: str) -> str:
    """Build the event that cancels a response."""
    return orjson.dumps({"type": "response.cancel", "response_id": response_id}).decode()


def build_update_event(session: Event) -> str:
    """Build the event that updates a session's settings."""
    return orjson.dumps({"type": SESSION_UPDATE, "session": session}).decode()


@attrs.define
class OutputMeter:
    """Counts the output of a response from its delta events, to estimate its tokens."""

    chars: int = 0
    audio_tokens: int = 0


@frozen
class _TokenEstimate:
    """A number of tokens: the likely number, and the number that is hardly ever exceeded."""

    likely_tokens: int = 0
    maximum: int = 0

    def __add__(self, other: "_TokenEstimate") -> "_TokenEstimate":
        return _TokenEstimate(self.likely_tokens + other.likely_tokens, self.maximum + other.maximum)

    def __sub__(self, other: "_TokenEstimate") -> "_TokenEstimate":
        return _TokenEstimate(self.likely_tokens - other.likely_tokens, self.maximum - other.maximum)


@frozen
class PromptMark:
    """The size of a session's conversation when a response was requested or began.

    Attributes:
        items: the size of the items that the client had added.
        sound_tokens: tokens of the audio that the client had sent.
        is_complete: whether the response reads the whole conversation and the session's instructions. The usage of
            such a response shows their size.
    """

    items: _TokenEstimate
    sound_tokens: int
    is_complete: bool


class RealtimeConversation:
    """Estimates the tokens of a session's conversation, which determine the reservation for the next response.

    Settings requested by the client apply until the provider confirms its own, but only where they increase the
    estimate.
    """

    def __init__(self) -> None:
        self._has_unbounded_settings = False
        self._requested_limits: list[int] = []
        self._turn_tokens = 0
        self._items = self._counted_items = _TokenEstimate()
        self._sound_tokens = self._counted_sound_tokens = self._transcribed_sound_tokens = self._paid_sound_tokens = 0
        self._last_unbounded_tokens = -1
        """The token bound before the last item of unknown length; -1 if there is none."""
        self._settings: dict[str, _TokenEstimate] = {}
        self._output_limit = ASSUMED_OUTPUT_TOKENS
        self._input_bytes_a_second = self._output_bytes_a_second = _PCM_BYTES_A_SECOND
        self._transcribers: dict[str, str] = {}

    @property
    def transcriber(self) -> str | None:
        return self._transcribers.get("confirmed") or self._transcribers.get("asked")

    @property
    def reads_more(self) -> bool:
        """Whether uncounted items may include content of unknown length, such as an image URL or tool results."""
        return self._last_unbounded_tokens >= self._counted_items.maximum

    def estimate_prompt(self, event: Event | None = None) -> int:
        """Return the likely prompt tokens of the next response. ``event`` is its ``response.create``, or None."""
        return self._sum_prompt(event).likely_tokens

    def bound_prompt(self, event: Event | None = None) -> int:
        """Return the number of prompt tokens that the next response is very unlikely to exceed."""
        return self._sum_prompt(event).maximum

    def _sum_prompt(self, event: Event | None) -> _TokenEstimate:
        known_tokens = _ADDED_TOKENS + self._turn_tokens + self._sound_tokens - self._counted_sound_tokens
        event_items = (
            _TokenEstimate() if event is None else _measure_item(event.get("response"), self._input_bytes_a_second)
        )
        return sum(
            self._settings.values(),
            _TokenEstimate(known_tokens, known_tokens) + self._items - self._counted_items + event_items,
        )

    def mark_prompt(self, event: Event | None) -> PromptMark:
        """Return the size of the conversation that a response reads, for ``note_end``.

        ``event`` is the client's ``response.create``. It is None if the provider began the response by itself. Then the
        size has only items already counted, because newer ones may not have reached the provider in time.
        """
        if event is None:
            return PromptMark(self._counted_items, self._sound_tokens, is_complete=True)
        response_settings = _get_object_field(event, "response")
        is_complete = response_settings.keys() <= _SETTING_NAMES and response_settings.get("conversation") in {
            None,
            "auto",
        }
        return PromptMark(self._items, self._sound_tokens, is_complete=is_complete)

    def note_end(self, prompt_mark: PromptMark, end: ResponseEnd, usage: Usage) -> None:
        """Set the size of the conversation to the usage if the response read all of it, else add the completion."""
        if end.usage is None or not prompt_mark.is_complete or not end.is_complete:
            self._turn_tokens += usage.completion_tokens
            return
        settings_tokens = sum(self._settings.values(), _TokenEstimate()).likely_tokens
        self._turn_tokens = max(0, usage.prompt_tokens + usage.completion_tokens - settings_tokens)
        if prompt_mark.items.maximum > self._counted_items.maximum:
            self._counted_items = prompt_mark.items
        self._counted_sound_tokens = max(self._counted_sound_tokens, prompt_mark.sound_tokens)

    @property
    def untranscribed(self) -> int:
        return self._sound_tokens - self._paid_sound_tokens

    def note_transcribed(self, usage: Usage) -> None:
        """Record the usage of a transcript. Audio that it does not cover is left to later transcripts."""
        paid_tokens = max(usage.prompt_tokens, usage.duration_ms * _INPUT_TOKENS_A_SECOND // 1_000)
        self._paid_sound_tokens = min(self._sound_tokens, self._paid_sound_tokens + paid_tokens)

    def take_transcribed(self) -> int:
        """Return the tokens of the audio that the client has sent since the last call."""
        new_tokens = self._sound_tokens - self._transcribed_sound_tokens
        self._transcribed_sound_tokens = self._sound_tokens
        return new_tokens

    def find_output_limit(self, event: Event | None = None) -> int:
        """Return the output limit of ``event``, else the latest one of the client, else the provider's, in tokens."""
        event_limit = _find_limit(_get_object_field(event, "response")) if event is not None else None
        if event_limit is None:
            event_limit = self._requested_limits[-1] if self._requested_limits else None
        return self._output_limit if event_limit is None else event_limit

    def find_longest_output(self, event: Event | None = None) -> int:
        """Return the highest output limit that may apply: a confirmed one, a requested one, or that of ``event``."""
        return max(self._output_limit, *self._requested_limits, self.find_output_limit(event))

    def may_read_more(self, event: Event | None = None) -> bool:
        """Return whether the next response may read content of unknown length, such as an image URL or tool results."""
        return (
            self.reads_more
            or self._has_unbounded_settings
            or (event is not None and _reads_more(_get_object_field(event, "response")))
        )

    def note_client(self, event: Event) -> None:
        """Count the content of a client event, and apply its settings. Deleted audio stays counted: it may be read."""
        match event.get("type"):
            case "input_audio_buffer.append":
                self._sound_tokens += _count_audio(
                    event.get("audio"), self._input_bytes_a_second, _INPUT_TOKENS_A_SECOND
                )
            case "conversation.item.create":
                item = event.get("item")
                self._items += _measure_item(item, self._input_bytes_a_second)
                if _reads_more({"input": [item]}):
                    self._last_unbounded_tokens = self._items.maximum - 1
        if isinstance(event.get("session"), dict):
            session = event["session"]
            self._has_unbounded_settings = self._has_unbounded_settings or _reads_more(session)
            if event.get("type") == SESSION_UPDATE:
                limit = _find_limit(session)
                self._requested_limits.append(self._output_limit if limit is None else limit)
            self._apply_settings(session, "asked")

    def note_provider(self, event: Event) -> None:
        if event.get("type") in {"session.created", SESSION_UPDATED}:
            session = _get_object_field(event, "session")
            self._apply_settings(session, "confirmed")
            if event["type"] == SESSION_UPDATED:
                del self._requested_limits[:1]
            self._output_limit = _find_limit(session) or ASSUMED_OUTPUT_TOKENS

    def note_output(self, event: Event, meter: OutputMeter) -> None:
        kind, delta = event.get("type"), event.get("delta")
        if not isinstance(delta, str):
            return
        if kind in _TEXT_DELTAS:
            meter.chars += len(delta)
        elif kind in _AUDIO_DELTAS:
            meter.audio_tokens += _count_audio(delta, self._output_bytes_a_second, _OUTPUT_TOKENS_A_SECOND)

    def _apply_settings(self, session: Event, state: str) -> None:
        """Apply settings, whose ``state`` is ``asked`` or ``confirmed``. Only confirmed ones can lower the estimate."""
        is_requested = state == "asked"
        for name in ("instructions", "tools"):
            if name in session:
                estimate = _measure_json(session[name])
                known_estimate = self._settings.get(name, estimate)
                self._settings[name] = (
                    max(estimate, known_estimate, key=lambda setting: setting.maximum) if is_requested else estimate
                )
        input_bytes_a_second, output_bytes_a_second = (
            _find_bytes_a_second(session, direction) for direction in ("input", "output")
        )
        self._input_bytes_a_second = (
            min(input_bytes_a_second or _PCM_BYTES_A_SECOND, self._input_bytes_a_second)
            if is_requested
            else input_bytes_a_second or self._input_bytes_a_second
        )
        self._output_bytes_a_second = output_bytes_a_second or self._output_bytes_a_second
        for model, _ in list_transcribers(session)[:1]:
            self._transcribers[state] = model


def estimate_output(meter: OutputMeter, prompt_tokens: int) -> Usage:
    """Estimate the usage of a response that was cut off, from its estimated prompt and the output so far."""
    tokens = estimate_tokens(meter.chars) + meter.audio_tokens
    details = UsageDetails(audio_output=meter.audio_tokens) if meter.audio_tokens else None
    return Usage(prompt_tokens, tokens, 0, "estimate", details=details)


def _find_limit(settings: Event) -> int | None:
    """Return the largest output limit in the settings, at most ``MAX_RESPONSE_TOKENS``; None if they have none."""
    limit_values = [settings[name] for name in _LIMIT_FIELDS if settings.get(name) is not None]
    limits = [
        min(limit, MAX_RESPONSE_TOKENS) if type(limit) is int and limit > 0 else ASSUMED_OUTPUT_TOKENS
        for limit in limit_values
    ]
    return max(limits, default=None)


def _reads_more(settings: Event) -> bool:
    """Return whether settings or items refer to content of unknown length. Inline audio has a known length."""
    items = settings.get("input")
    prompt = {name: value for name, value in settings.items() if name not in _SETTING_NAMES}
    if isinstance(items, list):
        prompt["input"] = [_drop_audio(item) for item in items]
    reads = find_reads(InferenceRequest("responses", "", prompt))
    return reads.unbounded or reads.tools


def _drop_audio(item: Any) -> Any:
    parts = item.get("content") if isinstance(item, dict) else None
    if not isinstance(parts, list):
        return item
    new_parts = [
        {name: value for name, value in part.items() if name != "audio" or not isinstance(value, str)}
        if isinstance(part, dict)
        else part
        for part in parts
    ]
    return {**item, "content": new_parts}


def _find_bytes_a_second(session: Event, direction: str) -> int | None:
    audio_format = _get_object_field(_get_object_field(session, "audio"), direction).get("format") or session.get(
        f"{direction}_audio_format"
    )
    kind = audio_format.get("type") if isinstance(audio_format, dict) else audio_format
    if not isinstance(kind, str):
        return None
    return _PCM_BYTES_A_SECOND if "pcm" in kind and not kind.endswith(("pcmu", "pcma")) else _G711_BYTES_A_SECOND


def _count_audio(data: object, bytes_a_second: int, tokens_a_second: int) -> int:
    size = len(data) * 3 // 4 if isinstance(data, str) else 0
    return -(-size * tokens_a_second // bytes_a_second)


def _measure_item(value: object, bytes_a_second: int) -> _TokenEstimate:
    if isinstance(value, str):
        return _TokenEstimate(estimate_tokens(len(value)), bound_text(value))
    if isinstance(value, list):
        return sum((_measure_item(part, bytes_a_second) for part in value), _TokenEstimate())
    if not isinstance(value, dict):
        return _TokenEstimate(1, 1)
    estimate = _TokenEstimate(1, 1)
    for name, member in value.items():
        if name == "audio" and isinstance(member, str):
            estimate += _TokenEstimate(*2 * (_count_audio(member, bytes_a_second, _INPUT_TOKENS_A_SECOND),))
        elif name == "image_url":
            estimate += _TokenEstimate(_IMAGE_TOKENS, _IMAGE_TOKENS)
        else:
            estimate += _measure_item(member, bytes_a_second)
    return estimate


def _measure_json(value: object) -> _TokenEstimate:
    raw_json = orjson.dumps(value)
    return _TokenEstimate(estimate_tokens(len(raw_json)), len(raw_json))


def _get_object_field(value: Mapping[str, Any] | None, name: str) -> Event:
    return as_object(value.get(name)) if value is not None else {}
