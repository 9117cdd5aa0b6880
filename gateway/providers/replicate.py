"""Replicate: pictures alone, by models of many makers, each with a price of its own.

replicate.com/docs/reference/http. Models are called ``owner/name``, and those of the community
``owner/name:version``; what each takes is in ``formats/vendors/replicate_images.py``. Its list of models has every
model that anybody ever made public, and another shape than the convention's: a channel names its models, and no
variable of the environment makes one.
"""

from collections.abc import Iterator

from gateway.domain.capability import Capability
from gateway.formats.vendors.replicate_images import MODELS, PREDICTIONS
from gateway.providers.base import Endpoint, Provider


def _describe() -> Iterator[Capability]:
    """What is known of each model, also where a version of it is named; and of every other."""
    for name, model in MODELS.items():
        able = Capability(
            name,
            sizes=None if model.sizes is None else tuple(model.sizes),
            max_n=model.most,
            response_formats=(),
            edits=model.source_field is not None,
            masks=False,
            max_sources=model.most_sources if model.source_field else None,
            streams=False,
        )
        yield able
        yield Capability(f"{name}:*").over(able)
    yield Capability("*", max_n=1, response_formats=(), edits=False, masks=False, streams=False)


REPLICATE = Provider(
    slug="replicate",
    title="Replicate",
    base_url="https://api.replicate.com/v1",
    endpoints=(Endpoint("replicate_pictures", PREDICTIONS),),
    models_path=None,
    capabilities=tuple(_describe()),
)
