"""Transcriptions and translations in the OpenAI API format: requests, answers in all formats, and streams.

Mistral reports seconds and tokens in fields with other names (docs.mistral.ai/api, "Audio Transcriptions"), and vLLM
reports the length as a string (docs.vllm.ai, ``TranscriptionResponseVerbose``).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import orjson

from gateway.domain.audio import compute_min_ms, count_audio_tokens, limit_length_ms, parse_last_cue_ms, parse_length_ms
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import Operation
from gateway.domain.token_estimate import estimate_text
from gateway.domain.upload import Upload
from gateway.domain.usage import Usage, attach_details, find_modalities, parse_count
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.audio.stream import AudioEventsPassthrough
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.errors.openai import Secrets
from gateway.formats.usage.token_bounds import MAX_RESERVED_OUTPUT, MESSAGE_TOKENS, bound_text
from gateway.formats.wire.fields import Body, parse_model, parse_number, read_text
from gateway.formats.wire.form import FieldTypes, ReceivedForm, check_files, parse_fields, parse_files
from gateway.formats.wire.json_values import as_object, loads_or_none
from gateway.formats.wire.request_body import Form

_LIST_FIELDS = (
    "timestamp_granularities",
    "include",
    "languages",
    "keywords",
    "known_speaker_names",
    "known_speaker_references",
)
_FIELD_TYPES = FieldTypes(numbers=("temperature",), flags=("stream",), lists=_LIST_FIELDS)
_STRING_FIELDS = ("language", "prompt", "response_format")
_TRANSLATION_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_TRANSCRIPTION_FORMATS = (*_TRANSLATION_FORMATS, "diarized_json")
_TEXT_FORMATS = frozenset({"text", "srt", "vtt"})
"""Response formats other than JSON."""
_GRANULARITIES = frozenset({"word", "segment"})
_HTML_STARTS = (b"<!doctype", b"<html")
_EXTENSIONS: Mapping[str, str] = {
    "audio/flac": "flac",
    "audio/mpeg": "mp3",
    "audio/mp4": "m4a",
    "video/mp4": "mp4",
    "audio/ogg": "ogg",
    "audio/wav": "wav",
    "audio/webm": "webm",
    "video/webm": "webm",
}
"""Media types -> extensions of the files that OpenAI accepts (developers.openai.com/api/docs/guides/speech-to-text)."""


def parse_transcription_inference(form: ReceivedForm) -> InferenceRequest:
    """Check a form and return the request. Raises ``InvalidRequest`` naming the field."""
    body = parse_fields(form, _FIELD_TYPES)
    inference = _parse_inference(form, body, "transcriptions", _TRANSCRIPTION_FORMATS)
    unknown_granularity = next(
        (granularity for granularity in body.get("timestamp_granularities", ()) if granularity not in _GRANULARITIES),
        None,
    )
    if unknown_granularity is not None:
        raise InvalidRequest(
            "'timestamp_granularities' must be word or segment, or both", param="timestamp_granularities"
        )
    stream = body.get("stream") is True
    if stream and body.get("response_format") in {"srt", "vtt"}:
        raise InvalidRequest("'response_format' must not be srt or vtt where 'stream' is true", param="response_format")
    return attrs.evolve(inference, stream=stream)


def parse_translation_inference(form: ReceivedForm) -> InferenceRequest:
    """Check the form of a translation like ``parse_transcription_inference``.

    Translations are never streamed. Raises ``InvalidRequest`` naming the field.
    """
    body = parse_fields(form, _FIELD_TYPES)
    if body.pop("stream", False):
        raise InvalidRequest("'stream' is not supported for translations", param="stream")
    return _parse_inference(form, body, "translations", _TRANSLATION_FORMATS)


def _parse_inference(
    form: ReceivedForm, body: Body, operation: Operation, formats: tuple[str, ...]
) -> InferenceRequest:
    model = parse_model(body)
    check_files(form, ("file",))
    files = parse_files(form, "file", 1)
    if not files:
        message = "'file' must be a file, not text" if "file" in body else "Missing required file 'file'"
        raise InvalidRequest(message, param="file")
    if "file" in body:
        raise InvalidRequest("'file' is there more than once", param="file")
    for name in _STRING_FIELDS:
        read_text(body, name)
    parse_number(body, "temperature", 0.0, 1.0)
    if body.get("response_format", "json") not in formats:
        raise InvalidRequest(f"'response_format' must be one of {', '.join(formats)}", param="response_format")
    prompt_texts = _list_prompt_texts(body)
    return InferenceRequest(
        operation=operation,
        model=model,
        body=body,
        prompt_chars=sum(map(len, prompt_texts)),
        max_prompt_tokens=MESSAGE_TOKENS + sum(map(bound_text, prompt_texts)),
        max_output_tokens=MAX_RESERVED_OUTPUT,
        files=files,
    )


def _list_prompt_texts(body: Body) -> list[str]:
    return [body.get("prompt", ""), *body.get("keywords", ())]


def build_transcription_form(inference: InferenceRequest, model: str) -> Form:
    """Build the form. It requests JSON instead of plain text, which reports no usage."""
    fields = inference.body | {"model": model}
    if _find_format(inference) == "text":
        fields["response_format"] = "json"
    return Form(fields, tuple(("file", _name_file(upload)) for upload in inference.files))


def _name_file(upload: Upload) -> Upload:
    """Return ``upload`` with a file extension if it has none: OpenAI detects the type by the extension.

    OpenAI's client library names raw bytes ``upload``.
    """
    extension = _EXTENSIONS.get(upload.media_type)
    if extension is None or "." in upload.filename:
        return upload
    return attrs.evolve(upload, filename=f"{upload.filename}.{extension}")


def find_media_type(inference: InferenceRequest) -> str:
    """Return the media type of an unstreamed answer."""
    return "text/plain; charset=utf-8" if _find_format(inference) in _TEXT_FORMATS else "application/json"


def _find_format(inference: InferenceRequest) -> str:
    return inference.body.get("response_format") or "json"


def parse_transcription_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return the bytes for the client and the usage of an unstreamed answer. Raises ``ProviderError``."""
    kind = _find_format(inference)
    if kind not in _TEXT_FORMATS:
        value = _parse_transcript(raw, secrets)
        return raw, _parse_usage(value, inference, value["text"])
    if _is_json_object(raw):
        value = _parse_transcript(raw, secrets)
        return _format_transcript(value, kind).encode(), _parse_usage(value, inference, value["text"])
    if raw.lstrip()[:16].lower().startswith(_HTML_STARTS):
        raise ProviderBadResponse("The provider answered with a page")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ProviderBadResponse("The provider's answer is not text") from None
    return raw, _estimate_usage(inference, text, cue_ms=None if kind == "text" else parse_last_cue_ms(text))


