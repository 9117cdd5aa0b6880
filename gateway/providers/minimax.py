"""MiniMax: Hailuo's videos alone.

platform.minimax.io/docs/api-reference, see ``formats/vendors/minimax_videos.py``. The address is that outside China;
inside it (platform.minimaxi.com/docs/api-reference) is ``https://api.minimaxi.com``, with keys of its own. H3 wants a
key that is paid by use, not one of a plan. Its other models speak the convention: provider "custom" with ``base_url``
``https://api.minimax.io/v1``. A channel names its models, and no variable of the environment makes one: many have that
key for those others.
"""

from gateway.domain.capability import Capability
from gateway.formats.vendors.minimax_videos import MODELS, TASKS
from gateway.providers.base import Endpoint, Provider

MINIMAX = Provider(
    slug="minimax",
    title="MiniMax",
    base_url="https://api.minimax.io",
    endpoints=(Endpoint("minimax_videos", TASKS, models=tuple(MODELS)),),
    models_path=None,
    capabilities=tuple(
        Capability(name, seconds=model.seconds, sizes=tuple(model.sizes), references=model.images, remixes=False)
        for name, model in MODELS.items()
    ),
)
