"""Deepgram: speech and transcriptions.

developers.deepgram.com/reference/text-to-speech/speak-request: each voice is a model (``aura-2-thalia-en``), and the
scheme of the key is ``Token``. Transcriptions: .../speech-to-text/listen-pre-recorded.
"""

from gateway.domain.capability import Capability
from gateway.providers.base import Endpoint, Provider


def _sign(key: str) -> dict[str, str]:
    return {"Authorization": f"Token {key}"} if key else {}


DEEPGRAM = Provider(
    slug="deepgram",
    title="Deepgram",
    base_url="https://api.deepgram.com/v1",
    endpoints=(
        Endpoint("deepgram_speech", "/speak?model={model}"),
        Endpoint("deepgram_transcriptions", "/listen?model={model}"),
    ),
    sign=_sign,
    models_path=None,
    capabilities=(Capability("aura-*", voices=()),),
)