def _is_json_object(raw: bytes) -> bool:
    """Return whether ``raw`` is a JSON object. A plain transcript may also begin with a brace."""
    return raw.lstrip().startswith(b"{") and loads_or_none(raw) is not None


def _parse_transcript(raw: bytes, secrets: Secrets) -> dict[str, Any]:
    value = parse_answer_object(raw, secrets)
    if not isinstance(value.get("text"), str):
        raise ProviderBadResponse("The provider's answer has no text")
    return value


def _format_transcript(value: Mapping[str, Any], kind: str) -> str:
    if kind == "text":
        return f"{value['text']}\n"
    cues = list(_list_cues(value.get("segments")))
    if not cues:
        if not value["text"].strip():
            return "" if kind == "srt" else "WEBVTT\n\n"
        raise ProviderBadResponse("The provider's answer has no times for subtitles")
    decimal_mark = "," if kind == "srt" else "."
    lines = [] if kind == "srt" else ["WEBVTT\n"]
    for number, (start_ms, end_ms, text) in enumerate(cues, 1):
        cue_number = f"{number}\n" if kind == "srt" else ""
        lines.append(
            f"{cue_number}{_format_time(start_ms, decimal_mark)} --> {_format_time(end_ms, decimal_mark)}\n{text}\n"
        )
    return "\n".join(lines) + "\n"


def _list_cues(segments: object) -> Iterator[tuple[int, int, str]]:
    """Yield start and end in milliseconds and the text of each segment, skipping incomplete segments."""
    for segment in segments if isinstance(segments, list) else ():
        if isinstance(segment, dict) and isinstance(segment.get("text"), str):
            start_ms, end_ms = parse_length_ms(segment.get("start")), parse_length_ms(segment.get("end"))
            if start_ms is not None and end_ms is not None:
                # Blank lines and arrows are replaced, because they would end the cue or begin a new one.
                yield start_ms, end_ms, " ".join(segment["text"].split()).replace("-->", "->")


