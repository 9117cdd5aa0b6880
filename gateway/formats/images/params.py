"""Fields of an image request that set the number or the size under other names than ``n`` and ``size``.

The gateway checks, reserves and charges only by ``n`` and ``size``. A server that supports another name for them uses
that field as well or instead: ``batch_size`` and ``image_size`` (docs.siliconflow.com, "Image Generation"),
``width``, ``height``, ``resolution`` and ``aspect_ratio`` (docs.together.ai/docs/inference/images/parameters,
docs.x.ai, "Image Generation"), ``num_images`` and ``image_size`` (fal.ai), ``num_outputs``, ``batches`` and
``megapixels`` (models at replicate.com), ``max_images`` and ``sequential_image_generation`` (Seedream),
``enable_sequential`` (Wan 2.7), ``num_images_per_prompt`` (diffusers), ``n_iter`` (AUTOMATIC1111), ``sampleCount``
(Imagen), ``numberResults`` (Runware). Such fields are rejected by name: if they were dropped, the client would miss
their effect, and if they were sent, that effect would not be charged.

Names are compared as by the most tolerant server: in any letter case (Go's encoding/json reads ``N`` as ``n``), with or
without separators between words, and in nested objects too, which some servers merge into the body (``extra_body``).
"""

from collections.abc import Iterator
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.wire.fields import Body

COUNT_FIELDS = (
    "n", "batch_count", "batch_size", "batches", "count", "enable_sequential", "image_count", "images_count",
    "images_per_prompt", "max_images", "max_outputs", "n_images", "n_iter", "n_samples", "num_batches",
    "num_generations", "num_image", "num_images", "num_images_per_prompt", "num_of_images", "num_outputs",
    "num_outputs_per_prompt", "num_pictures", "num_results", "num_samples", "num_variations", "number_of_images",
    "number_results", "quantity", "sample_count", "samples", "sequential_image_generation",
)  # fmt: skip
"""Names for the number of images."""
SIZE_FIELDS = (
    "size", "aspect_ratio", "dimensions", "height", "image_height", "image_ratio", "image_resolution", "image_size",
    "image_width", "megapixels", "output_height", "output_megapixels", "output_resolution", "output_size",
    "output_width", "ratio", "resolution", "target_height", "target_size", "target_width", "upscale",
    "upscale_factor", "width",
)  # fmt: skip
"""Names for the size or the aspect ratio."""
_ASPECT_RATIO_FIELD = "aspect_ratio"
_KNOWN_FIELDS = (
    "model", "prompt", "n", "size", "quality", "response_format", "output_format", "stream", "partial_images",
    "frame_count",
)  # fmt: skip
"""Fields of the OpenAI API format that the gateway relies on."""
_EMPTY_VALUES = (None, False, "", "false", "disabled")
"""Values that request nothing: Seedream's examples use ``disabled``."""
_SKIPPED_OBJECTS = frozenset({"svg", "metadata"})
"""Object fields that no server merges into the body."""
_MAX_EXCERPT_CHARS = 64


def _fold_field_name(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


_FOLDED_COUNT_FIELDS = frozenset(map(_fold_field_name, COUNT_FIELDS))
_FOLDED_SIZE_FIELDS = frozenset(map(_fold_field_name, SIZE_FIELDS))
_KNOWN_SPELLINGS = {_fold_field_name(name): name for name in _KNOWN_FIELDS}


def is_count(name: str) -> bool:
    """Return whether a field of that name sets the number of images."""
    return _fold_field_name(name) in _FOLDED_COUNT_FIELDS


def check_fields(body: Body, *, has_size: bool) -> None:
    """Raise ``InvalidRequest`` for misspelt fields, and for other fields than ``n`` that set the number of images.

    If ``has_size`` (the client set ``size``), the error is also raised for other fields that set the size.
    """
    for name in body:
        known_name = _KNOWN_SPELLINGS.get(_fold_field_name(name), name)
        if known_name != name:
            excerpt = name[:_MAX_EXCERPT_CHARS]
            raise InvalidRequest(f"Unknown field '{excerpt}'; did you mean '{known_name}'?", param=excerpt)
    for path, name in _list_fields(body):
        if _fold_field_name(name) in _FOLDED_COUNT_FIELDS and path != "n":
            raise _make_param_error(path, "is not supported: set 'n' for the number of images")
    if has_size:
        check_size(body)


def check_size(body: Body, *, needs_shape: bool = False) -> None:
    """Raise ``InvalidRequest`` for a field other than ``size`` that sets the size.

    ``needs_shape`` allows ``aspect_ratio``, for channels whose models take a ratio instead of a size.
    """
    for path, name in _list_fields(body):
        if (
            _fold_field_name(name) in _FOLDED_SIZE_FIELDS
            and path != "size"
            and not (needs_shape and path == _ASPECT_RATIO_FIELD)
        ):
            raise _make_param_error(path, "is not supported: set 'size'")


def _list_fields(body: Body) -> Iterator[tuple[str, str]]:
    """Yield the path, such as ``extra_body.width``, and the name of every field whose value requests something."""
    open_objects: list[tuple[str, dict[str, Any]]] = [("", body)]
    while open_objects:
        field_path, fields = open_objects.pop()
        for name, value in fields.items():
            if value in _EMPTY_VALUES:
                continue
            path = f"{field_path}{name}"
            yield path, name
            if isinstance(value, dict) and path not in _SKIPPED_OBJECTS:
                open_objects.append((f"{path[:_MAX_EXCERPT_CHARS]}.", value))


def _make_param_error(path: str, reason: str) -> InvalidRequest:
    excerpt = path[:_MAX_EXCERPT_CHARS]
    return InvalidRequest(f"'{excerpt}' {reason}", param=excerpt)
