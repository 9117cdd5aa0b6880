"""Black Forest Labs: images of the FLUX models only.

docs.bfl.ai/quick_start/generating_images: a model's name is its path, see ``formats/images/bfl.py``; the key in
an ``x-key`` header. ``https://api.eu.bfl.ai/v1`` and ``https://api.us.bfl.ai/v1`` stay in one region.
"""

from collections.abc import Iterator

from gateway.domain.capability import Capability
from gateway.formats.images.bfl import MODELS
from gateway.providers.base import Endpoint, Provider


def _sign(key: str) -> dict[str, str]:
    return {"x-key": key} if key else {}


def _list_capabilities() -> Iterator[Capability]:
    for name, model in MODELS.items():
        yield Capability(
            name,
            sizes=None if model.ratios is None else tuple(model.ratios),
            max_n=1,
            response_formats=(),
            edits=model.max_sources > 0,
            masks=False,
            max_sources=model.max_sources or None,
            streams=False,
        )
    yield Capability("*", max_n=1, response_formats=(), edits=False, masks=False, streams=False)


BFL = Provider(
    slug="bfl",
    title="Black Forest Labs",
    base_url="https://api.bfl.ai/v1",
    endpoints=(Endpoint("bfl_images", "/flux", models=("flux-*",)),),
    sign=_sign,
    models_path=None,
    capabilities=tuple(_list_capabilities()),
)