def _format_time(length_ms: int, decimal_mark: str) -> str:
    seconds, millis = divmod(length_ms, 1_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{decimal_mark}{millis:03}"


def _parse_usage(value: Mapping[str, Any], inference: InferenceRequest, text: str) -> Usage:
    """Return the reported tokens and audio length, with estimates for missing values.

    A provider that bills by length reports no tokens; a price is for tokens or for length, not for both.
    """
    usage_field = as_object(value.get("usage"))
    length_ms = _find_first_known(
        parse_length_ms(usage_field.get("seconds")), parse_length_ms(usage_field.get("prompt_audio_seconds"))
    )
    is_billed_by_length = usage_field.get("type") == "duration" and length_ms is not None
    if length_ms is None:
        length_ms = parse_length_ms(value.get("duration"))
    tokens = _parse_tokens(usage_field)
    if tokens is None and not is_billed_by_length:
        return _estimate_usage(inference, text, length_ms)
    prompt_tokens, completion_tokens = tokens or (0, 0)
    usage = Usage(
        prompt_tokens, completion_tokens, source="upstream", duration_ms=_compute_length_ms(inference, length_ms)
    )
    details = usage_field.get("input_token_details") or usage_field.get("prompt_tokens_details")
    return attach_details(usage, find_modalities(details, None))


def _parse_tokens(usage: Mapping[str, Any]) -> tuple[int, int] | None:
    for prompt_name, completion_name in (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")):
        prompt_tokens, completion_tokens = parse_count(usage.get(prompt_name)), parse_count(usage.get(completion_name))
        if prompt_tokens is not None and completion_tokens is not None:
            return prompt_tokens, completion_tokens
    return None


def _find_first_known(*lengths_ms: int | None) -> int | None:
    return next((length_ms for length_ms in lengths_ms if length_ms is not None), None)


def _compute_length_ms(inference: InferenceRequest, reported_ms: int | None, cue_ms: int | None = None) -> int:
    """Return the audio's length in milliseconds: the reported one, limited by the file's size, else an estimate."""
    file_bytes = sum(upload.size for upload in inference.files)
    if reported_ms is not None:
        return min(reported_ms, limit_length_ms(file_bytes))
    file_ms = _find_first_known(*(upload.duration_ms for upload in inference.files))
    if file_ms is None and cue_ms is None:
        return inference.sound_ms
    min_ms = compute_min_ms(file_bytes) if file_ms is None else file_ms
    return max(min_ms, min(cue_ms or 0, limit_length_ms(file_bytes)))


def _estimate_usage(
    inference: InferenceRequest, text: str, reported_ms: int | None = None, cue_ms: int | None = None
) -> Usage:
    length_ms = _compute_length_ms(inference, reported_ms, cue_ms)
    prompt_tokens = estimate_text("\n".join(_list_prompt_texts(inference.body))) + count_audio_tokens(length_ms)
    return Usage(prompt_tokens, estimate_text(text), source="estimate", duration_ms=length_ms)


def build_whole(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Convert an unstreamed JSON answer into events. Return them with the usage. Raises ``ProviderError``."""
    value = _parse_transcript(raw, secrets)
    text, usage = value["text"], _parse_usage(value, inference, value["text"])
    final_event: Body = {"type": "transcript.text.done", "text": text}
    usage_field = value.get("usage")
    if isinstance(usage_field, dict) and usage_field.get("type") == "tokens":
        final_event["usage"] = usage_field
    events = [{"type": "transcript.text.delta", "delta": text}, final_event] if text else [final_event]
    try:
        return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events), usage
    except orjson.JSONEncodeError:
        raise ProviderBadResponse("The provider's answer is nested too deeply to be passed on") from None


class TranscriptPassthrough(AudioEventsPassthrough):
    """Forwards a transcript that is streamed as events."""

    __slots__ = ("_deltas", "_final_event", "_inference")

    LAST_EVENT = "transcript.text.done"

    def __init__(self, inference: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._inference = inference
        self._deltas: list[str] = []
        self._final_event: Mapping[str, Any] = {}

    def _record_event(self, value: dict[str, Any]) -> None:
        if self.ended:
            self._final_event = value
        delta = value.get("delta")
        if isinstance(delta, str):
            self._deltas.append(delta)

    def parse_usage(self) -> Usage:
        return (
            _parse_usage(self._final_event, self._inference, "".join(self._deltas))
            if self.events or self.ended
            else Usage()
        )
