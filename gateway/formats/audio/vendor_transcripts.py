"""Transcripts of vendors with their own formats as answers of the OpenAI API format.

The request's ``response_format`` selects the answer (OpenAI's OpenAPI document,
``CreateTranscriptionResponseVerboseJson``). ``audio/transcriptions.py`` writes text and subtitles from it.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest
from gateway.frozen import frozen

_SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")  # noqa: RUF001 - as Chinese is written
_MAX_SEGMENT_S = 15.0
_PAUSE_S = 1.0
_MAX_DURATION_S = 1_000_000
_TIMED_FORMATS = frozenset({"verbose_json", "srt", "vtt"})


@frozen
class Word:
    """A word with its punctuation, and the seconds at which it starts and ends."""

    text: str
    start_s: float
    end_s: float


@frozen
class Transcript:
    """A vendor's transcript.

    Attributes:
        duration_s: the length of the audio; None if the vendor does not report it.
    """

    text: str
    words: tuple[Word, ...] = ()
    language: str = ""
    duration_s: float | None = None


def check_format(inference: InferenceRequest) -> None:
    """Raise ``InvalidRequest`` if the client requested speakers in the answer, which is not supported here."""
    if inference.body.get("response_format") == "diarized_json":
        raise InvalidRequest("'response_format' must not be diarized_json here", param="response_format")


def parse_word(text: object, start: object, end: object) -> Word | None:
    """Return a word with its times; None if the text or a time is missing, or a time is not plausible."""
    start_s, end_s = parse_seconds(start), parse_seconds(end)
    if isinstance(text, str) and text.strip() and start_s is not None and end_s is not None:
        return Word(text.strip(), start_s, end_s)
    return None


def parse_seconds(value: object) -> float | None:
    """Return a time in seconds; None if ``value`` is not a plausible number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MAX_DURATION_S else None


def build_answer(transcript: Transcript, inference: InferenceRequest) -> bytes:
    """Write a transcript as JSON of the OpenAI API format."""
    body: dict[str, Any] = {"text": transcript.text}
    if transcript.duration_s is not None:
        body["usage"] = {"type": "duration", "seconds": transcript.duration_s}
    if inference.body.get("response_format") in _TIMED_FORMATS:
        segments = _split_into_segments(transcript.words)
        body |= {"task": "transcribe", "language": transcript.language, "segments": list(map(_build_segment, segments))}
        body |= {"duration": transcript.duration_s} if transcript.duration_s is not None else {}
        for number, segment in enumerate(body["segments"]):
            segment["id"] = number
        if "word" in inference.body.get("timestamp_granularities", ()):
            body["words"] = [{"word": word.text, "start": word.start_s, "end": word.end_s} for word in transcript.words]
    return orjson.dumps(body)


def _split_into_segments(words: Sequence[Word]) -> list[list[Word]]:
    """Split words into segments: after each sentence, at a pause, and before a segment becomes too long."""
    segments: list[list[Word]] = []
    for word in words:
        segment = segments[-1] if segments else []
        if (
            not segment
            or segment[-1].text.endswith(_SENTENCE_ENDS)
            or word.start_s - segment[-1].end_s > _PAUSE_S
            or word.end_s - segment[0].start_s > _MAX_SEGMENT_S
        ):
            segments.append([word])
        else:
            segment.append(word)
    return segments


def _build_segment(words: Sequence[Word]) -> dict[str, Any]:
    text = " ".join(word.text for word in words)
    return {"id": 0, "start": words[0].start_s, "end": words[-1].end_s, "text": text}
