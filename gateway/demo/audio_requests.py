"""Parses requests for demo-speech and demo-transcribe."""

from typing import Literal

from gateway.demo.forms import DemoForm
from gateway.demo.models import SPEECH_MODEL, TRANSCRIPTION_MODEL
from gateway.demo.requests import Json, RequestError, get_choice, get_typed, parse_fields
from gateway.frozen import frozen

TranscriptFormat = Literal["json", "text", "verbose_json"]

_MAX_INPUT_CHARS = 4_096
_MIN_SPEED, _MAX_SPEED = 0.25, 4.0
_UNSUPPORTED_FORMATS = ("mp3", "opus", "aac", "flac")
_FORMATS: tuple[TranscriptFormat, ...] = ("json", "text", "verbose_json")
_FLAG_VALUES = {"true": True, "1": True, "True": True, "false": False, "0": False, "False": False, "": False}


@frozen(kw_only=True)
class SpeechRequest:
    """A text to speak.

    Attributes:
        speed: a factor; 1 is the usual speed.
        wav: whether a file header precedes the samples.
        events: whether the audio is sent as server-sent events.
    """

    text: str
    voice: str
    speed: float
    wav: bool
    events: bool


@frozen(kw_only=True)
class TranscriptionRequest:
    """How to answer with the transcript of a recording."""

    response_format: TranscriptFormat
    language: str
    stream: bool = False


def parse_speech(body: object) -> SpeechRequest:
    """Parse a text to speak. Raises ``RequestError`` for the first wrong field.

    The default format is WAV, not the OpenAI API's MP3, which needs an encoder library.
    """
    fields = parse_fields(body, SPEECH_MODEL)
    text = get_typed(fields, "input", str, default="")
    if not text.strip() or len(text) > _MAX_INPUT_CHARS:
        raise RequestError(f"'input' must be a text of 1 to {_MAX_INPUT_CHARS} characters.", param="input")
    get_typed(fields, "instructions", str, default="")
    return SpeechRequest(
        text=text,
        voice=_parse_voice(fields.get("voice")),
        speed=_parse_speed(fields.get("speed")),
        wav=_parse_sound_format(fields) == "wav",
        events=get_choice(fields, "stream_format", ("audio", "sse")) == "sse",
    )


def parse_transcription(form: DemoForm) -> TranscriptionRequest:
    """Parse a transcription request. Raises ``RequestError`` for the first wrong field."""
    _check_model(form)
    stream = form.get_text("stream") or ""
    if stream not in _FLAG_VALUES:
        raise RequestError("'stream' must be true or false.", param="stream")
    return TranscriptionRequest(
        response_format=_parse_format(form),
        language=form.get_text("language") or "english",
        stream=_FLAG_VALUES[stream],
    )


def parse_translation(form: DemoForm) -> TranscriptionRequest:
    """Parse a request to translate a recording into English. Raises ``RequestError`` for the first wrong field."""
    _check_model(form)
    return TranscriptionRequest(response_format=_parse_format(form), language="english")


def _check_model(form: DemoForm) -> None:
    parse_fields({"model": form.get_text("model")}, TRANSCRIPTION_MODEL)


def _parse_format(form: DemoForm) -> TranscriptFormat:
    response_format = form.get_text("response_format") or "json"
    for format_name in _FORMATS:
        if format_name == response_format:
            return format_name
    raise RequestError(f"'response_format' must be one of {', '.join(_FORMATS)}.", param="response_format")


def _parse_voice(value: object) -> str:
    name = value.get("id") if isinstance(value, dict) else value
    if not isinstance(name, str) or not name:
        raise RequestError("'voice' must be the name of a voice; the demo knows any.", param="voice")
    return name


def _parse_speed(value: object) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not _MIN_SPEED <= value <= _MAX_SPEED:
        raise RequestError(f"'speed' must be a number from {_MIN_SPEED} to {_MAX_SPEED}.", param="speed")
    return float(value)


def _parse_sound_format(fields: Json) -> str:
    if fields.get("response_format") in _UNSUPPORTED_FORMATS:
        sound_format = fields["response_format"]
        raise RequestError(f"The demo speaks 'wav' and 'pcm', not '{sound_format}'.", param="response_format")
    return get_choice(fields, "response_format", ("wav", "pcm"))
