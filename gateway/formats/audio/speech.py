"""Speech in the OpenAI API format: the request, and passthrough of audio, raw or as events."""

from collections.abc import Mapping
from typing import Any

from gateway.domain.audio import (
    bound_speech_ms,
    bound_spoken_tokens,
    count_spoken_tokens,
    estimate_speech_ms,
    find_speech_ms,
)
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import MAX_TOKENS, Usage, parse_count
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.audio.stream import AudioEventsPassthrough
from gateway.formats.errors.openai import Secrets, build_reported_error, parse_error
from gateway.formats.stream import StreamState, StreamTransform
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.formats.usage.token_bounds import MESSAGE_TOKENS, bound_text
from gateway.formats.wire.fields import Body, make_missing_error, name_json_type, parse_model, parse_number, read_text

MAX_INPUT_CHARS = 100_000
"""An upper limit of two hours of speech, more than any provider accepts. The limits of models differ (OpenAI: 4,096
characters; Google and Together: more), so the provider enforces them.
"""
MEDIA_TYPES: Mapping[str, str] = {
    "mp3": "audio/mpeg",  # RFC 3003
    "opus": "audio/ogg",  # RFC 7845, 9: Opus is contained in Ogg
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",  # not audio/L16, which has the other byte order: RFC 2586
}
"""The supported formats and their media types."""
_STREAM_FORMATS = ("audio", "sse")
_SOUND_TYPES = ("audio/", "application/octet-stream", "binary/octet-stream", "application/ogg")
_HEAD_BYTES = 64
_DELTA_TYPE = b'"speech.audio.delta"'


def parse_speech_inference(body: Body) -> InferenceRequest:
    """Check a parsed body and return the request. Raises ``InvalidRequest`` naming the field.

    The answer is always treated as a stream, because audio is forwarded as it arrives.
    """
    model = parse_model(body)
    text = _parse_input(body)
    instructions = read_text(body, "instructions") or ""
    _check_voice(body)
    speed = parse_number(body, "speed", 0.25, 4.0) or 1.0
    _check_choice(body, "response_format", tuple(MEDIA_TYPES))
    _check_choice(body, "stream_format", _STREAM_FORMATS)
    return InferenceRequest(
        operation="speech",
        model=model,
        body=body,
        stream=True,
        prompt_chars=len(text) + len(instructions),
        max_prompt_tokens=MESSAGE_TOKENS + bound_text(text) + bound_text(instructions),
        max_output_tokens=bound_spoken_tokens(bound_text(text), speed),
        sound_ms=estimate_speech_ms(len(text), speed),
        characters=len(text),
    )


def _parse_input(body: Body) -> str:
    text = read_text(body, "input")
    if not text:
        raise make_missing_error(body, "input", "the text to speak")
    if len(text) > MAX_INPUT_CHARS:
        raise InvalidRequest(f"'input' must be at most {MAX_INPUT_CHARS} characters", param="input")
    return text


def _check_voice(body: Body) -> None:
    voice = body.get("voice")
    if voice is None or voice == "":
        raise make_missing_error(body, "voice")
    if isinstance(voice, str):
        return
    if not isinstance(voice, dict):
        raise InvalidRequest(
            f"'voice' must be a string or an object with an 'id', not {name_json_type(voice)}", param="voice"
        )
    if not isinstance(voice.get("id"), str) or not voice["id"]:
        raise InvalidRequest("'voice.id' must be a string", param="voice.id")


def _check_choice(body: Body, name: str, choices: tuple[str, ...]) -> None:
    value = read_text(body, name)
    if value is not None and value not in choices:
        raise InvalidRequest(f"'{name}' must be one of {', '.join(choices)}", param=name)


def build_speech_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body with the provider's name for the model."""
    return inference.body | {"model": model}


def is_events(inference: InferenceRequest) -> bool:
    """Return whether the client requested events instead of raw audio."""
    return inference.body.get("stream_format") == "sse"


