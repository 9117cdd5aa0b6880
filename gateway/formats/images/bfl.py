"""Images of Black Forest Labs' FLUX models: tasks, polled until they end.

Sources: docs.bfl.ai/quick_start/generating_images (``POST /v1/MODEL`` returns an ``id`` and a ``polling_url``, which
must be used because the task may run on another cluster), .../api_integration/errors (states),
.../api-reference/models/… (fields of each model, including input images). Output images are URLs that are valid for
ten minutes. A task cannot be cancelled.

FLUX.2 and the first FLUX models accept sizes in pixels; Kontext and Ultra accept aspect ratios. A model that is not in
``MODELS`` gets the prompt and the fields set by the client.
"""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import attrs

from gateway.domain.capability import Capability
from gateway.domain.image import ImageRequest, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats.errors.content_filter import build_block
from gateway.formats.errors.openai import Secrets, write_reason
from gateway.formats.images.backend import ImageBackend, ProviderRequest
from gateway.formats.images.params import check_size
from gateway.formats.images.task import (
    ImageTask,
    build_images,
    check_expressible,
    check_format,
    copy_fields,
    parse_image,
    parse_sides,
    parse_state,
)
from gateway.formats.wire.json_values import as_list, as_object, as_text
from gateway.formats.wire.request_body import Body, InlineUpload
from gateway.frozen import frozen

RESULT_PATH = "/get_result?id="
DOMAIN = ".bfl.ai"
"""The suffix of the vendor's host names. A server that an answer names is used only if its name has this suffix."""
_FIRST_WAIT_S = 0.5
_BLOCKED_STATES = ("Request Moderated", "Content Moderated")
_MODEL_PATTERN = re.compile(r"flux-[a-z0-9.-]{1,60}\Z", re.ASCII)
_HOST_PATTERN = re.compile(r"[a-z0-9.-]{1,100}\Z", re.ASCII)
_OUTPUT_FORMATS = ("jpeg", "png")
_GATEWAY_FIELDS = frozenset(
    {
        "model", "prompt", "n", "size", "response_format", "user", "quality", "style", "background", "moderation",
        "output_format", "output_compression", "stream", "partial_images", "safety_identifier", "input_fidelity",
        "image", "images", "mask", "safety_tolerance", "webhook_url", "webhook_secret", "input_image", "image_prompt",
        *(f"input_image_{number}" for number in range(2, 11)),
    },
)  # fmt: skip
"""Fields that the gateway controls: those of the OpenAI API format and the vendor's equivalents, the safety filter,
which only the account's owner may change, and the webhook URL to which the vendor would send the result.
"""
_RATIOS = {
    "1024x1024": "1:1", "1536x1024": "3:2", "1024x1536": "2:3", "1024x768": "4:3", "768x1024": "3:4",
    "1280x720": "16:9", "720x1280": "9:16", "1280x1024": "5:4", "1024x1280": "4:5",
}  # fmt: skip
"""Sizes that represent an aspect ratio, because the actual pixels are not documented."""


@frozen
class Sides:
    """Limits of sizes in pixels: the range and step of both sides, and the maximum of their product."""

    minimum: int
    maximum: int
    step: int
    max_pixels: int


@frozen
class FluxModel:
    """The options of a model.

    Attributes:
        ratios: aspect ratios by size; None if the model accepts none.
        sides: limits of sizes in pixels; None if the model accepts no such sizes.
        max_sources: maximum number of input images.
    """

    ratios: Mapping[str, str] | None = None
    sides: Sides | None = None
    max_sources: int = 0


_FLUX_1 = FluxModel(sides=Sides(256, 1440, 32, 1440 * 1440))
_FLUX_2 = FluxModel(sides=Sides(64, 4096, 16, 2048 * 2048), max_sources=8)
_KLEIN = attrs.evolve(_FLUX_2, max_sources=4)
_RATIO_MODEL = FluxModel(_RATIOS)
_KONTEXT = attrs.evolve(_RATIO_MODEL, max_sources=1)
_UNKNOWN_MODEL = FluxModel()
MODELS: Mapping[str, FluxModel] = {
    "flux-2-max": _FLUX_2,
    "flux-2-pro": _FLUX_2,
    "flux-2-pro-preview": _FLUX_2,
    "flux-2-flex": _FLUX_2,
    "flux-2-klein-4b": _KLEIN,
    "flux-2-klein-9b": _KLEIN,
    "flux-kontext-max": _KONTEXT,
    "flux-kontext-pro": _KONTEXT,
    "flux-pro-1.1-ultra": _RATIO_MODEL,
    "flux-pro-1.1": _FLUX_1,
    "flux-pro": _FLUX_1,
    "flux-dev": _FLUX_1,
}


