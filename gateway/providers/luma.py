"""Luma: videos of Ray only.

docs.agents.lumalabs.ai/guides/pricing (the models) and the package ``luma-agents``, see
``formats/vendors/luma_videos.py``. There is no model list: a channel lists its models, and no environment variable
creates one (the usual one is ``LUMA_AGENTS_API_KEY``).
"""

from gateway.domain.capability import Capability
from gateway.formats.vendors.luma_videos import GENERATIONS, MODELS
from gateway.providers.base import Endpoint, Provider

LUMA = Provider(
    slug="luma",
    title="Luma",
    base_url="https://agents.lumalabs.ai/v1",
    endpoints=(Endpoint("luma_videos", GENERATIONS, models=tuple(MODELS)),),
    models_path=None,
    capabilities=tuple(
        Capability(name, seconds=model.seconds, sizes=tuple(model.sizes), references=True, remixes=False)
        for name, model in MODELS.items()
    ),
)
