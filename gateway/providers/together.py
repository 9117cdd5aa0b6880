"""Together AI. docs.together.ai/docs/inference/openai-compatibility; docs.together.ai/reference: rerank, models.

Its model list is a bare array of objects with an ``id``. Images (.../reference/post-images-generations,
.../docs/inference/images/parameters): a width and a height, up to four at a time, as addresses or ``base64``. Edits
take an address or JSON and are not supported.
"""

import attrs

from gateway.domain.capability import Capability
from gateway.providers import base
from gateway.providers.efforts import EFFORTS_WITH_NONE, fit_effort, reasoning_disabled
from gateway.providers.quirks import DROP_UNKNOWN_FIELDS, drop, request_timestamps


def _shape_images(body: base.Body, _model: str) -> None:
    width, _, height = str(body.pop("size", "")).partition("x")
    if width.isdecimal() and height.isdecimal():
        body |= {"width": int(width), "height": int(height)}
    if body.get("response_format") == "b64_json":
        body["response_format"] = "base64"


TOGETHER = base.Provider(
    slug="together",
    title="Together AI",
    base_url="https://api.together.ai/v1",
    env_key="TOGETHER_API_KEY",
    endpoints=(
        attrs.evolve(
            base.CHAT, quirks=(fit_effort((r".*", EFFORTS_WITH_NONE)), reasoning_disabled, *DROP_UNKNOWN_FIELDS)
        ),
        base.EMBEDDINGS,
        base.COMPLETIONS,
        base.RERANK,
        base.Endpoint("openai_images", base.IMAGES.path, quirks=(_shape_images,)),
        base.Endpoint("openai_transcriptions", base.TRANSCRIPTIONS.path, quirks=(drop("stream"), request_timestamps)),
        base.Endpoint("openai_translations", base.TRANSLATIONS.path, quirks=(request_timestamps,)),
        base.SPEECH,
    ),
    capabilities=(Capability("*", max_n=4, response_formats=("url", "b64_json"), streams=False),),
)
