"""Google Gemini, in its own API format.

ai.google.dev/api/generate-content, .../api/embeddings, .../api/tokens and .../api/models (at most 1000 per page): the
key in an ``x-goog-api-key`` header; the list names models ``models/gemini-…``, requests use the bare name. Its OpenAI
compatibility (ai.google.dev/gemini-api/docs/openai) is provider "custom" with
``https://generativelanguage.googleapis.com/v1beta/openai``.

Images: .../docs/image-generation, its tables of sizes, and "Limitations" for the most input images of a model. Imagen
was shut down on 17 August 2026 (.../docs/deprecations). Videos: .../docs/veo.
"""

from gateway.domain.capability import Capability
from gateway.formats.images.aspect_ratios import (
    FIRST_GENERATION_SIZES,
    SMALL_SIZES,
    USUAL_SIZES,
    WIDE_SIZES,
    WIDEST_SIZES,
)
from gateway.formats.videos.gemini import SECONDS, SIZES
from gateway.providers.base import Endpoint, Provider

_MAX_SOURCES = 14
IMAGE_MODELS = ("gemini-*-image*", "gemini-nano-banana-*")
"""Globs of the image models."""


def _build_capability(name: str, sizes: tuple[str, ...] | None, max_sources: int | None = _MAX_SOURCES) -> Capability:
    return Capability(
        name, sizes=sizes, max_n=1, response_formats=(), edits=True, masks=False, max_sources=max_sources, streams=False
    )


IMAGES = (
    _build_capability("gemini-*-image*", None, None),
    _build_capability("gemini-2.5-flash-image*", FIRST_GENERATION_SIZES, 3),
    _build_capability("gemini-3-pro-image*", USUAL_SIZES),
    _build_capability("gemini-3.1-flash-image*", WIDEST_SIZES),
    _build_capability("gemini-3.1-flash-lite-image*", SMALL_SIZES),
    _build_capability("gemini-nano-banana-*", WIDE_SIZES),
)
"""Capabilities of the image models."""


VIDEO_MODELS = ("veo-*",)
"""Globs of the video models."""
_4K_SIZES = ("3840x2160", "2160x3840")
VIDEOS = (
    Capability("veo-*", remixes=False),
    Capability("veo-3.1-*", seconds=SECONDS, sizes=tuple(SIZES), references=True, remixes=False),
    Capability(
        "veo-3.1-lite-*",
        seconds=SECONDS,
        sizes=tuple(size for size in SIZES if size not in _4K_SIZES),
        references=True,
        remixes=False,
    ),
)


def _sign(key: str) -> dict[str, str]:
    return {"x-goog-api-key": key} if key else {}


def _parse_model_id(name: str) -> str:
    return name.removeprefix("models/")


GEMINI = Provider(
    slug="gemini",
    title="Google Gemini",
    base_url="https://generativelanguage.googleapis.com/v1beta",
    env_key="GEMINI_API_KEY",
    endpoints=(
        Endpoint(
            "gemini_generate",
            "/models/{model}:generateContent",
            stream_path="/models/{model}:streamGenerateContent?alt=sse",
        ),
        Endpoint("gemini_embeddings", "/models/{model}:batchEmbedContents"),
        Endpoint("gemini_count_tokens", "/models/{model}:countTokens"),
        Endpoint("gemini_images", "/models/{model}:generateContent", models=IMAGE_MODELS),
        Endpoint("gemini_videos", "/models/{model}:predictLongRunning", models=VIDEO_MODELS),
    ),
    sign=_sign,
    models_path="/models?pageSize=1000",
    list_format="gemini",
    parse_model_id=_parse_model_id,
    capabilities=(*IMAGES, *VIDEOS),
)
