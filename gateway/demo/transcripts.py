"""Builds transcripts in formats of the OpenAI API."""

import math
import re

from gateway.demo.audio_requests import TranscriptionRequest
from gateway.demo.requests import Json
from gateway.demo.text import split_pieces
from gateway.demo.wav import Recording
from gateway.frozen import frozen

_SENTENCE_PATTERN = re.compile(r".+?(?:[.!?\u3002](?=\s|$)|$)", re.DOTALL)
_BYTES_PER_SECOND = 16_000
"""The usual rate of compressed audio (128 kbit/s), assumed for recordings that the demo cannot measure."""


@frozen
class DemoTranscript:
    """The words of a recording and its length in seconds."""

    text: str
    seconds: float

    def build_usage(self) -> Json:
        return {"type": "duration", "seconds": math.ceil(self.seconds)}


def make_transcript(recording: Recording | None, size: int) -> DemoTranscript:
    """Return the transcript of a file of ``size`` bytes: the demo's own words, else a description of the file."""
    if recording is None:
        text = f"This is the demo's transcript of a recording of {size} bytes. Its words only a real model can hear."
        return DemoTranscript(text, size / _BYTES_PER_SECOND)
    if recording.words:
        return DemoTranscript(recording.words, recording.seconds)
    length = f"{recording.seconds:.1f} seconds"
    text = f"This is the demo's transcript of a recording of {length}. Its words only a real model can hear."
    return DemoTranscript(text, recording.seconds)


def build_transcript(
    transcription_request: TranscriptionRequest, transcript: DemoTranscript, *, task: str
) -> Json | str:
    """Build the whole answer: an object or text."""
    if transcription_request.response_format == "text":
        return transcript.text + "\n"
    answer: Json = {"text": transcript.text, "usage": transcript.build_usage()}
    if transcription_request.response_format == "json":
        return answer
    fields = {"task": task, "language": transcription_request.language, "duration": transcript.seconds}
    return {**fields, **answer, "segments": _build_segments(transcript)}


def build_events(transcript: DemoTranscript) -> list[Json]:
    """Build the events of a streamed answer."""
    events: list[Json] = [{"type": "transcript.text.delta", "delta": piece} for piece in split_pieces(transcript.text)]
    return [*events, {"type": "transcript.text.done", "text": transcript.text, "usage": transcript.build_usage()}]


def _build_segments(transcript: DemoTranscript) -> list[Json]:
    """Build a segment for each sentence. The time is divided in proportion to the length of the sentences."""
    rate = transcript.seconds / max(len(transcript.text), 1)
    sentences = [match for match in _SENTENCE_PATTERN.finditer(transcript.text) if match[0].strip()]
    return [
        {
            "id": index,
            "seek": 0,
            "start": round(match.start() * rate, 2),
            "end": round(match.end() * rate, 2),
            "text": match[0].strip(),
            "tokens": [],
            "temperature": 0.0,
            "avg_logprob": -0.1,
            "compression_ratio": 1.0,
            "no_speech_prob": 0.0,
        }
        for index, match in enumerate(sentences)
    ]
