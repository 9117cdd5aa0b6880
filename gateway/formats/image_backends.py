"""The image backend of each image API format."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gateway.domain.api_format import Wire
from gateway.domain.capability import Capability
from gateway.domain.inference_request import InferenceRequest
from gateway.formats.gemini.images import GeminiImageBackend
from gateway.formats.image_backend import ImageBackend
from gateway.formats.openai.chat_images import ChatImageBackend
from gateway.formats.openai.image_backend import OpenAiImageBackend
from gateway.formats.vendors.bfl_images import BflImageBackend
from gateway.formats.vendors.dashscope_images import DashScopeImageBackend
from gateway.formats.vendors.fal_images import FalImageBackend
from gateway.formats.vendors.luma_images import LumaImageBackend
from gateway.formats.vendors.replicate_images import ReplicateImageBackend
from gateway.formats.vendors.stability_images import StabilityImageBackend

Factory = Callable[[InferenceRequest, str, str, Capability], ImageBackend]

_IMAGE_BACKENDS: Mapping[Wire, Factory] = MappingProxyType(
    {
        "openai_images": OpenAiImageBackend,
        "openai_edits": OpenAiImageBackend,
        "gemini_pictures": GeminiImageBackend,
        "chat_pictures": ChatImageBackend,
        "dashscope_pictures": DashScopeImageBackend,
        "replicate_pictures": ReplicateImageBackend,
        "fal_pictures": FalImageBackend,
        "stability_pictures": StabilityImageBackend,
        "bfl_pictures": BflImageBackend,
        "luma_pictures": LumaImageBackend,
    },
)


def make_image_backend(
    wire: Wire, inference: InferenceRequest, model: str, mark: str, capability: Capability
) -> ImageBackend:
    """Return the image backend for ``inference`` in the format ``wire``; ``model`` is the provider's name of the model.

    ``mark`` is a word that no client could have put into the request; see ``formats/request_body.py``.
    """
    return _IMAGE_BACKENDS[wire](inference, model, mark, capability)
