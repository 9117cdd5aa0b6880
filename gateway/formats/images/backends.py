"""The table of image backends, by image API format."""

from collections.abc import Callable, Mapping

from gateway.deferred import defer
from gateway.domain.api_format import Wire
from gateway.domain.capability import Capability
from gateway.domain.inference_request import InferenceRequest
from gateway.formats.images.backend import ImageBackend

BackendFactory = Callable[[InferenceRequest, str, str, Capability], ImageBackend]

_IMAGE_BACKENDS: Mapping[Wire, BackendFactory] = defer(
    {
        "openai_images": "formats.images.openai_backend:OpenAiImageBackend",
        "openai_edits": "formats.images.openai_backend:OpenAiImageBackend",
        "gemini_images": "formats.images.gemini:GeminiImageBackend",
        "chat_images": "formats.images.chat_models:ChatImageBackend",
        "dashscope_images": "formats.images.dashscope:DashScopeImageBackend",
        "replicate_images": "formats.images.replicate:ReplicateImageBackend",
        "fal_images": "formats.images.fal:FalImageBackend",
        "stability_images": "formats.images.stability:StabilityImageBackend",
        "bfl_images": "formats.images.bfl:BflImageBackend",
        "luma_images": "formats.images.luma:LumaImageBackend",
    }
)


def make_image_backend(
    wire: Wire, inference: InferenceRequest, model: str, boundary_mark: str, capability: Capability
) -> ImageBackend:
    """Return the image backend for the format ``wire``.

    ``formats/wire/request_body.py`` explains ``boundary_mark``.
    """
    return _IMAGE_BACKENDS[wire](inference, model, boundary_mark, capability)
