"""The table of image backends, by image API format."""

from collections.abc import Callable, Mapping

from gateway.deferred import defer
from gateway.domain.api_format import Wire
from gateway.domain.capability import Capability
from gateway.domain.inference_request import InferenceRequest
from gateway.formats.image_backend import ImageBackend

Factory = Callable[[InferenceRequest, str, str, Capability], ImageBackend]

_IMAGE_BACKENDS: Mapping[Wire, Factory] = defer(
    {
        "openai_images": "formats.openai.image_backend:OpenAiImageBackend",
        "openai_edits": "formats.openai.image_backend:OpenAiImageBackend",
        "gemini_images": "formats.gemini.images:GeminiImageBackend",
        "chat_images": "formats.openai.chat_images:ChatImageBackend",
        "dashscope_images": "formats.vendors.dashscope_images:DashScopeImageBackend",
        "replicate_images": "formats.vendors.replicate_images:ReplicateImageBackend",
        "fal_images": "formats.vendors.fal_images:FalImageBackend",
        "stability_images": "formats.vendors.stability_images:StabilityImageBackend",
        "bfl_images": "formats.vendors.bfl_images:BflImageBackend",
        "luma_images": "formats.vendors.luma_images:LumaImageBackend",
    }
)


def make_image_backend(
    wire: Wire, inference: InferenceRequest, model: str, mark: str, capability: Capability
) -> ImageBackend:
    """Return the image backend for the format ``wire``. ``mark``: see ``formats/request_body.py``."""
    return _IMAGE_BACKENDS[wire](inference, model, mark, capability)
