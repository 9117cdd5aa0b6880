"""Speech in the convention: the call, its sound as it comes, and the events that say the same.

Shapes: the convention's OpenAPI document, ``CreateSpeechRequest``, ``SpeechAudioDeltaEvent``, ``SpeechAudioDoneEvent``.
An answer is bytes, or with ``stream_format`` "sse" events; either is passed on as it comes.
"""

from collections.abc import Mapping
from types import MappingProxyType
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
from gateway.formats.openai.audio_stream import AudioEventsPassthrough
from gateway.formats.openai.errors import Secrets, build_reported, parse_error
from gateway.formats.openai.fields import Body, kind_of, parse_model, parse_number, read_text
from gateway.formats.openai.token_bounds import MESSAGE_TOKENS, bound_text
from gateway.formats.prompt_tokens import estimate_prompt
from gateway.formats.stream import StreamState, StreamTransform

MAX_INPUT_CHARS = 100_000
"""OpenAI takes 4,096 characters, Google and Together more: how many a model takes is for its provider to say. This is
what nobody takes, two hours of speech."""
MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "mp3": "audio/mpeg",  # RFC 3003
        "opus": "audio/ogg",  # RFC 7845, 9: Opus comes in Ogg
        "aac": "audio/aac",
        "flac": "audio/flac",
        "wav": "audio/wav",
        "pcm": "audio/pcm",  # audio/L16 would be of the other byte order: RFC 2586
    },
)
"""The formats that can be asked for, and their media types."""
_STREAM_FORMATS = ("audio", "sse")
_SOUND_TYPES = ("audio/", "application/octet-stream", "binary/octet-stream", "application/ogg")
_HEAD_BYTES = 64
_DELTA = b'"speech.audio.delta"'


def parse_speech_call(body: Body) -> InferenceRequest:
    """A parsed body -> the checked call. Raises ``InvalidRequest`` naming the field.

    Checked is what the gateway relies on or what no provider accepts; every other field passes as it is. It is a
    stream in either form: sound leaves as it comes.
    """
    model = parse_model(body)
    text = _parse_input(body)
    instructions = read_text(body, "instructions") or ""
    _check_voice(body.get("voice"))
    speed = parse_number(body, "speed", 0.25, 4.0) or 1.0
    _check_word(body, "response_format", tuple(MEDIA_TYPES))
    _check_word(body, "stream_format", _STREAM_FORMATS)
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
        raise InvalidRequest("Missing required field 'input': the text to speak", param="input")
    if len(text) > MAX_INPUT_CHARS:
        raise InvalidRequest(f"'input' must be at most {MAX_INPUT_CHARS} characters", param="input")
    return text


def _check_voice(voice: object) -> None:
    """A name, or an object with the id of a voice of one's own."""
    if voice is None or voice == "":
        raise InvalidRequest("Missing required field 'voice'", param="voice")
    if isinstance(voice, str):
        return
    if not isinstance(voice, dict):
        raise InvalidRequest(f"'voice' must be a string or an object with an 'id', not {kind_of(voice)}", param="voice")
    if not isinstance(voice.get("id"), str) or not voice["id"]:
        raise InvalidRequest("'voice.id' must be a string", param="voice.id")


def _check_word(body: Body, name: str, allowed: tuple[str, ...]) -> None:
    value = read_text(body, name)
    if value is not None and value not in allowed:
        raise InvalidRequest(f"'{name}' must be one of {', '.join(allowed)}", param=name)


def build_speech_body(call: InferenceRequest, model: str) -> Body:
    """The body for the provider, under the provider's name of the model."""
    return call.body | {"model": model}


def is_events(call: InferenceRequest) -> bool:
    """Whether the answer is a stream of events instead of bytes."""
    return call.body.get("stream_format") == "sse"


def find_media_type(call: InferenceRequest) -> str:
    """The type of the sound that was asked for."""
    return MEDIA_TYPES[_find_format(call)]


def is_sound_type(content_type: str) -> bool:
    """Whether a provider's Content-Type may be that of sound; nothing may."""
    kind = content_type.strip().lower()
    return not kind or kind.startswith(_SOUND_TYPES)


def open_speech_gate(call: InferenceRequest, secrets: Secrets) -> StreamTransform:
    """The gate for the answer in the form that was asked for."""
    return SpeechEventsPassthrough(call, secrets) if is_events(call) else SpeechPassthrough(call, secrets)


def _find_format(call: InferenceRequest) -> str:
    return call.body.get("response_format") or "mp3"


def _estimate(call: InferenceRequest, length_ms: int | None) -> Usage:
    """What was used, as far as can be told from the text, and from the sound where that is known."""
    length_ms = call.sound_ms if length_ms is None else min(length_ms, bound_speech_ms(call.sound_ms))
    return Usage(
        estimate_prompt(call),
        min(count_spoken_tokens(length_ms), MAX_TOKENS),
        source="estimate",
        duration_ms=length_ms,
        characters=call.characters,
    )


class SpeechPassthrough(StreamState):
    """A gate for sound: every piece leaves as it is, and the transport's end is its end. See ``gate.Gate``.

    Attributes:
        events: pieces so far.
        ended: see ``StreamTransform``.
        fault: the provider reported an error in place of sound.
    """

    __slots__ = ("_call", "_head", "_secrets", "_size", "events")

    def __init__(self, call: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__()
        self._call = call
        self._secrets = secrets
        self._head = b""
        self._size = 0
        self.events = 0

    def feed(self, data: bytes) -> bytes:
        """A piece in, the same piece out."""
        if self.closed or not data:
            return b""
        if not self.events and data.startswith(b"{"):
            error = parse_error(data, self._secrets)
            if error is not None:
                self.fault = build_reported(error.message)
                return b""
        if len(self._head) < _HEAD_BYTES:
            self._head += data[:_HEAD_BYTES]
        self._size += len(data)
        self.events += 1
        return data

    def finish(self) -> bytes:
        """The transport has ended. Raises ``ProviderBadResponse`` where nothing came."""
        if self.fault is not None:
            raise self.fault
        if not self.events:
            raise ProviderBadResponse("The provider's answer is empty", phase="stream")
        self.ended = True
        return b""

    def parse_usage(self) -> Usage:
        """The characters, which are known, and of the sound that passed an estimate; the convention reports nothing."""
        if not self.events:
            return Usage()
        return _estimate(self._call, find_speech_ms(self._head, self._size, _find_format(self._call)))


class SpeechEventsPassthrough(AudioEventsPassthrough):
    """The gate of speech in events; see there."""

    __slots__ = ("_call", "_usage")

    LAST = "speech.audio.done"

    def __init__(self, call: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._call = call
        self._usage: Usage | None = None

    def _judge(self, event: bytes, payload: bytes) -> bytes:
        if _DELTA in payload and b'"error"' not in payload:  # megabytes of base64 are not looked into
            self.events += 1
            return event
        return super()._judge(event, payload)

    def _note(self, value: dict[str, Any]) -> None:
        self._usage = _parse_told(value.get("usage"), self._call) or self._usage

    def parse_usage(self) -> Usage:
        """The provider's word, else an estimate."""
        if self._usage is not None:
            return self._usage
        return _estimate(self._call, None) if self.events or self.ended else Usage()


def _parse_told(raw: object, call: InferenceRequest) -> Usage | None:
    if not isinstance(raw, Mapping):
        return None
    prompt, completion = parse_count(raw.get("input_tokens")), parse_count(raw.get("output_tokens"))
    if prompt is None or completion is None:
        return None
    return Usage(prompt, completion, source="upstream", duration_ms=call.sound_ms, characters=call.characters)
