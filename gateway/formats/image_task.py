"""Pictures that are made as a task: its id, when it is asked after, and what answers about it may hold.

A vendor's tasks stand at one place: ``GET PLACE/ID`` asks after one, ``POST PLACE/ID/cancel`` cancels it.
"""

import re
from collections.abc import Sequence
from typing import Any

from gateway.domain.image import Image, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import MAX_IMAGES, Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.image_backend import ProviderCall
from gateway.formats.image_data import parse_url
from gateway.formats.openai.chat import parse_any_object
from gateway.formats.openai.errors import Secrets, mask

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_GROWTH = 1.5
LONGEST_WAIT_S = 3.0
MOST_MUMBLED = 3
"""Answers in a row that are none, while a task is asked after: a page of a proxy's says nothing of the task."""
_SHOWN_CHARS = 64
_FORM_FLAGS = {"true": True, "false": False}
_FORM_NUMBER = re.compile(r"-?[0-9]{1,15}(?P<rest>\.[0-9]{1,15})?\Z", re.ASCII)
_UNSAYABLE = ("svg", "frame_count", "frame_duration_ms")
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})\Z", re.ASCII)


class ImageTask:
    """One task, from before it has an id to its end.

    Args:
        place: the path of the vendor's tasks.
        first_wait_s: before it is asked after for the first time; every later wait is longer, up to
            ``LONGEST_WAIT_S``.
    """

    __slots__ = ("_id", "_mumbled", "_place", "_wait_s", "ended")

    def __init__(self, place: str, first_wait_s: float) -> None:
        self._place = place
        self._wait_s = first_wait_s
        self._id: str | None = None
        self._mumbled = 0
        self.ended = False

    def parse_object(self, raw: bytes) -> dict[str, Any] | None:
        """An answer's object; None where a task that is known was asked after, and what came is none.

        Raises ``ProviderBadResponse`` where it is none and there is no task, or it is the last of too many.
        """
        try:
            value = parse_any_object(raw)
        except ProviderBadResponse:
            self._mumbled += 1
            if self._id is None or self._mumbled > MOST_MUMBLED:
                raise
            return None
        self._mumbled = 0
        return value

    def follow(self, found: object) -> ProviderCall:
        """It is under way: how to ask after it. Its id is the one that was given first, whatever is said later.

        Raises ``ProviderBadResponse`` where that is none that may stand in a path.
        """
        if self._id is None:
            if not isinstance(found, str) or not _ID.match(found):
                raise ProviderBadResponse("The provider gave its task no usable id")
            self._id = found
        return self.ask_after()

    def ask_after(self) -> ProviderCall:
        """How to ask after it, a little later than the last time. Only of a task that is known."""
        wait_s = self._wait_s
        self._wait_s = min(wait_s * _GROWTH, LONGEST_WAIT_S)
        return ProviderCall(method="GET", path=f"{self._place}/{self._id}", wait_s=wait_s, passing=True)

    def abandon(self) -> ProviderCall | None:
        """How to cancel it; None where it has ended, or was never known."""
        if self._id is None or self.ended:
            return None
        return ProviderCall(path=f"{self._place}/{self._id}/cancel", passing=True)


def parse_state(state: object, secrets: Secrets) -> str:
    """The word for a state that is no good news, as it may be shown."""
    return mask(state, secrets)[:_SHOWN_CHARS] if isinstance(state, str) and state else "in no state that is known"


def parse_image(url: object) -> Image:
    """A picture by its address, or ``data:`` URL. Raises ``ProviderBadResponse`` where it is none."""
    if not isinstance(url, str):
        raise ProviderBadResponse("The provider's answer has a picture without an address")
    return parse_url(url).image


def build_images(items: Sequence[Image], wanted: int) -> Images:
    """The pictures of a task that succeeded. What was made is charged, also where it is more than was wanted.

    Raises ``ProviderBadResponse`` where it is fewer.
    """
    if len(items) < wanted:
        raise ProviderBadResponse(f"The provider made {len(items)} of {wanted} pictures")
    return Images(tuple(items[:wanted]), Usage(source="upstream", images=min(len(items), MAX_IMAGES)))


def parse_sides(size: str) -> tuple[int, int]:
    """Width and height of ``1024x1024``. Raises ``InvalidRequest``."""
    found = _SIZE.match(size)
    if found is None:
        raise InvalidRequest("'size' must be 'auto', or width and height as in 1024x1024", param="size")
    return int(found[1]), int(found[2])


def parse_field(value: object) -> object:
    """A field of a form that nobody has a kind for: a text that reads as a flag or a number is one."""
    if not isinstance(value, str):
        return value
    if value in _FORM_FLAGS:
        return _FORM_FLAGS[value]
    found = _FORM_NUMBER.match(value)
    if found is None:
        return value
    return float(value) if found["rest"] else int(value)


def check_expressible(call: InferenceRequest, *, takes: bool, needs: bool) -> None:
    """Raise ``InvalidRequest`` for pictures that a model does not take, or for want of those it cannot do without.

    And for what none of these models has words for: masks, transparency, more than one frame. Shades of how are left
    to the model.
    """
    sources = call.image.sources if call.image else 0
    if sources and not takes:
        raise InvalidRequest("The model does not edit images", param="model")
    if needs and not sources:
        raise InvalidRequest("The model only edits images", param="model")
    stray = next((file.field for file in call.files if file.field != "image"), None)
    if stray is not None:
        raise InvalidRequest(f"The model takes no '{stray}'", param=stray)
    if call.body.get("background") == "transparent":
        raise InvalidRequest("'background' must be opaque or auto", param="background")
    unsayable = next((name for name in _UNSAYABLE if call.body.get(name) is not None), None)
    if unsayable is not None:
        raise InvalidRequest(f"The model takes no '{unsayable}'", param=unsayable)


def check_format(wanted: object, formats: Sequence[str]) -> None:
    """Raise ``InvalidRequest`` where ``output_format`` is none of ``formats``."""
    if wanted is not None and wanted not in formats:
        allowed = f"one of {', '.join(formats)}" if formats else "left to this model"
        raise InvalidRequest(f"'output_format' must be {allowed}", param="output_format")
