"""Images of Luma (Uni): generations, polled until they end.

docs.agents.lumalabs.ai, whose types are in the package ``luma-agents`` (github.com/lumalabs/luma-agents-python):
``GenerationCreateParams``, ``ImageRefParam``, ``Generation`` and ``GenerationFailureCode``. URLs in an answer are valid
for one hour. A generation cannot be cancelled.

A model accepts an aspect ratio, which a size represents; the longer side has 2048 pixels. An edit is limited to one
source image, because each further reference costs extra. Not supported: web searches, styles and layers.
"""

from collections.abc import Mapping

from gateway.domain.capability import Capability
from gateway.domain.image import ImageRequest, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats.errors.content_filter import build_block, is_block
from gateway.formats.errors.openai import Secrets, write_reason
from gateway.formats.images.backend import ImageBackend, ProviderRequest
from gateway.formats.images.params import check_size
from gateway.formats.images.task import (
    ImageTask,
    build_images,
    check_expressible,
    check_format,
    parse_image,
    parse_state,
)
from gateway.formats.wire.json_values import as_text, list_objects
from gateway.formats.wire.request_body import Body, InlineUpload

GENERATIONS_PATH = "/generations"
MODELS = ("uni-1", "uni-1-max")
_FIRST_WAIT_S = 1.0
_OPEN_STATES = ("queued", "processing")
_OUTPUT_FORMATS = ("png", "jpeg")
SIZES: Mapping[str, str] = {
    "1024x1024": "1:1", "1536x1024": "3:2", "1024x1536": "2:3", "1280x720": "16:9", "720x1280": "9:16",
    "2048x1024": "2:1", "1024x2048": "1:2", "3072x1024": "3:1", "1024x3072": "1:3",
}  # fmt: skip
"""Sizes -> aspect ratios."""


class LumaImageBackend(ImageBackend):
    """Images from one Luma generation."""

    __slots__ = ("_image_request", "_inference", "_model", "_task")

    def __init__(self, inference: InferenceRequest, model: str, _boundary_mark: str, _capability: Capability) -> None:
        self._inference = inference
        self._image_request = inference.image or ImageRequest("")
        self._model = model
        self._task = ImageTask(GENERATIONS_PATH, _FIRST_WAIT_S)

    def begin(self, count: int) -> ProviderRequest:
        if self._model not in MODELS:
            raise InvalidRequest(f"The provider's models are {', '.join(MODELS)}", param="model")
        check_expressible(self._inference, takes_image=True, needs_image=False)
        if count != 1:
            raise InvalidRequest("'n' must be 1", param="n")
        check_size(self._inference.body)
        output_format = self._inference.body.get("output_format")
        check_format(output_format, _OUTPUT_FORMATS)
        body: Body = {"model": self._model, "type": "image", "prompt": self._image_request.prompt}
        if self._image_request.size is not None:
            if self._image_request.size not in SIZES:
                raise InvalidRequest(f"'size' must be one of {', '.join(SIZES)}", param="size")
            body["aspect_ratio"] = SIZES[self._image_request.size]
        if output_format is not None:
            body["output_format"] = output_format
        return ProviderRequest(body | self._build_source(), path=GENERATIONS_PATH, starts_task=True)

    def _build_source(self) -> Body:
        files = [file for file in self._inference.files if file.field == "image"]
        if len(files) > 1:
            raise InvalidRequest("The model takes at most 1 image", param="image")
        sources = [{"data": InlineUpload(file), "media_type": file.media_type} for file in files]
        return {"type": "image_edit", "source": sources[0]} if sources else {}

    def read(self, raw: bytes, secrets: Secrets) -> Images | ProviderRequest:
        value = self._task.parse_object(raw)
        if value is None:
            return self._task.build_poll_request()
        state = value.get("state")
        if state in _OPEN_STATES:
            return self._task.follow(value.get("id"))
        if state == "failed":
            raise _find_error(value, secrets)
        if state != "completed":
            raise ProviderBadResponse(f"The provider's task is {parse_state(state, secrets)}")
        outputs = [output for output in list_objects(value.get("output")) if output.get("type", "image") == "image"]
        return build_images([parse_image(output.get("url")) for output in outputs[:1]], 1)


def _find_error(value: Body, secrets: Secrets) -> ProviderError:
    code, message = as_text(value.get("failure_code")), as_text(value.get("failure_reason"))
    if is_block(code, message):
        return build_block(message or None, secrets)
    return ProviderBadResponse(f"The provider failed: {write_reason(message or None, code or None, secrets)}")
