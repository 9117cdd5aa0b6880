"""ElevenLabs: speech and transcriptions.

elevenlabs.io/docs/api-reference/text-to-speech/stream and .../speech-to-text/convert: the key is in an ``xi-api-key``
header; a client's ``voice`` is the id of a voice.
"""

from gateway.providers.base import Endpoint, Provider


def _sign(key: str) -> dict[str, str]:
    return {"xi-api-key": key} if key else {}


ELEVENLABS = Provider(
    slug="elevenlabs",
    title="ElevenLabs",
    base_url="https://api.elevenlabs.io/v1",
    endpoints=(
        Endpoint("elevenlabs_speech", "/text-to-speech"),
        Endpoint("elevenlabs_transcriptions", "/speech-to-text"),
    ),
    sign=_sign,
    models_path=None,
)
