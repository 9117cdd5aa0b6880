"""Stability AI's images: a form, and an answer with the image in base64.

platform.stability.ai/docs/api-reference, "Stable Image Ultra", "Stable Image Core", "Stable Diffusion 3.5": each makes
one image of about a megapixel, with a requested aspect ratio. Editing images is not supported.
"""

from collections.abc import Mapping

from gateway.domain.capability import Capability
from gateway.domain.image import Image, ImageRequest, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_any_object
from gateway.formats.errors.content_filter import build_block, find_block
from gateway.formats.errors.openai import Secrets, mask
from gateway.formats.errors.vendor import parse_reason
from gateway.formats.images.backend import ImageBackend, ProviderRequest
from gateway.formats.images.image_data import parse_base64
from gateway.formats.images.task import check_expressible, check_format
from gateway.formats.vendor_models import find_model
from gateway.formats.wire.json_values import as_text
from gateway.formats.wire.request_body import Body, Form

GENERATE_PATH = "/stable-image/generate"
SIZES: Mapping[str, str] = {
    "1024x1024": "1:1", "1344x768": "16:9", "768x1344": "9:16", "1536x640": "21:9", "640x1536": "9:21",
    "1216x832": "3:2", "832x1216": "2:3", "1088x896": "5:4", "896x1088": "4:5",
}  # fmt: skip
"""Sizes -> the ``aspect_ratio`` that produces them."""
MODELS: Mapping[str, str] = {
    "stable-image-ultra": "ultra",
    "stable-image-core": "core",
    "sd3.5-large": "sd3",
    "sd3.5-large-turbo": "sd3",
    "sd3.5-medium": "sd3",
    "sd3.5-flash": "sd3",
}
"""The last part of the path of each model."""
_STABILITY_FIELDS = ("negative_prompt", "seed", "style_preset", "cfg_scale", "aspect_ratio")
"""Stability's own fields that clients may set."""
_MAX_EXCERPT_CHARS = 64


class StabilityImageBackend(ImageBackend):
    """Images from one request to Stability AI."""

    __slots__ = ("_image_request", "_inference", "_model")

    def __init__(self, inference: InferenceRequest, model: str, _boundary_mark: str, _capability: Capability) -> None:
        self._inference = inference
        self._image_request = inference.image or ImageRequest("")
        self._model = model

    def begin(self, count: int) -> ProviderRequest:
        check_expressible(self._inference, takes_image=False, needs_image=False)
        model_path = find_model(MODELS, self._model)
        if count != 1:
            raise InvalidRequest("'n' must be 1", param="n")
        body = self._inference.body
        fields: Body = {name: body[name] for name in _STABILITY_FIELDS if body.get(name) is not None}
        fields["prompt"] = self._image_request.prompt
        if self._image_request.size is not None:
            if self._image_request.size not in SIZES:
                raise InvalidRequest(f"'size' must be one of {', '.join(SIZES)}", param="size")
            fields["aspect_ratio"] = SIZES[self._image_request.size]
        check_format(body.get("output_format"), ("jpeg", "png") if model_path == "sd3" else ("jpeg", "png", "webp"))
        if body.get("output_format") is not None:
            fields["output_format"] = body["output_format"]
        if model_path == "sd3":
            fields["model"] = self._model
        return ProviderRequest(Form(fields), path=f"{GENERATE_PATH}/{model_path}")

    def read(self, raw: bytes, secrets: Secrets) -> Images:
        value = parse_any_object(raw)
        reason = value.get("finish_reason")
        if reason == "CONTENT_FILTERED":
            raise build_block(None, secrets)
        if value.get("image") is None:
            block = find_block(value, secrets)
            raise block or ProviderBadResponse(f"The provider made no image: {parse_reason(value, secrets)}")
        if reason not in (None, "SUCCESS"):
            masked_reason = mask(as_text(reason), secrets)[:_MAX_EXCERPT_CHARS] or "no reason"
            raise ProviderBadResponse(f"The provider's image ended with {masked_reason}")
        return Images((Image(data=parse_base64(value["image"])),), Usage(source="upstream", images=1))
