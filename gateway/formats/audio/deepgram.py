"""Deepgram's speech and transcriptions.

developers.deepgram.com/reference/text-to-speech/speak-request: the body has the text, and the URL has the model, which
is also the voice. The answer is audio, by default MP3.
developers.deepgram.com/reference/speech-to-text/listen-pre-recorded: the body is the file, and the URL has all options.
"""

from urllib.parse import urlencode

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.audio import transcriptions
from gateway.formats.audio.direct import find_speech_mode, find_transcript_mode
from gateway.formats.audio.speech import open_speech_transform
from gateway.formats.audio.vendor_transcripts import Transcript, build_answer, check_format, parse_seconds, parse_word
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.errors.openai import Secrets
from gateway.formats.passthrough_format import PassthroughFormat, reject_unstreamed, without_identity
from gateway.formats.wire.fields import Body
from gateway.formats.wire.json_values import as_list, as_object, as_text, list_objects
from gateway.formats.wire.request_body import RawFile

_DEFAULT_VALUES = {"response_format": "mp3", "stream_format": "audio", "speed": 1}
"""The only supported values of these fields, which are also their defaults."""


def build_speech_body(inference: InferenceRequest, _model: str) -> Body:
    """Build the body, without the client's ``voice``: each voice is a model.

    Raises ``InvalidRequest`` for options that the API does not support.
    """
    for field, default_value in _DEFAULT_VALUES.items():
        if inference.body.get(field) not in (None, default_value):
            raise InvalidRequest(f"'{field}' can only be {default_value} here", param=field)
    if inference.body.get("instructions"):
        raise InvalidRequest("'instructions' are not supported here", param="instructions")
    return {"text": inference.body["input"]}


def build_file(inference: InferenceRequest, _model: str) -> RawFile:
    """Build the body, which is the file. Raises ``InvalidRequest`` for options that the API does not support."""
    check_format(inference)
    return RawFile(inference.files[0])


def find_listen_path(inference: InferenceRequest, model: str) -> str:
    """Return the path with the model, the language and the client's keywords.

    Deepgram detects the language if the client sets none.
    """
    language = inference.body.get("language")
    query = [("model", model), ("smart_format", "true")]
    query.append(("language", language) if language else ("detect_language", "true"))
    query += [("keyterm", keyword) for keyword in as_list(inference.body.get("keywords")) if isinstance(keyword, str)]
    return f"/listen?{urlencode(query)}"


def _convert_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets) -> bytes:
    value = parse_answer_object(raw, secrets)
    channel = next(iter(list_objects(as_object(value.get("results")).get("channels"))), {})
    alternative = next(iter(list_objects(channel.get("alternatives"))), {})
    text = alternative.get("transcript")
    if not isinstance(text, str):
        raise ProviderBadResponse("The provider's answer has no text")
    timed_words = [
        parse_word(as_text(item.get("punctuated_word")) or item.get("word"), item.get("start"), item.get("end"))
        for item in list_objects(alternative.get("words"))
    ]
    words = tuple(word for word in timed_words if word is not None)
    duration_s = parse_seconds(as_object(value.get("metadata")).get("duration"))
    language = as_text(channel.get("detected_language")) or as_text(inference.body.get("language"))
    return build_answer(Transcript(text, words, language, duration_s), inference)


def parse_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return the bytes for the client and the usage. Raises ``ProviderError``."""
    return transcriptions.parse_transcription_answer(_convert_answer(raw, inference, secrets), inference, secrets)


def build_whole(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return the answer as the events of a stream, and the usage. Raises ``ProviderError``."""
    return transcriptions.build_whole(_convert_answer(raw, inference, secrets), inference, secrets)


SPEECH = PassthroughFormat(build_speech_body, reject_unstreamed, open_speech_transform, find_mode=find_speech_mode)
TRANSCRIPTIONS = PassthroughFormat(
    build_file,
    without_identity(parse_answer),
    transcriptions.TranscriptPassthrough,
    build_whole,
    find_transcript_mode,
    find_listen_path,
)
