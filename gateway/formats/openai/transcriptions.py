"""Transcriptions and translations in the convention: the call, its answer in every format, and its stream.

Shapes: the convention's OpenAPI document, ``CreateTranscriptionRequest``, ``CreateTranslationRequest``,
``CreateTranscriptionResponseJson``, ``…VerboseJson``, ``…DiarizedJson``, ``TranscriptTextDeltaEvent``,
``TranscriptTextDoneEvent``. Mistral reports seconds and tokens in names of its own (docs.mistral.ai/api, "Audio
Transcriptions"), vLLM a length as text (docs.vllm.ai, ``TranscriptionResponseVerbose``).
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import orjson

from gateway.domain.audio import (
    count_heard_tokens,
    floor_length_ms,
    limit_length_ms,
    parse_last_cue_ms,
    parse_length_ms,
)
from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.token_estimate import estimate_text
from gateway.domain.upload import Upload
from gateway.domain.usage import Usage, parse_count
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.form import Kinds, ReceivedForm, check_files, parse_fields, parse_files
from gateway.formats.openai.audio_stream import AudioEventsPassthrough
from gateway.formats.openai.chat import parse_answer_object
from gateway.formats.openai.errors import Secrets
from gateway.formats.openai.fields import Body, parse_model, parse_number, read_text
from gateway.formats.openai.token_bounds import MAX_RESERVED_OUTPUT, MESSAGE_TOKENS, bound_text
from gateway.formats.request_body import Form

_LISTS = (
    "timestamp_granularities",
    "include",
    "languages",
    "keywords",
    "known_speaker_names",
    "known_speaker_references",
)
_KINDS = Kinds(numbers=("temperature",), flags=("stream",), lists=_LISTS)
_TEXTS = ("language", "prompt", "response_format")
_TRANSLATION_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_FORMATS = (*_TRANSLATION_FORMATS, "diarized_json")
_PLAIN = frozenset({"text", "srt", "vtt"})
"""Formats that are no JSON."""
_GRANULARITIES = frozenset({"word", "segment"})
_PAGE = (b"<!doctype", b"<html")
_EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {
        "audio/flac": "flac",
        "audio/mpeg": "mp3",
        "audio/mp4": "m4a",
        "video/mp4": "mp4",
        "audio/ogg": "ogg",
        "audio/wav": "wav",
        "audio/webm": "webm",
        "video/webm": "webm",
    },
)
"""Of the kinds of files that it takes (developers.openai.com/api/docs/guides/speech-to-text)."""


def parse_transcription_call(form: ReceivedForm) -> InferenceRequest:
    """A form -> the checked call. Raises ``InvalidRequest`` naming the field.

    Checked is what the gateway relies on or what no provider accepts; every other field passes as it is, those of
    ``chunking_strategy`` under the names they came by.
    """
    body = parse_fields(form, _KINDS)
    call = _parse_call(form, body, "transcriptions", _FORMATS)
    unknown = next((one for one in body.get("timestamp_granularities", ()) if one not in _GRANULARITIES), None)
    if unknown is not None:
        raise InvalidRequest(
            "'timestamp_granularities' must be word or segment, or both",
            param="timestamp_granularities",
        )
    stream = body.get("stream") is True
    if stream and body.get("response_format") in {"srt", "vtt"}:
        raise InvalidRequest("'response_format' must not be srt or vtt where 'stream' is true", param="response_format")
    return attrs.evolve(call, stream=stream)


def parse_translation_call(form: ReceivedForm) -> InferenceRequest:
    """The same of a translation, which is never streamed."""
    body = parse_fields(form, _KINDS)
    if body.pop("stream", False):
        raise InvalidRequest("'stream' is not supported for translations", param="stream")
    return _parse_call(form, body, "translations", _TRANSLATION_FORMATS)


def _parse_call(form: ReceivedForm, body: Body, operation: Operation, formats: tuple[str, ...]) -> InferenceRequest:
    model = parse_model(body)
    check_files(form, ("file",))
    files = parse_files(form, "file", 1)
    if not files:
        message = "'file' must be a file, not text" if "file" in body else "Missing required file 'file'"
        raise InvalidRequest(message, param="file")
    if "file" in body:
        raise InvalidRequest("'file' is there more than once", param="file")
    for name in _TEXTS:
        read_text(body, name)
    parse_number(body, "temperature", 0.0, 1.0)
    if body.get("response_format", "json") not in formats:
        raise InvalidRequest(f"'response_format' must be one of {', '.join(formats)}", param="response_format")
    hints = _list_hints(body)
    return InferenceRequest(
        operation=operation,
        model=model,
        body=body,
        prompt_chars=sum(map(len, hints)),
        max_prompt_tokens=MESSAGE_TOKENS + sum(map(bound_text, hints)),
        max_output_tokens=MAX_RESERVED_OUTPUT,
        files=files,
    )


def _list_hints(body: Body) -> list[str]:
    """The texts that a model is given besides the sound."""
    return [body.get("prompt", ""), *body.get("keywords", ())]


def build_transcription_form(call: InferenceRequest, model: str) -> Form:
    """The form for the provider, under the provider's name of the model; of a translation too.

    It is never asked for text alone, which says nothing of what it costs: the text is written from JSON.
    """
    fields = call.body | {"model": model}
    if _find_format(call) == "text":
        fields["response_format"] = "json"
    return Form(fields, tuple(("file", _name_file(upload)) for upload in call.files))


def _name_file(upload: Upload) -> Upload:
    """With an extension, by which OpenAI tells what a file is; the client library calls bare bytes ``upload``."""
    extension = _EXTENSIONS.get(upload.media_type)
    if extension is None or "." in upload.filename:
        return upload
    return attrs.evolve(upload, filename=f"{upload.filename}.{extension}")


def find_media_type(call: InferenceRequest) -> str:
    """The type of a whole answer."""
    return "text/plain; charset=utf-8" if _find_format(call) in _PLAIN else "application/json"


def _find_format(call: InferenceRequest) -> str:
    return call.body.get("response_format") or "json"


def parse_transcription_answer(raw: bytes, call: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """A whole answer -> the caller's bytes, and what it used. Raises ``ProviderBadResponse`` where it is none.

    Bytes pass as they are. Where text was asked for and JSON came, the text is written from that.
    """
    kind = _find_format(call)
    if kind not in _PLAIN:
        value = _parse_object(raw, secrets)
        return raw, _parse_usage(value, call, value["text"])
    if _is_object(raw):
        value = _parse_object(raw, secrets)
        return _write_text(value, kind).encode(), _parse_usage(value, call, value["text"])
    if raw.lstrip()[:16].lower().startswith(_PAGE):
        raise ProviderBadResponse("The provider answered with a page")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ProviderBadResponse("The provider's answer is not text") from None
    return raw, _estimate(call, text, cue_ms=None if kind == "text" else parse_last_cue_ms(text))


def _is_object(raw: bytes) -> bool:
    """Whether it is JSON: a transcript may begin with a brace, too."""
    if not raw.lstrip().startswith(b"{"):
        return False
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        return False
    return True


def _parse_object(raw: bytes, secrets: Secrets) -> dict[str, Any]:
    value = parse_answer_object(raw, secrets)
    if not isinstance(value.get("text"), str):
        raise ProviderBadResponse("The provider's answer has no text")
    return value


def _write_text(value: Mapping[str, Any], kind: str) -> str:
    """An answer in JSON as text or subtitles."""
    if kind == "text":
        return f"{value['text']}\n"
    cues = list(_list_cues(value.get("segments")))
    if not cues:
        if not value["text"].strip():
            return "" if kind == "srt" else "WEBVTT\n\n"
        raise ProviderBadResponse("The provider's answer has no times for subtitles")
    mark = "," if kind == "srt" else "."
    lines = [] if kind == "srt" else ["WEBVTT\n"]
    for number, (start_ms, end_ms, text) in enumerate(cues, 1):
        head = f"{number}\n" if kind == "srt" else ""
        lines.append(f"{head}{_build_clock(start_ms, mark)} --> {_build_clock(end_ms, mark)}\n{text}\n")
    return "\n".join(lines) + "\n"


def _list_cues(segments: object) -> Iterator[tuple[int, int, str]]:
    """Start and end (ms) and the text of each segment; one that has not all of them is left out."""
    for segment in segments if isinstance(segments, list) else ():
        if isinstance(segment, dict) and isinstance(segment.get("text"), str):
            start_ms, end_ms = parse_length_ms(segment.get("start")), parse_length_ms(segment.get("end"))
            if start_ms is not None and end_ms is not None:
                # A blank line would end the cue, and an arrow begin one.
                yield start_ms, end_ms, " ".join(segment["text"].split()).replace("-->", "->")


def _build_clock(length_ms: int, mark: str) -> str:
    seconds, millis = divmod(length_ms, 1_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{mark}{millis:03}"


def _parse_usage(value: Mapping[str, Any], call: InferenceRequest, text: str) -> Usage:
    """What a provider says of tokens and of the sound's length, and an estimate of what it does not say.

    A price is for the one or the other: who bills by length says no tokens. ``text`` was written.
    """
    said: Any = value.get("usage")
    told = said if isinstance(said, Mapping) else {}
    length_ms = _first(parse_length_ms(told.get("seconds")), parse_length_ms(told.get("prompt_audio_seconds")))
    by_length = told.get("type") == "duration" and length_ms is not None
    if length_ms is None:
        length_ms = parse_length_ms(value.get("duration"))
    tokens = _parse_tokens(told)
    if tokens is None and not by_length:
        return _estimate(call, text, length_ms)
    prompt, completion = tokens or (0, 0)
    return Usage(prompt, completion, source="upstream", duration_ms=_find_length(call, length_ms))


def _parse_tokens(told: Mapping[str, Any]) -> tuple[int, int] | None:
    for prompt_name, completion_name in (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")):
        prompt, completion = parse_count(told.get(prompt_name)), parse_count(told.get(completion_name))
        if prompt is not None and completion is not None:
            return prompt, completion
    return None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _find_length(call: InferenceRequest, told_ms: int | None, cue_ms: int | None = None) -> int:
    """How long the sound is: as its provider says, within what its bytes can hold; else as the file does.

    There is sound until the last subtitle, whatever the file says, and a second of it takes some bytes.
    """
    size = sum(upload.size for upload in call.files)
    if told_ms is not None:
        return min(told_ms, limit_length_ms(size))
    file_ms = _first(*(upload.duration_ms for upload in call.files))
    if file_ms is None and cue_ms is None:
        return call.sound_ms
    least_ms = floor_length_ms(size) if file_ms is None else file_ms
    return max(least_ms, min(cue_ms or 0, limit_length_ms(size)))


def _estimate(call: InferenceRequest, text: str, told_ms: int | None = None, cue_ms: int | None = None) -> Usage:
    length_ms = _find_length(call, told_ms, cue_ms)
    prompt = estimate_text("\n".join(_list_hints(call.body))) + count_heard_tokens(length_ms)
    return Usage(prompt, estimate_text(text), source="estimate", duration_ms=length_ms)


def build_whole(raw: bytes, call: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """A whole answer in JSON -> the events that say the same, and what it used. Raises ``ProviderBadResponse``."""
    value = _parse_object(raw, secrets)
    text, usage = value["text"], _parse_usage(value, call, value["text"])
    done: Body = {"type": "transcript.text.done", "text": text}
    said = value.get("usage")
    if isinstance(said, dict) and said.get("type") == "tokens":
        done["usage"] = said
    events = [{"type": "transcript.text.delta", "delta": text}, done] if text else [done]
    try:
        return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events), usage
    except orjson.JSONEncodeError:
        raise ProviderBadResponse("The provider's answer is nested too deeply to be passed on") from None


class TranscriptPassthrough(AudioEventsPassthrough):
    """The gate of a transcript in events; see there."""

    __slots__ = ("_call", "_last", "_texts")

    LAST = "transcript.text.done"

    def __init__(self, call: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._call = call
        self._texts: list[str] = []
        self._last: Mapping[str, Any] = {}

    def _note(self, value: dict[str, Any]) -> None:
        if self.ended:
            self._last = value
        delta = value.get("delta")
        if isinstance(delta, str):
            self._texts.append(delta)

    def parse_usage(self) -> Usage:
        """The provider's word, else an estimate from what passed."""
        return _parse_usage(self._last, self._call, "".join(self._texts)) if self.events or self.ended else Usage()
