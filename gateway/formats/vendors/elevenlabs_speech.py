"""ElevenLabs' speech: the voice and the audio's format are in the address, the text and the model in the body.

elevenlabs.io/docs/api-reference/text-to-speech/stream: MP3, Opus and PCM can be streamed; OpenAI's PCM has 24 kHz, too.
"""

from collections.abc import Mapping
from urllib.parse import quote

from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest
from gateway.formats.openai.fields import Body

_FORMATS: Mapping[str, str] = {"mp3": "mp3_44100_128", "opus": "opus_48000_64", "pcm": "pcm_24000"}
_OWN = ("language_code", "seed", "previous_text", "next_text", "apply_text_normalization")
"""ElevenLabs' own fields, which clients may send."""


def build_speech_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body. Raises ``InvalidRequest`` for what the API cannot express."""
    body = inference.body
    if _find_format(inference) not in _FORMATS:
        raise InvalidRequest(f"'response_format' must be one of {', '.join(_FORMATS)} here", param="response_format")
    if body.get("stream_format") not in (None, "audio"):
        raise InvalidRequest("'stream_format' can only be audio here", param="stream_format")
    if body.get("instructions"):
        raise InvalidRequest("'instructions' are not supported here", param="instructions")
    sent: Body = {"text": body["input"], "model_id": model}
    sent |= {name: body[name] for name in _OWN if body.get(name) is not None}
    settings = body.get("voice_settings")
    if settings is not None and not isinstance(settings, dict):
        raise InvalidRequest("'voice_settings' must be an object", param="voice_settings")
    speed = body.get("speed")
    settings = {**(settings or {}), **({} if speed in (None, 1) else {"speed": speed})}
    return sent | ({"voice_settings": settings} if settings else {})


def find_speech_path(inference: InferenceRequest, _model: str) -> str:
    """Return the path for the voice and the format of a request whose body could be built."""
    voice = inference.body["voice"]
    name = voice if isinstance(voice, str) else voice["id"]
    return f"/text-to-speech/{quote(name, safe='')}/stream?output_format={_FORMATS[_find_format(inference)]}"


def _find_format(inference: InferenceRequest) -> str:
    return inference.body.get("response_format") or "mp3"
