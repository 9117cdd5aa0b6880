"""Images of models at fal, generated synchronously.

docs.fal.ai/documentation/model-apis/inference/synchronous: ``POST https://fal.run/OWNER/MODEL`` returns the images.
Each model has its own fields (fal.ai/models/OWNER/MODEL/api). Most models accept ``num_images``, those in
``SIZED_MODELS`` accept ``image_size``, and those whose name ends in ``/edit`` accept a list of ``image_urls``. Clients
set other model fields directly. A filtered image is black and marked in ``has_nsfw_concepts``. A rejected prompt has
status 422 and the type ``content_policy_violation``.
"""

import re
from fnmatch import fnmatchcase

from gateway.domain.capability import Capability
from gateway.domain.image import ImageRequest, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_any_object
from gateway.formats.errors.content_filter import build_block, find_block
from gateway.formats.errors.openai import Secrets
from gateway.formats.errors.vendor import parse_reason
from gateway.formats.images import task as image_task
from gateway.formats.images.backend import ImageBackend, ProviderRequest
from gateway.formats.wire.json_values import as_list, list_objects
from gateway.formats.wire.request_body import Body, build_data_url

SIZED_MODELS = (
    "fal-ai/flux*",
    "fal-ai/recraft/*",
    "fal-ai/ideogram/*",
    "fal-ai/qwen-image*",
    "fal-ai/stable-diffusion-*",
)
"""Globs of the models that accept ``image_size`` with width and height."""
_RATIO_MODELS = ("fal-ai/flux-pro/kontext*", "fal-ai/flux-pro/v1.1-ultra*")
"""Globs of the models that match ``SIZED_MODELS`` but accept an aspect ratio instead."""
EDIT_MODELS = "*/edit"
_MODEL_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,63}){1,5}\Z", re.ASCII)
_OUTPUT_FORMATS = ("jpeg", "png")
_GATEWAY_FIELDS = frozenset(
    {
        "model", "prompt", "n", "size", "response_format", "user", "quality", "background", "moderation",
        "output_format", "output_compression", "stream", "partial_images", "safety_identifier", "input_fidelity",
        "image", "images", "mask", "image_size", "image_url", "image_urls", "sync_mode", "enable_safety_checker",
        "safety_tolerance",
    },
)  # fmt: skip
"""Fields that the gateway controls: those of the OpenAI API format and fal's equivalents, and the safety filter, which
only the account's owner may change.
"""


class FalImageBackend(ImageBackend):
    """Images from one synchronous request to fal."""

    __slots__ = ("_count", "_image_request", "_inference", "_model")

    def __init__(self, inference: InferenceRequest, model: str, _boundary_mark: str, _capability: Capability) -> None:
        self._inference = inference
        self._image_request = inference.image or ImageRequest("")
        self._model = model
        self._count = 1

    def begin(self, count: int) -> ProviderRequest:
        is_edit = fnmatchcase(self._model, EDIT_MODELS)
        image_task.check_expressible(self._inference, takes_image=is_edit, needs_image=is_edit)
        if not _MODEL_PATTERN.match(self._model):
            raise InvalidRequest("The provider calls its models owner/name", param="model")
        self._count = count
        body = self._inference.body
        fields: Body = image_task.copy_fields(body, _GATEWAY_FIELDS)
        fields["prompt"] = self._image_request.prompt
        if self._image_request.size is not None:
            fields["image_size"] = _build_size(self._model, self._image_request.size)
        if count > 1:
            fields["num_images"] = count
        image_task.check_format(body.get("output_format"), _OUTPUT_FORMATS)
        if body.get("output_format") is not None:
            fields["output_format"] = body["output_format"]
        if is_edit:
            fields["image_urls"] = [build_data_url(file) for file in self._inference.files if file.field == "image"]
        return ProviderRequest(fields, path=f"/{self._model}")

    def read(self, raw: bytes, secrets: Secrets) -> Images:
        value = parse_any_object(raw)
        items = list_objects(value.get("images")) or list_objects([value.get("image")])
        if not items:
            raise find_block(value, secrets) or ProviderBadResponse(
                f"The provider made no image: {parse_reason(value, secrets)}"
            )
        if True in as_list(value.get("has_nsfw_concepts")):
            raise build_block(None, secrets)
        return image_task.build_images([image_task.parse_image(item.get("url")) for item in items], self._count)


def _build_size(model: str, size: str) -> Body:
    if any(fnmatchcase(model, model_pattern) for model_pattern in _RATIO_MODELS) or not any(
        fnmatchcase(model, model_pattern) for model_pattern in SIZED_MODELS
    ):
        raise InvalidRequest("'size' cannot be said to this model; its own fields can be given instead", param="size")
    width, height = image_task.parse_sides(size)
    return {"width": width, "height": height}
