"""OpenAI's audio, as strict as the real one: sound in every format, transcripts in every format, and their streams.

Rules: the convention's OpenAPI document, ``CreateTranscriptionRequest``, ``CreateTranslationRequest``,
``CreateSpeechRequest``; developers.openai.com/api/docs/guides/speech-to-text and .../text-to-speech.
"""

import base64
import io
import wave
from typing import Any, ClassVar, Literal

import attrs
import orjson
from aiohttp import web

from tests.support.image_providers import Fate, ImageProvider, Json

TEXT = "Grüße, world. It rains."
SEGMENTS = (
    {"id": 0, "seek": 0, "start": 0.0, "end": 1.5, "text": " Grüße, world.", "tokens": [1], "temperature": 0.0,
     "avg_logprob": -0.1, "compression_ratio": 1.0, "no_speech_prob": 0.01},
    {"id": 1, "seek": 150, "start": 1.5, "end": 3.25, "text": " It rains.", "tokens": [2], "temperature": 0.0,
     "avg_logprob": -0.2, "compression_ratio": 1.0, "no_speech_prob": 0.02},
)  # fmt: skip
SRT = "1\n00:00:00,000 --> 00:00:01,500\nGrüße, world.\n\n2\n00:00:01,500 --> 00:00:03,250\nIt rains.\n\n"
VTT = "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nGrüße, world.\n\n00:00:01.500 --> 00:00:03.250\nIt rains.\n\n"
TOKENS: Json = {
    "type": "tokens",
    "input_tokens": 55,
    "output_tokens": 7,
    "total_tokens": 62,
    "input_token_details": {"text_tokens": 5, "audio_tokens": 50},
}
SPOKEN: Json = {"input_tokens": 6, "output_tokens": 40, "total_tokens": 46}
Reports = Literal["tokens", "duration", "nothing"]

_HEARD = {
    "file", "model", "language", "languages[]", "prompt", "keywords[]", "response_format", "temperature",
    "timestamp_granularities[]", "include[]", "chunking_strategy", "chunking_strategy[type]",
    "chunking_strategy[threshold]", "chunking_strategy[prefix_padding_ms]", "chunking_strategy[silence_duration_ms]",
    "known_speaker_names[]", "known_speaker_references[]", "stream",
}  # fmt: skip
_TRANSLATED = {"file", "model", "prompt", "response_format", "temperature"}
_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_SPOKEN = {"model", "input", "voice", "instructions", "response_format", "speed", "stream_format"}
SOUND_TYPES = {
    "mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav",
    "pcm": "audio/pcm",
}  # fmt: skip


@attrs.frozen
class HeardSound:
    """One call that was understood. ``fields`` are a form's but for its file, or a body."""

    path: str
    fields: dict[str, Any]
    file: bytes = b""
    filename: str = ""
    media_type: str = ""


def make_wav(seconds: float = 1.0, rate: int = 8_000) -> bytes:
    """A recording of silence: 16 bits, one channel."""
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(rate)
        recording.writeframes(bytes(round(seconds * rate) * 2))
    return file.getvalue()


def make_mp3(frames: int = 40) -> bytes:
    """Frames of MPEG 1, layer III: 128 kbit/s at 44.1 kHz, 26 ms each."""
    return (b"\xff\xfb\x90\x64" + bytes(413)) * frames


def speak(kind: str) -> bytes:
    """Two seconds of sound in a format, or what begins like it."""
    made = {"wav": make_wav(2.0, 24_000), "pcm": make_wav(2.0, 24_000)[44:], "mp3": make_mp3(77)}
    starts = {"opus": b"OggS", "aac": b"\xff\xf1", "flac": b"fLaC"}
    return made[kind] if kind in made else starts[kind] + bytes(5_000)


class _Refused(Exception):
    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def _expect(met: object, message: str, param: str | None = None) -> None:
    if not met:
        raise _Refused(message, param)


