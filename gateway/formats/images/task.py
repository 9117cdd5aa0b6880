"""Image tasks: task ids and poll intervals. Also helpers with which all vendors' requests and answers are checked.

All tasks of a vendor share one path: ``GET PATH/ID`` polls a task, and with some vendors ``POST PATH/ID/cancel``
cancels it.
"""

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from gateway.domain.image import Image, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import MAX_IMAGES, Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_any_object
from gateway.formats.errors.openai import Secrets, mask
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.images.image_data import parse_url
from gateway.formats.images.params import is_count

_TASK_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_WAIT_GROWTH = 1.5
MAX_WAIT_S = 3.0
MAX_INVALID_POLLS = 3
"""Tolerated consecutive invalid poll answers per task: a proxy's error page says nothing about the task."""
_MAX_EXCERPT_CHARS = 64
_FORM_FLAGS = {"true": True, "false": False}
_NUMBER_PATTERN = re.compile(r"-?[0-9]{1,15}(?P<rest>\.[0-9]{1,15})?\Z", re.ASCII)
_UNSUPPORTED_FIELDS = ("svg", "frame_count", "frame_duration_ms")
_SIZE_PATTERN = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})\Z", re.ASCII)


class ImageTask:
    """The state of one task at a vendor.

    Args:
        base_path: the path of the vendor's tasks, which ``separator`` and the task's id follow.
        first_wait_s: seconds before the first poll; later waits grow up to ``MAX_WAIT_S``.

    Attributes:
        host: the vendor's server that has the task; None for the channel's own server.
        ended: whether the task has ended, and cannot be cancelled any more; set by the backend.
    """

    __slots__ = ("_id", "_invalid_poll_count", "_path_prefix", "_wait_s", "ended", "host")

    def __init__(self, base_path: str, first_wait_s: float, *, separator: str = "/") -> None:
        self._path_prefix = f"{base_path}{separator}"
        self.host: str | None = None
        self._wait_s = first_wait_s
        self._id: str | None = None
        self._invalid_poll_count = 0
        self.ended = False

    def parse_object(self, raw: bytes) -> dict[str, Any] | None:
        """Return an answer's JSON object; None if the answer is invalid but the task can be polled again.

        Raises ``ProviderBadResponse`` for an invalid answer if the task has no id yet, or if more than
        ``MAX_INVALID_POLLS`` answers in a row were invalid.
        """
        try:
            value = parse_any_object(raw)
        except ProviderBadResponse:
            self._invalid_poll_count += 1
            if self._id is None or self._invalid_poll_count > MAX_INVALID_POLLS:
                raise
            return None
        self._invalid_poll_count = 0
        return value

    def follow(self, task_id: object) -> ProviderRequest:
        """Return the next poll request. The first call sets the task's id to ``task_id``.

        Raises ``ProviderBadResponse`` for an invalid id.
        """
        if self._id is None:
            if not isinstance(task_id, str) or not _TASK_ID_PATTERN.match(task_id):
                raise ProviderBadResponse("The provider gave its task no usable id")
            self._id = task_id
        return self.build_poll_request()

    def build_poll_request(self) -> ProviderRequest:
        """Return the next poll request for a task with an id. The wait grows with each call."""
        wait_s = self._wait_s
        self._wait_s = min(wait_s * _WAIT_GROWTH, MAX_WAIT_S)
        return ProviderRequest(
            method="GET", path=f"{self._path_prefix}{self._id}", wait_s=wait_s, repeatable=True, host=self.host
        )

    def build_cancel_request(self) -> ProviderRequest | None:
        if self._id is None or self.ended:
            return None
        return ProviderRequest(path=f"{self._path_prefix}{self._id}/cancel", repeatable=True)


def parse_state(state: object, secrets: Secrets) -> str:
    """Return the masked name of an unsuccessful state, for an error message."""
    return (
        mask(state, secrets)[:_MAX_EXCERPT_CHARS] if isinstance(state, str) and state else "in no state that is known"
    )


def parse_image(url: object) -> Image:
    """Parse an image given as an address or a ``data:`` URL. Raises ``ProviderBadResponse``."""
    if not isinstance(url, str):
        raise ProviderBadResponse("The provider's answer has an image without an address")
    return parse_url(url).image


def build_images(items: Sequence[Image], count: int) -> Images:
    """Return the first ``count`` images, with a usage of all ``items``.

    Raises ``ProviderBadResponse`` if there are fewer than ``count``.
    """
    if len(items) < count:
        raise ProviderBadResponse(f"The provider made {len(items)} of {count} images")
    return Images(tuple(items[:count]), Usage(source="upstream", images=min(len(items), MAX_IMAGES)))


def parse_sides(size: str) -> tuple[int, int]:
    """Parse ``1024x1024`` into width and height. Raises ``InvalidRequest``."""
    match = _SIZE_PATTERN.match(size)
    if match is None:
        raise InvalidRequest("'size' must be 'auto', or width and height as in 1024x1024", param="size")
    return int(match[1]), int(match[2])


def parse_field(value: object) -> object:
    """Convert a form field of unknown type: text that looks like a boolean or a number becomes that type."""
    if not isinstance(value, str):
        return value
    if value in _FORM_FLAGS:
        return _FORM_FLAGS[value]
    match = _NUMBER_PATTERN.match(value)
    if match is None:
        return value
    return float(value) if match["rest"] else int(value)


def copy_fields(body: Mapping[str, Any], gateway_fields: AbstractSet[str]) -> dict[str, Any]:
    """Copy the client's fields for the vendor, except those in ``gateway_fields``, image counts and null values."""
    return {
        name: parse_field(value)
        for name, value in body.items()
        if name not in gateway_fields and not is_count(name) and value is not None
    }


def check_expressible(inference: InferenceRequest, *, takes_image: bool, needs_image: bool) -> None:
    """Raise ``InvalidRequest`` for options that the model does not support.

    A source image is rejected unless ``takes_image``, and required if ``needs_image``. Masks, transparency, SVG and
    several frames are always rejected.
    """
    source_count = inference.image.sources if inference.image else 0
    if source_count and not takes_image:
        raise InvalidRequest("The model does not edit images", param="model")
    if needs_image and not source_count:
        raise InvalidRequest("The model only edits images", param="model")
    check_plain_image(inference)


def check_plain_image(inference: InferenceRequest) -> None:
    """Raise ``InvalidRequest`` for masks, transparency, SVG and several frames."""
    file_field = next((file.field for file in inference.files if file.field != "image"), None)
    if file_field is not None:
        raise InvalidRequest(f"The model takes no '{file_field}'", param=file_field)
    if inference.body.get("background") == "transparent":
        raise InvalidRequest("'background' must be opaque or auto", param="background")
    unsupported_field = next((name for name in _UNSUPPORTED_FIELDS if inference.body.get(name) is not None), None)
    if unsupported_field is not None:
        raise InvalidRequest(f"The model takes no '{unsupported_field}'", param=unsupported_field)


def check_format(output_format: object, formats: Sequence[str]) -> None:
    """Raise ``InvalidRequest`` unless ``output_format`` is None or in ``formats``."""
    if output_format is not None and output_format not in formats:
        rule = f"one of {', '.join(formats)}" if formats else "left to this model"
        raise InvalidRequest(f"'output_format' must be {rule}", param="output_format")
