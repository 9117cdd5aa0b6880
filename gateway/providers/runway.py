"""Runway: videos only, by its own models and others, each with its own price.

docs.dev.runwayml.com/api; for the models' fields see ``formats/videos/runway.py``.
"""

from collections.abc import Iterator

from gateway.domain.capability import Capability
from gateway.formats.videos.runway import MODELS, TEXT_TO_VIDEO_PATH
from gateway.providers.base import Endpoint, Provider


def _list_capabilities() -> Iterator[Capability]:
    for name, model in MODELS.items():
        sizes = (*model.sizes, *model.image_sizes)
        yield Capability(name, seconds=model.seconds, sizes=sizes, references=True, remixes=False)
    yield Capability("*", remixes=False)


RUNWAY = Provider(
    slug="runway",
    title="Runway",
    base_url="https://api.dev.runwayml.com/v1",
    endpoints=(Endpoint("runway_videos", TEXT_TO_VIDEO_PATH),),
    models_path=None,
    capabilities=tuple(_list_capabilities()),
)
