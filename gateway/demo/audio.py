"""The demo's audio: ``/v1/audio/speech``, ``/v1/audio/transcriptions`` and ``/v1/audio/translations``."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor

from aiohttp import hdrs, web

from gateway.demo.audio_requests import (
    SpeechRequest,
    TranscriptionRequest,
    parse_speech,
    parse_transcription,
    parse_translation,
)
from gateway.demo.forms import DemoForm, FormFile, receive_form
from gateway.demo.replies import EVENT_STREAM, build_event, build_reply, parse_json, pass_events, send_pieces
from gateway.demo.requests import Json, RequestError
from gateway.demo.text import split_pieces
from gateway.demo.transcripts import DemoTranscript, build_events, build_transcript, make_transcript
from gateway.demo.wav import SAMPLE_RATE, Recording, Speech, build_head, find_recording, plan_speech
from gateway.domain.media import SNIFF_BYTES, sniff_media

_TOKENS_PER_SECOND = 20


class DemoAudio:
    """Serves speech, transcriptions and translations.

    Args:
        pace_s: the pause between two words, in seconds.
    """

    def __init__(self, executor: Executor, *, pace_s: float) -> None:
        self._executor = executor
        self._pace_s = pace_s

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/audio/speech", self._speak)
        app.router.add_post("/v1/audio/transcriptions", self._transcribe)
        app.router.add_post("/v1/audio/translations", self._translate)

    async def _speak(self, request: web.Request) -> web.StreamResponse:
        speech_request = parse_speech(await parse_json(request))
        speech = plan_speech(speech_request.text, speech_request.voice, speech_request.speed)
        if speech_request.events:
            return await send_pieces(
                request, self._stream_events(speech_request, speech), headers=EVENT_STREAM, pace_s=self._pace_s
            )
        headers: dict[str, str] = {hdrs.CONTENT_TYPE: "audio/wav" if speech_request.wav else "audio/pcm"}
        return await send_pieces(
            request, self._stream_samples(speech_request, speech), headers=headers, pace_s=self._pace_s
        )

    async def _stream_samples(self, speech_request: SpeechRequest, speech: Speech) -> AsyncIterator[bytes]:
        """Yield the samples word by word; the first piece of a WAV file includes its header."""
        loop = asyncio.get_running_loop()
        head = build_head(speech.samples, speech.text) if speech_request.wav else b""
        for word in speech.words:
            yield head + await loop.run_in_executor(self._executor, speech.write, word)
            head = b""

    async def _stream_events(self, speech_request: SpeechRequest, speech: Speech) -> AsyncIterator[bytes]:
        async for piece in self._stream_samples(speech_request, speech):
            yield build_event({"type": "speech.audio.delta", "audio": b64encode(piece).decode()})
        input_tokens, output_tokens = (
            len(split_pieces(speech_request.text)),
            -(-speech.samples * _TOKENS_PER_SECOND // SAMPLE_RATE),
        )
        usage = {
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "total_tokens": input_tokens + output_tokens,
        }
        yield build_event({"type": "speech.audio.done", "usage": usage})

    async def _transcribe(self, request: web.Request) -> web.StreamResponse:
        transcription_request, transcript = await self._read_transcription(request, parse_transcription)
        if not transcription_request.stream:
            return _answer(build_transcript(transcription_request, transcript, task="transcribe"))
        events = pass_events(map(build_event, build_events(transcript)))
        return await send_pieces(request, events, headers=EVENT_STREAM, pace_s=self._pace_s)

    async def _translate(self, request: web.Request) -> web.StreamResponse:
        transcription_request, transcript = await self._read_transcription(request, parse_translation)
        return _answer(build_transcript(transcription_request, transcript, task="translate"))

    async def _read_transcription(
        self, request: web.Request, read: Callable[[DemoForm], TranscriptionRequest]
    ) -> tuple[TranscriptionRequest, DemoTranscript]:
        async with receive_form(request) as form:
            transcription_request = read(form)
            files = form.list_files("file")
            if len(files) != 1 or not files[0].size:
                raise RequestError("There must be one recording in 'file', and not an empty one.", param="file")
            (file,) = files
            recording_future = asyncio.get_running_loop().run_in_executor(self._executor, _parse_recording, file)
            try:
                return transcription_request, make_transcript(await asyncio.shield(recording_future), file.size)
            finally:
                await asyncio.wait({recording_future})  # it must not read a closed file


def _parse_recording(file: FormFile) -> Recording | None:
    """Parse a WAV file; None for a recording in another format. Raises ``RequestError`` if it is not a recording."""
    recording = find_recording(file.file, file.size)
    if recording is None:
        file.file.seek(0)
        kind = sniff_media(file.file.read(SNIFF_BYTES)) or ""
        if kind == "audio/wav" or not kind.startswith(("audio/", "video/")):
            kinds = "flac, m4a, mp3, mp4, mpeg, ogg, wav or webm"
            raise RequestError(f"The file in 'file' is no recording that can be read. It may be {kinds}.", param="file")
    return recording


def _answer(body: Json | str) -> web.Response:
    return build_reply(body) if isinstance(body, dict) else web.Response(text=body, content_type="text/plain")
