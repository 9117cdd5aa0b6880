"""Kling AI: videos alone.

kling.ai/document-api/api/get-started/authentication: an API key, or an AccessKey and a SecretKey, written as the key
``ACCESS:SECRET``, from which a token is made for every request; its older language alone takes that, see
``formats/vendors/kling_videos.py``. The address is that outside China; inside it is
``https://api-beijing.klingai.com``, with keys of its own. There is no list of models: a channel names its models, and
no variable of the environment makes one.
"""

from gateway.domain.capability import Capability
from gateway.formats.vendors.kling_videos import MODELS, TEXT
from gateway.providers.base import Endpoint, Provider, sign_bearer

LIFETIME_S = 1_800
SKEW_S = 5
"""How long a token is good, and since when, as the page's own example has it."""


def sign_at(key: str, now_s: int) -> dict[str, str]:
    """The key, or a token (RFC 7519, HS256) that is made of it at that moment (Unix seconds)."""
    access, _, secret = key.partition(":")
    if not (access and secret):
        return sign_bearer(key)
    from jwt import encode  # noqa: PLC0415 - it loads cryptography, which most gateways can do without

    claims = {"iss": access, "exp": now_s + LIFETIME_S, "nbf": now_s - SKEW_S}
    return sign_bearer(encode(claims, secret, algorithm="HS256"))


KLING = Provider(
    slug="kling",
    title="Kling AI",
    base_url="https://api-singapore.klingai.com",
    endpoints=(Endpoint("kling_videos", TEXT, models=tuple(MODELS)),),
    sign_at=sign_at,
    models_path=None,
    capabilities=tuple(
        Capability(name, seconds=model.seconds, sizes=tuple(model.sizes), references=True, remixes=False)
        for name, model in MODELS.items()
    ),
)
