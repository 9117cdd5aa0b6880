"""fal's queue (fal.ai/docs/inference-api): videos only; images are provider "fal", with the same key."""

from gateway.domain.capability import Capability
from gateway.formats.videos.fal import MODELS, REQUESTS_PATH
from gateway.providers.base import Endpoint, Provider
from gateway.providers.fal import sign_key

FAL_QUEUE = Provider(
    slug="fal_queue",
    title="fal (videos)",
    base_url="https://queue.fal.run",
    endpoints=(Endpoint("fal_videos", REQUESTS_PATH, models=tuple(MODELS)),),
    sign=sign_key,
    models_path=None,
    capabilities=tuple(
        Capability(name, seconds=model.seconds, sizes=tuple(model.sizes), references=True, remixes=False)
        for name, model in MODELS.items()
    ),
)
