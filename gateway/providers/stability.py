"""Stability AI (platform.stability.ai/docs/api-reference): images only; see ``formats/images/stability.py``."""

from gateway.domain.capability import Capability
from gateway.formats.images.stability import GENERATE_PATH, MODELS, SIZES
from gateway.providers.base import Endpoint, Provider

STABILITY = Provider(
    slug="stability",
    title="Stability AI",
    base_url="https://api.stability.ai/v2beta",
    endpoints=(Endpoint("stability_images", GENERATE_PATH, models=tuple(MODELS)),),
    models_path=None,
    capabilities=tuple(
        Capability(name, sizes=tuple(SIZES), max_n=1, response_formats=(), edits=False, masks=False, streams=False)
        for name in MODELS
    ),
)
