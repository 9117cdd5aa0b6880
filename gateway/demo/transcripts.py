"""Build transcripts in every format of the OpenAI API."""

import math
import re
from typing import Any

from attrs import frozen

from gateway.demo.audio_requests import TranscriptionRequest
from gateway.demo.requests import Json
from gateway.demo.text import pieces
from gateway.demo.wav import Recording

_SENTENCE = re.compile(r".+?(?:[.!?\u3002](?=\s|$)|$)", re.DOTALL)
_WORD = re.compile(r"\S+")
_BYTES_A_SECOND = 16_000
"""The usual rate of compressed audio (128 kbit/s), assumed for recordings that the demo cannot measure."""


@frozen
class Segment:
    """A part of a transcript with its start and end, in seconds."""

    text: str
    start: float
    end: float


@frozen
class DemoTranscript:
    """The words of a recording and its length in seconds."""

    text: str
    seconds: float

    def sentences(self) -> list[Segment]:
        """Return the sentences; the time is divided by their length."""
        return self._share(_SENTENCE)

    def words(self) -> list[Segment]:
        """Return the words."""
        return self._share(_WORD)

    def usage(self) -> Json:
        """Return the usage, in whole seconds."""
        return {"type": "duration", "seconds": math.ceil(self.seconds)}

    def _share(self, part: re.Pattern[str]) -> list[Segment]:
        rate = self.seconds / max(len(self.text), 1)
        return [
            Segment(found[0].strip(), round(found.start() * rate, 2), round(found.end() * rate, 2))
            for found in part.finditer(self.text)
            if found[0].strip()
        ]


def hear(recording: Recording | None, size: int) -> DemoTranscript:
    """Return the transcript of a file of ``size`` bytes: the demo's own words, or else a description of the file."""
    if recording is None:
        text = f"This is the demo's transcript of a recording of {size} bytes. Its words only a real model can hear."
        return DemoTranscript(text, size / _BYTES_A_SECOND)
    if recording.words:
        return DemoTranscript(recording.words, recording.seconds)
    length = f"{recording.seconds:.1f} seconds"
    text = f"This is the demo's transcript of a recording of {length}. Its words only a real model can hear."
    return DemoTranscript(text, recording.seconds)


def build_transcript(transcription_request: TranscriptionRequest, heard: DemoTranscript, *, task: str) -> Json | str:
    """Build the whole answer: an object, or a text."""
    match transcription_request.form:
        case "text":
            return heard.text + "\n"
        case "srt":
            blocks = enumerate(heard.sentences(), 1)
            return "\n".join(f"{number}\n{_times(segment, ',')}\n{segment.text}\n" for number, segment in blocks)
        case "vtt":
            return "WEBVTT\n\n" + "\n".join(
                f"{_times(segment, '.')}\n{segment.text}\n" for segment in heard.sentences()
            )
        case "verbose_json":
            return _verbose(transcription_request, heard, task)
        case "diarized_json":
            segments = [
                segment_event(transcription_request, at, segment) for at, segment in enumerate(heard.sentences())
            ]
            fields = {"task": task, "text": heard.text, "duration": heard.seconds, "segments": segments}
            return {**fields, "usage": heard.usage()}
        case _:
            return {"text": heard.text, "usage": heard.usage()}


def build_events(transcription_request: TranscriptionRequest, heard: DemoTranscript) -> list[Json]:
    """Build the events of a streamed answer."""
    events: list[Json] = []
    if transcription_request.form == "diarized_json":
        events += [segment_event(transcription_request, at, segment) for at, segment in enumerate(heard.sentences())]
    events += [{"type": "transcript.text.delta", "delta": piece} for piece in pieces(heard.text)]
    return [*events, {"type": "transcript.text.done", "text": heard.text, "usage": heard.usage()}]


def segment_event(transcription_request: TranscriptionRequest, at: int, segment: Segment) -> Json:
    """Return a sentence with its speaker."""
    fields = {
        "start": segment.start,
        "end": segment.end,
        "speaker": transcription_request.speaker,
        "text": segment.text,
    }
    return {"type": "transcript.text.segment", "id": f"seg_{at}", **fields}


def _verbose(transcription_request: TranscriptionRequest, heard: DemoTranscript, task: str) -> Json:
    segments: list[Any] = [
        {
            "id": at,
            "seek": 0,
            "start": segment.start,
            "end": segment.end,
            "text": segment.text,
            "tokens": [],
            "temperature": 0.0,
            "avg_logprob": -0.1,
            "compression_ratio": 1.0,
            "no_speech_prob": 0.0,
        }
        for at, segment in enumerate(heard.sentences())
    ]
    fields: Json = {
        "task": task,
        "language": transcription_request.language,
        "duration": heard.seconds,
        "text": heard.text,
    }
    if transcription_request.words:
        fields["words"] = [
            {"word": segment.text, "start": segment.start, "end": segment.end} for segment in heard.words()
        ]
    return {**fields, "segments": segments, "usage": heard.usage()}


def _times(segment: Segment, point: str) -> str:
    return f"{_clock(segment.start, point)} --> {_clock(segment.end, point)}"


def _clock(seconds: float, point: str) -> str:
    whole, thousandths = divmod(round(seconds * 1_000), 1_000)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}{point}{thousandths:03}"
