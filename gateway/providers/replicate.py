"""Replicate: images only, by models of many makers, each with its own price.

replicate.com/docs/reference/http. Models are called ``owner/name``, those of the community ``owner/name:version``; for
their fields see ``formats/images/replicate.py``.
"""

from collections.abc import Iterator

from gateway.domain.capability import Capability
from gateway.formats.images.replicate import MODELS, PREDICTIONS_PATH
from gateway.providers.base import Endpoint, Provider


def _list_capabilities() -> Iterator[Capability]:
    for name, model in MODELS.items():
        capability = Capability(
            name,
            sizes=None if model.sizes is None else tuple(model.sizes),
            max_n=model.max_images,
            response_formats=(),
            edits=model.source_field is not None,
            masks=False,
            max_sources=model.max_sources if model.source_field else None,
            streams=False,
        )
        yield capability
        yield Capability(f"{name}:*").fill_from(capability)
    yield Capability("*", max_n=1, response_formats=(), edits=False, masks=False, streams=False)


REPLICATE = Provider(
    slug="replicate",
    title="Replicate",
    base_url="https://api.replicate.com/v1",
    endpoints=(Endpoint("replicate_images", PREDICTIONS_PATH),),
    models_path=None,
    capabilities=tuple(_list_capabilities()),
)
