"""Capabilities of models. Requests are checked before anything is spent, and errors name the allowed values."""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import attrs

from gateway.domain.image import ImageForm, ImageRequest
from gateway.domain.video import VideoRequest
from gateway.frozen import frozen

Problem = tuple[str, str]
"""The field at fault and a sentence for the client."""


@frozen
class Capability:
    """The capabilities of the models that match the glob ``name``.

    A field that is None is unknown, so the provider decides.

    Attributes:
        sizes: the supported sizes of images or videos, as ``1024x1024``.
        max_n: the maximum number of images in one request to the provider.
        response_formats: the values of the provider's response format; empty if the provider takes no such field, so
            the gateway converts its answer.
        seconds: lengths of videos. The first is the default, as is the first of ``sizes``.
        voices: voices of speech, which are suggested but not checked: an account at the provider may have others. Empty
            if the model itself is a voice.
    """

    name: str
    sizes: tuple[str, ...] | None = None
    max_n: int | None = None
    response_formats: tuple[ImageForm, ...] | None = None
    edits: bool | None = None
    masks: bool | None = None
    max_sources: int | None = None
    streams: bool | None = None
    seconds: tuple[int, ...] | None = None
    references: bool | None = None
    remixes: bool | None = None
    voices: tuple[str, ...] | None = None

    def fill_from(self, fallback: "Capability | None") -> "Capability":
        """Return this capability, with unknown fields taken from ``fallback``."""
        if fallback is None:
            return self
        known_values = {name: value for name, value in attrs.asdict(self, recurse=False).items() if value is not None}
        return attrs.evolve(fallback, **known_values)

    def find_problem(self, image_request: ImageRequest, *, edit: bool, fan_out: bool) -> Problem | None:
        """Return why the images cannot be made as requested, or None. With ``fan_out``, several calls may be made."""
        if edit and self.edits is False:
            return "model", "it does not edit images"
        if image_request.masked and self.masks is False:
            return "mask", "it takes no mask"
        if self.max_sources is not None and image_request.sources > self.max_sources:
            return "image", f"it takes at most {self.max_sources} image{'s' if self.max_sources > 1 else ''}"
        if image_request.size is not None and self.sizes is not None and image_request.size not in self.sizes:
            return "size", f"'size' must be one of {', '.join(self.sizes) or 'auto'}"
        if self.max_n is not None and image_request.count > self.max_n and not fan_out:
            return "n", f"'n' must be 1{f' to {self.max_n}' if self.max_n > 1 else ''}"
        return None

    def find_video_problem(self, video_request: VideoRequest) -> Problem | None:
        """Return why the video cannot be made as requested, or None if it can."""
        if video_request.remix_of is not None:
            return ("video_id", "it does not remix videos") if self.remixes is False else None
        if video_request.reference is not None and self.references is False:
            return "input_reference", "it takes no first image"
        if video_request.size is not None and self.sizes is not None and video_request.size not in self.sizes:
            return "size", f"'size' must be one of {', '.join(self.sizes)}" if self.sizes else "it takes no 'size'"
        if video_request.seconds is not None and self.seconds is not None and video_request.seconds not in self.seconds:
            return "seconds", f"'seconds' must be one of {', '.join(map(str, self.seconds))}"
        return None

    def fill(self, video_request: VideoRequest) -> VideoRequest:
        """Return the request with the model's defaults filled in, as far as they are known."""
        if video_request.remix_of is not None:
            return video_request
        seconds = video_request.seconds or (self.seconds[0] if self.seconds else None)
        return attrs.evolve(
            video_request, seconds=seconds, size=video_request.size or (self.sizes[0] if self.sizes else None)
        )


UNKNOWN_CAPABILITY = Capability("*")


def find_capability(entries: Sequence[Capability], *names: str) -> Capability | None:
    """Return the entry of a model by any of its names: an exact match, else the longest glob, else None."""
    for name in names:
        for entry in entries:
            if entry.name == name:
                return entry
    matching_entries = [entry for name in names for entry in entries if fnmatchcase(name, entry.name)]
    return max(matching_entries, key=lambda entry: len(entry.name), default=None)


_FIELD_ORDER = ("model", "mask", "image", "video_id", "input_reference", "size", "n", "seconds")
"""The fields at fault, in the order in which they are checked."""


def find_shared_problem(
    refusals: Iterable[tuple[Capability, Problem]], find_problem: Callable[[Capability], Problem | None]
) -> Problem | None:
    """Return the problem of a request that all capabilities refuse; None if ``refusals`` is empty.

    The problem is that of the capabilities that come nearest, and its text lists everything that at least one of them
    allows. ``find_problem`` returns the problem of one capability.
    """
    capabilities_by_field: dict[str, list[Capability]] = {}
    for capability, (field, _) in refusals:
        capabilities_by_field.setdefault(field, []).append(capability)
    if not capabilities_by_field:
        return None
    nearest_capabilities = capabilities_by_field[max(capabilities_by_field, key=_FIELD_ORDER.index)]
    return find_problem(build_union(nearest_capabilities))


def build_union(capabilities: Sequence[Capability]) -> Capability:
    """Return the union of the capabilities. A field that is unknown in one of them is unknown."""
    field_values = [attrs.asdict(capability, recurse=False) for capability in capabilities]
    return Capability(**{name: _unite_values([values[name] for values in field_values]) for name in field_values[0]})


def _unite_values(values: Sequence[Any]) -> Any:
    if None in values:
        return None
    if isinstance(values[0], tuple):
        return tuple(dict.fromkeys(item for value in values for item in value))
    return values[0] if isinstance(values[0], str) else max(values)
