"""ElevenLabs' speech and transcriptions.

elevenlabs.io/docs/api-reference/text-to-speech/stream: the URL has the voice and the audio format, and the body has the
text and the model. MP3, Opus and PCM can be streamed. PCM is requested at 24 kHz, as in OpenAI's API.
elevenlabs.io/docs/api-reference/speech-to-text/convert: a form with the model and the file. The answer has the text and
words with times, but not the length of the audio.
"""

from collections.abc import Mapping
from urllib.parse import quote

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.audio import transcriptions
from gateway.formats.audio.direct import find_speech_mode, find_transcript_mode
from gateway.formats.audio.speech import open_speech_transform
from gateway.formats.audio.vendor_transcripts import Transcript, build_answer, check_format, parse_word
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.errors.openai import Secrets
from gateway.formats.passthrough_format import PassthroughFormat, reject_unstreamed, without_identity
from gateway.formats.wire.fields import Body
from gateway.formats.wire.json_values import as_text, list_objects
from gateway.formats.wire.request_body import Form

_AUDIO_FORMATS: Mapping[str, str] = {"mp3": "mp3_44100_128", "opus": "opus_48000_64", "pcm": "pcm_24000"}
_SPEECH_FIELDS = ("language_code", "seed", "previous_text", "next_text", "apply_text_normalization")
"""ElevenLabs' own fields, which clients may send."""


def build_speech_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body. Raises ``InvalidRequest`` for options that the API does not support."""
    body = inference.body
    if _find_format(inference) not in _AUDIO_FORMATS:
        raise InvalidRequest(
            f"'response_format' must be one of {', '.join(_AUDIO_FORMATS)} here", param="response_format"
        )
    if body.get("stream_format") not in (None, "audio"):
        raise InvalidRequest("'stream_format' can only be audio here", param="stream_format")
    if body.get("instructions"):
        raise InvalidRequest("'instructions' are not supported here", param="instructions")
    vendor_body: Body = {"text": body["input"], "model_id": model}
    vendor_body |= {name: body[name] for name in _SPEECH_FIELDS if body.get(name) is not None}
    voice_settings = body.get("voice_settings")
    if voice_settings is not None and not isinstance(voice_settings, dict):
        raise InvalidRequest("'voice_settings' must be an object", param="voice_settings")
    speed = body.get("speed")
    voice_settings = {**(voice_settings or {}), **({} if speed in (None, 1) else {"speed": speed})}
    return vendor_body | ({"voice_settings": voice_settings} if voice_settings else {})


def find_speech_path(inference: InferenceRequest, _model: str) -> str:
    """Return the path with voice and audio format. The request must have passed ``build_speech_body``."""
    voice = inference.body["voice"]
    voice_id = voice if isinstance(voice, str) else voice["id"]
    return f"/text-to-speech/{quote(voice_id, safe='')}/stream?output_format={_AUDIO_FORMATS[_find_format(inference)]}"


def _find_format(inference: InferenceRequest) -> str:
    return inference.body.get("response_format") or "mp3"


_TRANSCRIPTION_FIELDS = ("diarize", "num_speakers", "tag_audio_events", "seed")
"""ElevenLabs' own fields, which clients may send."""


def build_form(inference: InferenceRequest, model: str) -> Form:
    """Build the form. Raises ``InvalidRequest`` for options that the API does not support."""
    check_format(inference)
    fields: Body = {"model_id": model, "timestamps_granularity": "word", "tag_audio_events": False}
    fields |= {
        name: inference.body[name]
        for name in (*_TRANSCRIPTION_FIELDS, "temperature")
        if inference.body.get(name) is not None
    }
    if inference.body.get("language"):
        fields["language_code"] = inference.body["language"]
    return Form(fields, tuple(("file", upload) for upload in inference.files))


def _convert_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets) -> bytes:
    value = parse_answer_object(raw, secrets)
    text = value.get("text")
    if not isinstance(text, str):
        raise ProviderBadResponse("The provider's answer has no text")
    timed_words = [
        parse_word(item.get("text"), item.get("start"), item.get("end"))
        for item in list_objects(value.get("words"))
        if item.get("type") == "word"
    ]
    words = tuple(word for word in timed_words if word is not None)
    return build_answer(Transcript(text, words, as_text(value.get("language_code"))), inference)


def parse_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return the bytes for the client and the usage. Raises ``ProviderError``."""
    return transcriptions.parse_transcription_answer(_convert_answer(raw, inference, secrets), inference, secrets)


def build_whole(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return the answer as the events of a stream, and the usage. Raises ``ProviderError``."""
    return transcriptions.build_whole(_convert_answer(raw, inference, secrets), inference, secrets)


SPEECH = PassthroughFormat(
    build_speech_body, reject_unstreamed, open_speech_transform, find_mode=find_speech_mode, find_path=find_speech_path
)
TRANSCRIPTIONS = PassthroughFormat(
    build_form, without_identity(parse_answer), transcriptions.TranscriptPassthrough, build_whole, find_transcript_mode
)