class BflImageBackend(ImageBackend):
    """Images from one FLUX task."""

    __slots__ = ("_flux_model", "_has_size_list", "_image_request", "_inference", "_model", "_task")

    def __init__(self, inference: InferenceRequest, model: str, _boundary_mark: str, capability: Capability) -> None:
        self._inference = inference
        self._image_request = inference.image or ImageRequest("")
        self._model = model
        self._flux_model = MODELS.get(model, _UNKNOWN_MODEL)
        self._has_size_list = capability.sizes is not None and capability.sizes != tuple(self._flux_model.ratios or ())
        self._task = ImageTask(RESULT_PATH, _FIRST_WAIT_S, separator="")

    def begin(self, count: int) -> ProviderRequest:
        flux_model, body = self._flux_model, self._inference.body
        if not _MODEL_PATTERN.match(self._model):
            raise InvalidRequest("The provider's models are called flux-…", param="model")
        check_expressible(self._inference, takes_image=flux_model.max_sources > 0, needs_image=False)
        if count != 1:
            raise InvalidRequest("'n' must be 1", param="n")
        if self._has_size_list or self._image_request.size is not None:
            check_size(body)
        fields: Body = copy_fields(body, _GATEWAY_FIELDS)
        fields["prompt"] = self._image_request.prompt
        if self._image_request.size is not None:
            fields |= _build_size(flux_model, self._image_request.size)
        check_format(body.get("output_format"), _OUTPUT_FORMATS)
        if body.get("output_format") is not None:
            fields["output_format"] = body["output_format"]
        return ProviderRequest(fields | self._build_sources(), path=f"/{self._model}", starts_task=True)

    def _build_sources(self) -> Body:
        files = [file for file in self._inference.files if file.field == "image"]
        if len(files) > self._flux_model.max_sources:
            raise InvalidRequest(f"The model takes at most {self._flux_model.max_sources} images", param="image")
        field_names = ("input_image", *(f"input_image_{number}" for number in range(2, len(files) + 1)))
        return {name: InlineUpload(file) for name, file in zip(field_names, files, strict=False)}

    def read(self, raw: bytes, secrets: Secrets) -> Images | ProviderRequest:
        value = self._task.parse_object(raw)
        if value is None:
            return self._task.build_poll_request()
        state = value.get("status")
        if state == "Pending" or (state is None and "polling_url" in value):
            self._task.host = self._task.host or _find_host(value.get("polling_url"))
            return self._task.follow(value.get("id"))
        if state in _BLOCKED_STATES or state == "Error":
            raise _find_error(value, secrets)
        if state != "Ready":
            raise ProviderBadResponse(f"The provider's task is {parse_state(state, secrets)}")
        return build_images([parse_image(as_object(value.get("result")).get("sample"))], 1)


def _build_size(flux_model: FluxModel, size: str) -> Body:
    if flux_model.ratios is not None:
        if size not in flux_model.ratios:
            raise InvalidRequest(f"'size' must be one of {', '.join(flux_model.ratios)}", param="size")
        return {"aspect_ratio": flux_model.ratios[size]}
    if flux_model.sides is None:
        raise InvalidRequest("'size' cannot be said to this model; its own fields can be given instead", param="size")
    width, height = parse_sides(size)
    sides = flux_model.sides
    if any(not sides.minimum <= side <= sides.maximum or side % sides.step for side in (width, height)):
        raise InvalidRequest(
            f"each side of 'size' must be {sides.minimum} to {sides.maximum}, in steps of {sides.step}", param="size"
        )
    if width * height > sides.max_pixels:
        raise InvalidRequest(f"'size' must have at most {sides.max_pixels:,} pixels", param="size")
    return {"width": width, "height": height}


def _find_host(polling_url: object) -> str | None:
    try:
        url_parts = urlsplit(as_text(polling_url))
    except ValueError:
        return None
    is_usable = (
        url_parts.scheme == "https" and url_parts.netloc.endswith(DOMAIN) and _HOST_PATTERN.match(url_parts.netloc)
    )
    return url_parts.netloc if is_usable else None


def _find_error(value: Body, secrets: Secrets) -> ProviderError:
    details = as_object(value.get("details"))
    reasons = [text for text in as_list(details.get("Moderation Reasons")) if isinstance(text, str)]
    if value.get("status") in _BLOCKED_STATES:
        return build_block(write_reason(", ".join(reasons), None, secrets) if reasons else None, secrets)
    return ProviderBadResponse(f"The provider failed: {write_reason(details.get('error'), None, secrets)}")
