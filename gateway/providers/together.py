"""Together AI. docs.together.ai/docs/inference/openai-compatibility; docs.together.ai/reference: rerank, models.

Its model list is a bare array of objects with an ``id``. Images (.../reference/post-images-generations,
.../docs/inference/images/parameters): a width and a height, up to four at a time, as addresses or ``base64``. Edits
take an address or JSON and are not supported. Transcription: .../docs/inference/transcription/overview; speech is on
the OpenAI compatibility page.
"""

from gateway.domain.capability import Capability
from gateway.providers.base import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    IMAGES,
    RERANK,
    SPEECH,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    Body,
    Endpoint,
    Provider,
)
from gateway.providers.quirks import ask_for_times, drop


def _shape_images(body: Body, _model: str) -> None:
    width, _, height = str(body.pop("size", "")).partition("x")
    if width.isdecimal() and height.isdecimal():
        body |= {"width": int(width), "height": int(height)}
    if body.get("response_format") == "b64_json":
        body["response_format"] = "base64"


TOGETHER = Provider(
    slug="together",
    title="Together AI",
    base_url="https://api.together.ai/v1",
    env_key="TOGETHER_API_KEY",
    endpoints=(
        CHAT,
        EMBEDDINGS,
        COMPLETIONS,
        RERANK,
        Endpoint("openai_images", IMAGES.path, quirks=(_shape_images,)),
        Endpoint("openai_transcriptions", TRANSCRIPTIONS.path, quirks=(drop("stream"), ask_for_times)),
        Endpoint("openai_translations", TRANSLATIONS.path, quirks=(ask_for_times,)),
        SPEECH,
    ),
    capabilities=(Capability("*", max_n=4, response_formats=("url", "b64_json"), streams=False),),
)
