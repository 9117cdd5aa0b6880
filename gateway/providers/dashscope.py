"""Alibaba Cloud Model Studio (DashScope), in its OpenAI compatibility mode.

alibabacloud.com/help/en/model-studio: .../compatibility-of-openai-with-dashscope, .../list-models,
.../embedding-interfaces-compatible-with-openai, .../compatibility-with-openai-responses-api. Keys belong to a region:
Singapore here; ``https://dashscope.aliyuncs.com`` is Beijing, ``https://dashscope-us.aliyuncs.com`` Virginia, and
``https://WORKSPACE.REGION.maas.aliyuncs.com`` a private one, each with ``/compatible-mode/v1`` as ``base_url``. The
documented model list has another address and shape; the one in OpenAI's shape is not documented.

Images and videos have separate formats on the same server (``dashscope.py`` in ``formats/images`` and
``formats/videos``). Image sizes that are documented as ranges are not listed; the provider rejects what it does not
make. Searches (``enable_search``) and code execution (``enable_code_interpreter``) are billed (.../web-search). Rerank
(``/compatible-api/v1/reranks``) is not supported. Anthropic's messages: provider "anthropic" with
``https://dashscope-intl.aliyuncs.com/apps/anthropic/v1``.
"""

from collections.abc import Iterator

import attrs

from gateway.domain.capability import Capability
from gateway.formats.videos.dashscope import MODELS, SYNTHESIS_PATH
from gateway.providers.base import CHAT, EMBEDDINGS, RESPONSES, Endpoint, Provider
from gateway.providers.efforts import disable_when_forced, enable_thinking_false
from gateway.providers.priced_fields import COMMON_FIELDS

_disable_when_forced = disable_when_forced(
    "enable_thinking", False, r"qwen3-((0\.6|1\.7|4|8|14|32|30b-a3|235b-a22)b)|qwen3\.[5-9]-.*"
)
"""The models that think by default (.../deep-thinking)."""
_PRESET_SIZES = ("1664x928", "1472x1104", "1328x1328", "1104x1472", "928x1664")
"""The only sizes of the first Qwen-Image models."""


def _build_capability(
    name: str, max_n: int, *, max_sources: int = 0, sizes: tuple[str, ...] | None = None
) -> Capability:
    return Capability(
        name,
        sizes=sizes,
        max_n=max_n,
        response_formats=(),
        edits=max_sources > 0,
        masks=False,
        max_sources=max_sources or None,
        streams=False,
    )


def _describe_videos() -> Iterator[Capability]:
    for glob, model in MODELS.items():
        yield Capability(
            glob,
            seconds=model.seconds,
            sizes=tuple(model.sizes),
            references=model.image_field is not None,
            remixes=False,
        )


IMAGES = Endpoint(
    "dashscope_images",
    "/api/v1/services/aigc/text2image/image-synthesis",
    rooted=True,
    models=("wan*-t2i*", "wan*-i2i*", "wan*-image*", "qwen-image*", "z-image*"),
)

VIDEOS = Endpoint("dashscope_videos", SYNTHESIS_PATH, rooted=True, models=("wan*-t2v*", "wan*-i2v*"))

DASHSCOPE = Provider(
    slug="dashscope",
    title="Alibaba Cloud Model Studio",
    base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    env_key="DASHSCOPE_API_KEY",
    endpoints=(
        attrs.evolve(CHAT, quirks=(enable_thinking_false, _disable_when_forced)),
        EMBEDDINGS,
        RESPONSES,
        IMAGES,
        VIDEOS,
    ),
    capabilities=(
        _build_capability("wan*-t2i*", 4),
        _build_capability("wan2.5-i2i*", 4, max_sources=3),
        _build_capability("wan2.6-image*", 4, max_sources=4),
        _build_capability("wan2.7-image*", 4, max_sources=9),
        _build_capability("wanx2.1-imageedit", 4, max_sources=1, sizes=()),
        _build_capability("qwen-image", 1, sizes=_PRESET_SIZES),
        _build_capability("qwen-image-plus*", 1, sizes=_PRESET_SIZES),
        _build_capability("qwen-image-max*", 1, sizes=_PRESET_SIZES),
        _build_capability("qwen-image-2.0*", 6, max_sources=3),
        _build_capability("qwen-image-3.0*", 6, max_sources=3),
        _build_capability("qwen-image-edit", 1, max_sources=3, sizes=()),
        _build_capability("qwen-image-edit-plus*", 6, max_sources=3),
        _build_capability("qwen-image-edit-max*", 6, max_sources=3),
        _build_capability("z-image*", 1),
        *_describe_videos(),
    ),
    priced_fields=COMMON_FIELDS | {"enable_search", "enable_code_interpreter"},
)