def find_media_type(inference: InferenceRequest) -> str:
    """Return the media type of the requested audio."""
    return MEDIA_TYPES[_find_format(inference)]


def is_sound_type(content_type: str) -> bool:
    """Return whether a provider's Content-Type may be audio; an empty one may."""
    kind = content_type.strip().lower()
    return not kind or kind.startswith(_SOUND_TYPES)


def open_speech_transform(inference: InferenceRequest, secrets: Secrets) -> StreamTransform:
    """Return the stream transform for the requested ``stream_format``."""
    return (
        SpeechEventsPassthrough(inference, secrets) if is_events(inference) else SpeechPassthrough(inference, secrets)
    )


def _find_format(inference: InferenceRequest) -> str:
    return inference.body.get("response_format") or "mp3"


def _estimate_usage(inference: InferenceRequest, length_ms: int | None) -> Usage:
    length_ms = inference.sound_ms if length_ms is None else min(length_ms, bound_speech_ms(inference.sound_ms))
    return Usage(
        estimate_prompt(inference),
        min(count_spoken_tokens(length_ms), MAX_TOKENS),
        source="estimate",
        duration_ms=length_ms,
        characters=inference.characters,
    )


class SpeechPassthrough(StreamState):
    """Forwards raw audio. The stream ends when the connection closes.

    Attributes:
        events: number of pieces of audio so far.
    """

    __slots__ = ("_audio_bytes", "_first_bytes", "_inference", "_secrets", "events")

    def __init__(self, inference: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__()
        self._inference = inference
        self._secrets = secrets
        self._first_bytes = b""
        self._audio_bytes = 0
        self.events = 0

    def feed(self, data: bytes) -> bytes:
        if self.closed or not data:
            return b""
        if not self.events and data.startswith(b"{"):
            error = parse_error(data, self._secrets)
            if error is not None:
                self.error = build_reported_error(error)
                return b""
        if len(self._first_bytes) < _HEAD_BYTES:
            self._first_bytes += data[:_HEAD_BYTES]
        self._audio_bytes += len(data)
        self.events += 1
        return data

    def finish(self) -> bytes:
        if self.error is not None:
            raise self.error
        if not self.events:
            raise ProviderBadResponse("The provider's answer is empty", phase="stream")
        self.ended = True
        return b""

    def parse_usage(self) -> Usage:
        """Estimate tokens and length from the input and the forwarded audio: OpenAI reports no usage for raw audio."""
        if not self.events:
            return Usage()
        return _estimate_usage(
            self._inference, find_speech_ms(self._first_bytes, self._audio_bytes, _find_format(self._inference))
        )


class SpeechEventsPassthrough(AudioEventsPassthrough):
    """Forwards speech that is streamed as events."""

    __slots__ = ("_inference", "_usage")

    LAST_EVENT = "speech.audio.done"

    def __init__(self, inference: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._inference = inference
        self._usage: Usage | None = None

    def _filter_event(self, event: bytes, payload: bytes) -> bytes:
        if _DELTA_TYPE in payload and b'"error"' not in payload:  # skip parsing: a delta may have megabytes of base64
            self.events += 1
            return event
        return super()._filter_event(event, payload)

    def _record_event(self, value: dict[str, Any]) -> None:
        self._usage = _parse_usage(value.get("usage"), self._inference) or self._usage

    def parse_usage(self) -> Usage:
        if self._usage is not None:
            return self._usage
        return _estimate_usage(self._inference, None) if self.events or self.ended else Usage()


def _parse_usage(raw: object, inference: InferenceRequest) -> Usage | None:
    if not isinstance(raw, Mapping):
        return None
    prompt_tokens, completion_tokens = parse_count(raw.get("input_tokens")), parse_count(raw.get("output_tokens"))
    if prompt_tokens is None or completion_tokens is None:
        return None
    return Usage(
        prompt_tokens,
        completion_tokens,
        source="upstream",
        duration_ms=inference.sound_ms,
        characters=inference.characters,
    )
