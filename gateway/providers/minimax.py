"""MiniMax: videos of Hailuo only; its other models are provider "custom" with ``https://api.minimax.io/v1``.

platform.minimax.io/docs/api-reference, see ``formats/videos/minimax.py``. In China
(platform.minimaxi.com/docs/api-reference) the address is ``https://api.minimaxi.com``, with separate keys. H3 requires
a pay-as-you-go key, not that of a plan. No environment variable creates a channel: often that key is for the other
models.
"""

from gateway.domain.capability import Capability
from gateway.formats.videos.minimax import MODELS, TASKS_PATH
from gateway.providers.base import Endpoint, Provider

MINIMAX = Provider(
    slug="minimax",
    title="MiniMax",
    base_url="https://api.minimax.io",
    endpoints=(Endpoint("minimax_videos", TASKS_PATH, models=tuple(MODELS)),),
    models_path=None,
    capabilities=tuple(
        Capability(name, seconds=model.seconds, sizes=tuple(model.sizes), references=model.takes_image, remixes=False)
        for name, model in MODELS.items()
    ),
)
