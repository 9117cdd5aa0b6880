"""Images of models at Replicate: predictions, polled until they end.

Predictions: replicate.com/docs/reference/http; .../docs/topics/predictions/lifecycle (states), .../create-a-prediction.
``Prefer: wait`` is not sent: while the request is held open, the prediction has no known id and could not be cancelled.
The addresses that an answer gives for polling and cancelling are not used.

Each model has its own fields: replicate.com/OWNER/NAME/versions/…/api of those in ``MODELS``; the first FLUX models'
use of an aspect ratio is in github.com/replicate/cog-flux, predict.py. Of any other model only the prompt is known.
Clients set a model's own fields directly; those of the size, too, unless ``size`` is given or the operator lists the
sizes.
Masks are not supported: these models use black and white, the OpenAI API format uses transparency.
"""

import re
from collections.abc import Mapping
from typing import Any

import attrs

from gateway.domain.capability import Capability
from gateway.domain.image import ImageRequest, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import InvalidRequest, ProviderBadResponse, ProviderError
from gateway.formats.errors.content_filter import build_block, is_block
from gateway.formats.errors.openai import Secrets, write_reason
from gateway.formats.images.aspect_ratios import FIRST_GENERATION_SIZES, USUAL_SIZES, parse_shape
from gateway.formats.images.backend import ImageBackend, ProviderRequest
from gateway.formats.images.params import check_size, is_count
from gateway.formats.images.task import (
    ImageTask,
    build_images,
    check_expressible,
    check_format,
    parse_field,
    parse_image,
    parse_sides,
    parse_state,
)
from gateway.formats.wire.request_body import Body, build_data_url
from gateway.frozen import frozen

PREDICTIONS_PATH = "/predictions"
_FIRST_WAIT_S = 0.5
_OPEN_STATES = ("starting", "processing")
_FINAL_STATES = ("succeeded", "failed", "canceled", "aborted")
_MODEL_PATTERN = re.compile(
    r"(?P<owned>[A-Za-z0-9][A-Za-z0-9._-]{0,127}/[A-Za-z0-9][A-Za-z0-9._-]{0,127})(?::(?P<version>[a-f0-9]{1,64}))?\Z",
    re.ASCII,
)
_GATEWAY_FIELDS = frozenset(
    {
        "model", "prompt", "n", "size", "response_format", "user", "quality", "style", "background", "moderation",
        "output_format", "output_compression", "stream", "partial_images", "safety_identifier", "input_fidelity",
        "complexity", "frame_count", "frame_duration_ms", "svg", "image", "images", "mask", "markup",
        "disable_safety_checker",
    },
)  # fmt: skip
"""Fields of the OpenAI API format, beside those for the number of images; and the safety filter, which only the owner
of the account may change.
"""


@frozen
class ReplicateModel:
    """The options of a model and their field names.

    Attributes:
        sizes: the model's fields for each size that it accepts; None if the sizes are free or unknown.
        sides: the shortest and longest side of a model with free sizes; sides are multiples of ``SIDE_STEP``.
        count_field: the field for the number of images; None if the model makes only one.
        max_images: maximum number of images in one request.
        source_field: the field for input images; None if not accepted.
        max_sources: maximum number of input images; None if not documented. The field is a list unless this is 1.
        formats: output formats; empty if not documented.
    """

    sizes: Mapping[str, Mapping[str, str]] | None = None
    sides: tuple[int, int] | None = None
    count_field: str | None = None
    max_images: int = 1
    source_field: str | None = None
    max_sources: int | None = 1
    needs_image: bool = False
    formats: tuple[str, ...] = ()


SIDE_STEP = 32
_ALL_FORMATS = ("webp", "jpeg", "png")


