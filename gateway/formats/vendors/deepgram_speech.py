"""Deepgram's speech: a body with the text, the model, which is also the voice, in the address; audio comes back.

developers.deepgram.com/reference/text-to-speech/speak-request: the answer is MP3 unless the address says otherwise.
"""

from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest
from gateway.formats.openai.fields import Body

_NORMAL = {"response_format": "mp3", "stream_format": "audio", "speed": 1}
"""The only values that can be expressed here, which are also the defaults."""


def build_speech_body(inference: InferenceRequest, _model: str) -> Body:
    """Build the body. Raises ``InvalidRequest`` for what the format cannot express.

    The client's ``voice`` is not sent: each voice is a model.
    """
    for field, normal in _NORMAL.items():
        if inference.body.get(field) not in (None, normal):
            raise InvalidRequest(f"'{field}' can only be {normal} here", param=field)
    if inference.body.get("instructions"):
        raise InvalidRequest("'instructions' are not supported here", param="instructions")
    return {"text": inference.body["input"]}
