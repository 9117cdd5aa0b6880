"""Kling AI: videos only.

kling.ai/document-api/api/get-started/authentication: an API key, or an AccessKey and a SecretKey, given as
``ACCESS:SECRET``, from which a token is made for every request; the latter works only with the older API version, see
``formats/videos/kling.py``. Inside China the address is ``https://api-beijing.klingai.com``, with separate
keys.
"""

from gateway.domain.capability import Capability
from gateway.formats.videos.kling import MODELS, TEXT_TO_VIDEO_PATH
from gateway.providers.base import Endpoint, Provider, sign_bearer

LIFETIME_S = 1_800
SKEW_S = 5
"""The lifetime of a token, and the time by which its validity begins in the past, as in the documentation's example."""


def sign_at(key: str, now_s: int) -> dict[str, str]:
    """Return headers with the key, or with a token (RFC 7519, HS256) made from the key at ``now_s`` (Unix seconds)."""
    access, _, secret = key.partition(":")
    if not (access and secret):
        return sign_bearer(key)
    from jwt import encode  # noqa: PLC0415 - loads cryptography, which most gateways do not need

    claims = {"iss": access, "exp": now_s + LIFETIME_S, "nbf": now_s - SKEW_S}
    return sign_bearer(encode(claims, secret, algorithm="HS256"))


KLING = Provider(
    slug="kling",
    title="Kling AI",
    base_url="https://api-singapore.klingai.com",
    endpoints=(Endpoint("kling_videos", TEXT_TO_VIDEO_PATH, models=tuple(MODELS)),),
    sign_at=sign_at,
    models_path=None,
    capabilities=tuple(
        Capability(name, seconds=model.seconds, sizes=tuple(model.sizes), references=True, remixes=False)
        for name, model in MODELS.items()
    ),
)