def _map_ratios(ratios: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
    return {size: {"aspect_ratio": ratio} for size, ratio in ratios.items()}


_FLUX_RATIOS = {
    "1024x1024": "1:1", "1344x768": "16:9", "1536x640": "21:9", "1216x832": "3:2", "832x1216": "2:3", "896x1088": "4:5",
    "1088x896": "5:4", "896x1152": "3:4", "1152x896": "4:3", "768x1344": "9:16", "640x1536": "9:21",
}  # fmt: skip
_RATIOS = {
    "1024x1024": "1:1", "1536x1024": "3:2", "1024x1536": "2:3", "1024x768": "4:3", "768x1024": "3:4",
    "1280x720": "16:9", "720x1280": "9:16", "1280x1024": "5:4", "1024x1280": "4:5",
}  # fmt: skip
"""Sizes that represent an aspect ratio, for models that accept only ratios and whose pixels are not documented."""
_RATIO_SIZES = _map_ratios(_RATIOS)
_IMAGEN_RATIOS = ("1:1", "9:16", "16:9", "3:4", "4:3")
_IMAGEN_SIZES = _map_ratios({size: ratio for size, ratio in _RATIOS.items() if ratio in _IMAGEN_RATIOS})
_BANANA_SIZES = _map_ratios({size: parse_shape(size, None).ratio for size in FIRST_GENERATION_SIZES})
_PRO_SIZES: Mapping[str, Mapping[str, str]] = {
    size: {"aspect_ratio": shape.ratio, "resolution": shape.tier}
    for size, shape in ((size, parse_shape(size, None)) for size in USUAL_SIZES)
}
_IDEOGRAM_SIZES = (  # noqa: SIM905 - the format of their documentation
    "512x1536 576x1408 576x1472 576x1536 640x1344 640x1408 640x1472 640x1536 704x1152 704x1216 704x1280 704x1344 "
    "704x1408 704x1472 736x1312 768x1088 768x1216 768x1280 768x1344 800x1280 832x960 832x1024 832x1088 832x1152 "
    "832x1216 832x1248 864x1152 896x960 896x1024 896x1088 896x1120 896x1152 960x832 960x896 960x1024 960x1088 "
    "1024x832 1024x896 1024x960 1024x1024 1088x768 1088x832 1088x896 1088x960 1120x896 1152x704 1152x832 1152x864 "
    "1152x896 1216x704 1216x768 1216x832 1248x832 1280x704 1280x768 1280x800 1312x736 1344x640 1344x704 1344x768 "
    "1408x576 1408x640 1408x704 1472x576 1472x640 1472x704 1536x512 1536x576 1536x640"
).split()
_FLUX = ReplicateModel(_map_ratios(_FLUX_RATIOS), count_field="num_outputs", max_images=4, formats=_ALL_FORMATS)
_KONTEXT = ReplicateModel(_RATIO_SIZES, source_field="input_image")
_IMAGEN = ReplicateModel(_IMAGEN_SIZES)
_BANANA = ReplicateModel(_BANANA_SIZES, source_field="image_input", max_sources=None)
_IDEOGRAM_MODEL = ReplicateModel({size: {"resolution": size} for size in _IDEOGRAM_SIZES})
_STABLE_DIFFUSION_MODEL = ReplicateModel(_RATIO_SIZES, formats=_ALL_FORMATS)
_UNKNOWN_MODEL = ReplicateModel()
MODELS: Mapping[str, ReplicateModel] = {
    "black-forest-labs/flux-schnell": _FLUX,
    "black-forest-labs/flux-dev": _FLUX,
    "black-forest-labs/flux-1.1-pro": ReplicateModel(sides=(256, 1440), formats=_ALL_FORMATS),
    "black-forest-labs/flux-1.1-pro-ultra": ReplicateModel(_RATIO_SIZES, formats=("jpeg", "png")),
    "black-forest-labs/flux-kontext-pro": _KONTEXT,
    "black-forest-labs/flux-kontext-max": _KONTEXT,
    "black-forest-labs/flux-kontext-dev": _KONTEXT,
    "black-forest-labs/flux-fill-pro": ReplicateModel({}, source_field="image", needs_image=True),
    "black-forest-labs/flux-2-dev": ReplicateModel(sides=(256, 1440), source_field="input_images", max_sources=4),
    "black-forest-labs/flux-2-flex": ReplicateModel(sides=(256, 2048), source_field="input_images", max_sources=10),
    "google/imagen-4": _IMAGEN,
    "google/imagen-4-fast": _IMAGEN,
    "google/imagen-4-ultra": _IMAGEN,
    "google/nano-banana": _BANANA,
    "google/gemini-2.5-flash-image": _BANANA,
    "google/nano-banana-pro": attrs.evolve(_BANANA, sizes=_PRO_SIZES, max_sources=14),
    "ideogram-ai/ideogram-v3-turbo": _IDEOGRAM_MODEL,
    "ideogram-ai/ideogram-v3-balanced": _IDEOGRAM_MODEL,
    "ideogram-ai/ideogram-v3-quality": _IDEOGRAM_MODEL,
    "stability-ai/stable-diffusion-3.5-large": _STABLE_DIFFUSION_MODEL,
    "stability-ai/stable-diffusion-3.5-large-turbo": _STABLE_DIFFUSION_MODEL,
    "stability-ai/stable-diffusion-3.5-medium": _STABLE_DIFFUSION_MODEL,
}


class ReplicateImageBackend(ImageBackend):
    """Images from one Replicate prediction."""

    __slots__ = ("_count", "_has_size_list", "_image_request", "_inference", "_model", "_replicate_model", "_task")

    def __init__(self, inference: InferenceRequest, model: str, _boundary_mark: str, capability: Capability) -> None:
        self._inference = inference
        self._image_request = inference.image or ImageRequest("")
        self._model = model
        self._replicate_model = MODELS.get(model.partition(":")[0], _UNKNOWN_MODEL)
        self._has_size_list = capability.sizes is not None and capability.sizes != tuple(
            self._replicate_model.sizes or ()
        )
        self._task = ImageTask(PREDICTIONS_PATH, _FIRST_WAIT_S)
        self._count = 1

    def begin(self, count: int) -> ProviderRequest:
        replicate_model = self._replicate_model
        check_expressible(
            self._inference,
            takes_image=replicate_model.source_field is not None,
            needs_image=replicate_model.needs_image,
        )
        match = _MODEL_PATTERN.match(self._model)
        if match is None:
            raise InvalidRequest("The provider calls its models owner/name, or owner/name:version", param="model")
        if self._has_size_list or self._image_request.size is not None:
            check_size(self._inference.body)
        self._count = count
        body: Body = {"input": self._build_input()}
        if match["version"] is None:
            return ProviderRequest(body, path=f"/models/{match['owned']}{PREDICTIONS_PATH}", starts_task=True)
        return ProviderRequest({"version": match["version"], **body}, path=PREDICTIONS_PATH, starts_task=True)

    def _build_input(self) -> Body:
        replicate_model, image_request, body = self._replicate_model, self._image_request, self._inference.body
        excluded_names = _GATEWAY_FIELDS | {replicate_model.source_field}
        fields: Body = {
            name: parse_field(value)
            for name, value in body.items()
            if name not in excluded_names and not is_count(name) and value is not None
        }
        fields["prompt"] = image_request.prompt
        if image_request.size is not None:
            fields |= _build_size(replicate_model, image_request.size)
        if replicate_model.count_field is not None:
            fields[replicate_model.count_field] = self._count
        elif self._count > 1:
            raise InvalidRequest("'n' must be 1", param="n")
        images = [build_data_url(file) for file in self._inference.files if file.field == "image"]
        if replicate_model.source_field is not None and images:
            fields[replicate_model.source_field] = images[0] if replicate_model.max_sources == 1 else images
        return fields | _build_format(replicate_model, body.get("output_format"))

    def read(self, raw: bytes, secrets: Secrets) -> Images | ProviderRequest:
        value = self._task.parse_object(raw)
        if value is None:
            return self._task.build_poll_request()
        state = value.get("status")
        self._task.ended = state in _FINAL_STATES
        if state in _OPEN_STATES:
            return self._task.follow(value.get("id"))
        if state == "failed":
            raise _find_error(value.get("error"), secrets)
        if state != "succeeded":
            raise ProviderBadResponse(f"The provider's prediction is {parse_state(state, secrets)}")
        output = value.get("output")
        addresses = output if isinstance(output, list) else [output]
        return build_images([parse_image(address) for address in addresses if address is not None], self._count)

    def build_cancel_request(self) -> ProviderRequest | None:
        return self._task.build_cancel_request()


def _build_size(replicate_model: ReplicateModel, size: str) -> dict[str, Any]:
    if replicate_model.sizes is not None and size in replicate_model.sizes:
        return dict(replicate_model.sizes[size])
    if replicate_model.sides is not None:
        minimum, maximum = replicate_model.sides
        width, height = parse_sides(size)
        if all(minimum <= side <= maximum and side % SIDE_STEP == 0 for side in (width, height)):
            return {"aspect_ratio": "custom", "width": width, "height": height}
        raise InvalidRequest(
            f"each side of 'size' must be {minimum} to {maximum}, in steps of {SIDE_STEP}", param="size"
        )
    if replicate_model.sizes is None:
        raise InvalidRequest("'size' cannot be said to this model; its own fields can be given instead", param="size")
    raise InvalidRequest(f"'size' must be one of {', '.join(replicate_model.sizes) or 'auto'}", param="size")


def _build_format(replicate_model: ReplicateModel, output_format: object) -> dict[str, Any]:
    check_format(output_format, replicate_model.formats)
    if output_format is None:
        return {}
    return {"output_format": "jpg" if output_format == "jpeg" else output_format}


def _find_error(error: object, secrets: Secrets) -> ProviderError:
    # The wording of the reason depends on the model.
    message = write_reason(error, None, secrets)
    if is_block(None, message):
        return build_block(message, secrets)
    return ProviderBadResponse(f"The provider failed: {message}")
