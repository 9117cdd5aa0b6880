"""ElevenLabs' transcriptions.

elevenlabs.io/docs/api-reference/speech-to-text/convert: a form with the model and the file; an answer has the text, and
words with times. It does not say how long the audio is.
"""

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.json_values import as_text, list_objects
from gateway.formats.openai import transcriptions
from gateway.formats.openai.chat import parse_answer_object
from gateway.formats.openai.errors import Secrets
from gateway.formats.openai.fields import Body
from gateway.formats.request_body import Form
from gateway.formats.vendors.transcripts import Transcript, build_answer, check_format, parse_word

_OWN = ("diarize", "num_speakers", "tag_audio_events", "seed")
"""ElevenLabs' own fields, which clients may send."""


def build_form(inference: InferenceRequest, model: str) -> Form:
    """Build the form. Raises ``InvalidRequest`` for what the API cannot express."""
    check_format(inference)
    fields: Body = {"model_id": model, "timestamps_granularity": "word", "tag_audio_events": False}
    fields |= {name: inference.body[name] for name in (*_OWN, "temperature") if inference.body.get(name) is not None}
    if inference.body.get("language"):
        fields["language_code"] = inference.body["language"]
    return Form(fields, tuple(("file", upload) for upload in inference.files))


def _convert(raw: bytes, inference: InferenceRequest, secrets: Secrets) -> bytes:
    value = parse_answer_object(raw, secrets)
    text = value.get("text")
    if not isinstance(text, str):
        raise ProviderBadResponse("The provider's answer has no text")
    found = [
        parse_word(item.get("text"), item.get("start"), item.get("end"))
        for item in list_objects(value.get("words"))
        if item.get("type") == "word"
    ]
    words = tuple(word for word in found if word is not None)
    return build_answer(Transcript(text, words, as_text(value.get("language_code"))), inference)


def parse_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return the client's bytes and the usage. Raises ``ProviderBadResponse``."""
    return transcriptions.parse_transcription_answer(_convert(raw, inference, secrets), inference, secrets)


def build_whole(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return the answer as the events of a stream, and the usage. Raises ``ProviderBadResponse``."""
    return transcriptions.build_whole(_convert(raw, inference, secrets), inference, secrets)