class OpenAiAudio(ImageProvider):
    """``provider = "openai"``.

    Args:
        streams: it streams transcripts; else it answers whole, as with whisper-1.
        reports: what it says of a transcript's usage.
        cut: it breaks off after the first piece of a stream.

    Attributes:
        sounds: every call that it took.
    """

    slug = "openai"
    model: ClassVar[str] = "gpt-4o-transcribe"

    def __init__(self, *fates: Fate, streams: bool = True, reports: Reports = "tokens", cut: bool = False) -> None:
        super().__init__(*fates)
        self._streams = streams
        self._reports = reports
        self._cut = cut
        self.sounds: list[HeardSound] = []

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/audio/transcriptions", self._hear)
        app.router.add_post("/v1/audio/translations", self._hear)
        app.router.add_post("/v1/audio/speech", self._speak)

    def write_denied(self) -> Json:
        return _write_error("Incorrect API key provided", None, "invalid_api_key")

    async def _hear(self, request: web.Request) -> web.StreamResponse:
        try:
            sound = await _read_form(request)
            _check_form(sound)
        except _Refused as refused:
            return web.json_response(_write_error(refused.message, refused.param), status=400)
        if self.give() == "fail":
            return web.json_response(_write_error("The server had an error", None), status=500)
        self.sounds.append(sound)
        if self._streams and sound.fields.get("stream") == "true":
            return await self._stream(request, self._write_transcript(), "text/event-stream; charset=utf-8")
        return self._answer(sound)

    def _answer(self, sound: HeardSound) -> web.Response:
        kind = sound.fields.get("response_format", "json")
        plain = {"text": f"{TEXT}\n", "srt": SRT, "vtt": VTT}
        if kind in plain:
            return web.Response(text=plain[kind])
        answer: Json = {"text": TEXT}
        if kind == "verbose_json":
            words = [{"word": "Grüße", "start": 0.0, "end": 0.7}]
            task = "translate" if sound.path.endswith("translations") else "transcribe"
            answer |= {"task": task, "language": "english", "duration": 3.25, "segments": SEGMENTS, "words": words}
        if kind == "diarized_json":
            kept = [{"id": str(one["id"]), "type": "transcript.text.segment", "start": one["start"],
                     "end": one["end"], "text": one["text"], "speaker": "A"} for one in SEGMENTS]  # fmt: skip
            answer |= {"task": "transcribe", "duration": 3.25, "segments": kept}
        return web.json_response(answer | self._report())

    def _report(self) -> Json:
        usages = {"tokens": TOKENS, "duration": {"type": "duration", "seconds": 4}}
        return {"usage": usages[self._reports]} if self._reports in usages else {}

    def _write_transcript(self) -> list[bytes]:
        deltas = [{"type": "transcript.text.delta", "delta": word} for word in ("Grüße, ", "world. ", "It rains.")]
        return [_event(one) for one in (*deltas, {"type": "transcript.text.done", "text": TEXT, **self._report()})]

    async def _speak(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
            _check_speech(body)
        except _Refused as refused:
            return web.json_response(_write_error(refused.message, refused.param), status=400)
        if self.give() == "fail":
            return web.json_response(_write_error("The server had an error", None), status=500)
        self.sounds.append(HeardSound(request.path, body))
        kind = body.get("response_format", "mp3")
        sound = speak(kind)
        pieces = [sound[start : start + 4_096] for start in range(0, len(sound), 4_096)]
        if body.get("stream_format") != "sse":
            return await self._stream(request, pieces, SOUND_TYPES[kind])
        events: list[Json] = [
            {"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()} for piece in pieces
        ]
        events.append({"type": "speech.audio.done", "usage": SPOKEN})
        return await self._stream(request, list(map(_event, events)), "text/event-stream; charset=utf-8")

    async def _stream(self, request: web.Request, pieces: list[bytes], media_type: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": media_type})
        await response.prepare(request)
        for piece in pieces[:1] if self._cut else pieces:
            await response.write(piece)
        if self._cut and request.transport is not None:
            request.transport.abort()
        return response


async def _read_form(request: web.Request) -> HeardSound:
    _expect(request.content_type == "multipart/form-data", "Expected multipart/form-data")
    form = await request.post()
    file = form.get("file")
    _expect(isinstance(file, web.FileField), "you must provide a file", "file")
    assert isinstance(file, web.FileField)
    fields: dict[str, Any] = {}
    for name, value in form.items():
        if name == "file":
            continue
        _expect(isinstance(value, str), f"'{name}' is no file", name)
        if name.endswith("[]"):
            fields.setdefault(name, []).append(value)
        else:
            _expect(name not in fields, f"Duplicate field '{name}'", name)
            fields[name] = value
    return HeardSound(request.path, fields, file.file.read(), file.filename, file.content_type)


def _check_form(sound: HeardSound) -> None:
    fields, translates = sound.fields, sound.path.endswith("translations")
    unknown = fields.keys() - (_TRANSLATED if translates else _HEARD)
    _expect(not unknown, f"Unknown parameter: {sorted(unknown)}", next(iter(unknown), None))
    _expect(fields.get("model"), "you must provide a model parameter", "model")
    _expect(sound.file, "Audio file is too short", "file")
    _expect("." in sound.filename, "Unrecognized file format", "file")
    formats = _FORMATS if translates else (*_FORMATS, "diarized_json")
    _expect(fields.get("response_format", "json") in formats, "Invalid response_format", "response_format")
    _expect(0 <= float(fields.get("temperature", "0")) <= 1, "temperature: between 0 and 1", "temperature")
    _expect(fields.get("stream", "false") in {"true", "false"}, "stream: a boolean", "stream")
    granularities = fields.get("timestamp_granularities[]", [])
    _expect({"word", "segment"}.issuperset(granularities), "Invalid granularity", "timestamp_granularities")
    timed = fields.get("response_format") == "verbose_json"
    _expect(timed or not granularities, "timestamp_granularities: only with verbose_json", "timestamp_granularities")


def _check_speech(body: Any) -> None:
    _expect(isinstance(body, dict), "Expected an object")
    unknown = body.keys() - _SPOKEN
    _expect(not unknown, f"Unknown parameter: {sorted(unknown)}", next(iter(unknown), None))
    _expect(isinstance(body.get("model"), str), "you must provide a model parameter", "model")
    _expect(isinstance(body.get("input"), str) and 0 < len(body["input"]) <= 4_096, "input: 1 to 4096", "input")
    voice = body.get("voice")
    _expect(isinstance(voice, str) or (isinstance(voice, dict) and isinstance(voice.get("id"), str)), "voice", "voice")
    _expect(body.get("response_format", "mp3") in SOUND_TYPES, "Invalid response_format", "response_format")
    _expect(0.25 <= body.get("speed", 1) <= 4, "speed: between 0.25 and 4", "speed")
    _expect(body.get("stream_format", "audio") in {"audio", "sse"}, "Invalid stream_format", "stream_format")


def _write_error(message: str, param: str | None, code: str | None = None) -> Json:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def _event(value: Json) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
