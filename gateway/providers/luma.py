"""Luma: videos of Ray, images of Uni.

docs.agents.lumalabs.ai/guides/pricing lists the models; see ``formats/videos/luma.py`` and ``formats/images/luma.py``.
"""

from collections.abc import Iterator

from gateway.domain.capability import Capability
from gateway.formats.images import luma as luma_images
from gateway.formats.videos.luma import GENERATIONS_PATH, MODELS
from gateway.providers.base import Endpoint, Provider


def _list_videos() -> Iterator[Capability]:
    for name, model in MODELS.items():
        yield Capability(name, seconds=model.seconds, sizes=tuple(model.sizes), references=True, remixes=False)


def _list_images() -> Iterator[Capability]:
    for name in luma_images.MODELS:
        yield Capability(
            name,
            sizes=tuple(luma_images.SIZES),
            max_n=1,
            response_formats=(),
            edits=True,
            masks=False,
            max_sources=1,
            streams=False,
        )


LUMA = Provider(
    slug="luma",
    title="Luma",
    base_url="https://agents.lumalabs.ai/v1",
    endpoints=(
        Endpoint("luma_videos", GENERATIONS_PATH, models=tuple(MODELS)),
        Endpoint("luma_images", luma_images.GENERATIONS_PATH, models=luma_images.MODELS),
    ),
    models_path=None,
    capabilities=(*_list_videos(), *_list_images()),
)
