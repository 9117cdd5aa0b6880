"""fal: images, by models of many makers, each with its own price; videos are provider "fal_queue".

docs.fal.ai/documentation/model-apis/inference/synchronous: models are called ``owner/name`` or ``owner/name/variant``;
for their fields see ``formats/images/fal.py``. The scheme of the key is ``Key``.
"""

from gateway.domain.capability import Capability
from gateway.formats.images.fal import EDIT_MODELS
from gateway.providers.base import Endpoint, Provider

_MAX_IMAGES = 4


def sign_key(key: str) -> dict[str, str]:
    """Return an ``Authorization: Key`` header, or no headers if ``key`` is empty."""
    return {"Authorization": f"Key {key}"} if key else {}


FAL = Provider(
    slug="fal",
    title="fal",
    base_url="https://fal.run",
    endpoints=(Endpoint("fal_images", "/run"),),
    sign=sign_key,
    models_path=None,
    capabilities=(
        Capability("*", max_n=_MAX_IMAGES, response_formats=(), edits=False, masks=False, streams=False),
        Capability(EDIT_MODELS, max_n=_MAX_IMAGES, response_formats=(), edits=True, masks=False, streams=False),
    ),
)
