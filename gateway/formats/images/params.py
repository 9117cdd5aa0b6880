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

COUNTS = (
    "n", "batch_count", "batch_size", "batches", "count", "enable_sequential", "image_count", "images_count",
    "images_per_prompt", "max_images", "max_outputs", "n_images", "n_iter", "n_samples", "num_batches",
    "num_generations", "num_image", "num_images", "num_images_per_prompt", "num_of_images", "num_outputs",
    "num_outputs_per_prompt", "num_pictures", "num_results", "num_samples", "num_variations", "number_of_images",
    "number_results", "quantity", "sample_count", "samples", "sequential_image_generation",
)  # fmt: skip
"""Names for the number of images."""
SIZES = (
    "size", "aspect_ratio", "dimensions", "height", "image_height", "image_ratio", "image_resolution", "image_size",
    "image_width", "megapixels", "output_height", "output_megapixels", "output_resolution", "output_size",
    "output_width", "ratio", "resolution", "target_height", "target_size", "target_width", "upscale",
    "upscale_factor", "width",
)  # fmt: skip
"""Names for the size or the aspect ratio."""
_SHAPE = "aspect_ratio"
_OURS = (
    "model", "prompt", "n", "size", "quality", "response_format", "output_format", "stream", "partial_images",
    "frame_count",
)  # fmt: skip
"""Fields of the OpenAI API format that the gateway relies on."""
_NOTHING = (None, False, "", "false", "disabled")
"""Values that request nothing: Seedream's examples use ``disabled``."""
_APART = frozenset({"svg", "metadata"})
"""Object fields that no server merges into the body."""
_SHOWN_CHARS = 64


def _fold(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


_COUNTS = frozenset(map(_fold, COUNTS))
_SIZES = frozenset(map(_fold, SIZES))
_SPELLED = {_fold(name): name for name in _OURS}


def is_count(name: str) -> bool:
    """Return whether a field of that name sets the number of images."""
    return _fold(name) in _COUNTS


def check_fields(body: Body, *, sized: bool) -> None:
    """Raise ``InvalidRequest`` for misspelt fields, and for other fields than ``n`` that set the number of images.

    ``sized``: ``size`` is set, and no other field may set the size.
    """
    for name in body:
        spelled = _SPELLED.get(_fold(name), name)
        if spelled != name:
            shown = name[:_SHOWN_CHARS]
            raise InvalidRequest(f"Unknown field '{shown}'; did you mean '{spelled}'?", param=shown)
    for path, name in _list_fields(body):
        if _fold(name) in _COUNTS and path != "n":
            raise _refuse(path, "is not supported: set 'n' for the number of images")
    if sized:
        check_size(body)


def check_size(body: Body, *, shaped: bool = False) -> None:
    """Raise ``InvalidRequest`` for fields other than ``size`` that set the size. ``shaped``: a ratio is allowed."""
    for path, name in _list_fields(body):
        if _fold(name) in _SIZES and path != "size" and not (shaped and path == _SHAPE):
            raise _refuse(path, "is not supported: set 'size'")


def _list_fields(body: Body) -> Iterator[tuple[str, str]]:
    """Yield the path, such as ``extra_body.width``, and the name of every field whose value requests something."""
    waiting: list[tuple[str, dict[str, Any]]] = [("", body)]
    while waiting:
        place, fields = waiting.pop()
        for name, value in fields.items():
            if value in _NOTHING:
                continue
            path = f"{place}{name}"
            yield path, name
            if isinstance(value, dict) and path not in _APART:
                waiting.append((f"{path[:_SHOWN_CHARS]}.", value))


def _refuse(path: str, why: str) -> InvalidRequest:
    shown = path[:_SHOWN_CHARS]
    return InvalidRequest(f"'{shown}' {why}", param=shown)
