"""What a model can be asked for: looked at before anything is spent, so that a caller hears at once what is allowed."""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import attrs

from gateway.domain.image import ImageRequest, PictureForm
from gateway.domain.video import VideoRequest

Problem = tuple[str, str]
"""The field at fault and a sentence for the caller."""


@attrs.frozen
class Capability:
    """What the models that ``name`` (a glob) stands for can do. None: nobody knows, and the provider decides.

    Attributes:
        sizes: of pictures or videos, as ``1024x1024``.
        max_n: pictures in one request to the provider.
        response_formats: what the provider can be asked to answer with; empty: it takes no such field, and answers as
            it always does. The gateway makes the other form itself.
        edits: whether pictures can be edited.
        masks: whether an edit may have a mask.
        max_sources: pictures that an edit may start from.
        streams: whether it streams pictures while it paints.
        seconds: lengths of videos; the first is that of whoever names none, as the first of ``sizes`` is the size.
        references: whether a video can start from a picture.
        remixes: whether a video can be made anew by another prompt.
    """

    name: str
    sizes: tuple[str, ...] | None = None
    max_n: int | None = None
    response_formats: tuple[PictureForm, ...] | None = None
    edits: bool | None = None
    masks: bool | None = None
    max_sources: int | None = None
    streams: bool | None = None
    seconds: tuple[int, ...] | None = None
    references: bool | None = None
    remixes: bool | None = None

    def over(self, other: "Capability | None") -> "Capability":
        """This, and where it says nothing what ``other`` says."""
        if other is None:
            return self
        told = {name: value for name, value in attrs.asdict(self, recurse=False).items() if value is not None}
        return attrs.evolve(other, **told)

    def find_problem(self, ask: ImageRequest, *, edit: bool, fan_out: bool) -> Problem | None:
        """Why pictures cannot be had as they are asked for, or None. ``fan_out``: n is no limit, several calls are."""
        if edit and self.edits is False:
            return "model", "it does not edit images"
        if ask.masked and self.masks is False:
            return "mask", "it takes no mask"
        if self.max_sources is not None and ask.sources > self.max_sources:
            return "image", f"it takes at most {self.max_sources} image{'s' if self.max_sources > 1 else ''}"
        if ask.size is not None and self.sizes is not None and ask.size not in self.sizes:
            return "size", f"'size' must be one of {', '.join(self.sizes) or 'auto'}"
        if self.max_n is not None and ask.count > self.max_n and not fan_out:
            return "n", f"'n' must be 1{f' to {self.max_n}' if self.max_n > 1 else ''}"
        return None

    def find_video_problem(self, ask: VideoRequest) -> Problem | None:
        """Why a video cannot be had as it is asked for, or None."""
        if ask.remix_of is not None:
            return ("video_id", "it does not remix videos") if self.remixes is False else None
        if ask.reference is not None and self.references is False:
            return "input_reference", "it takes no picture to start from"
        if ask.size is not None and self.sizes is not None and ask.size not in self.sizes:
            return "size", f"'size' must be one of {', '.join(self.sizes)}" if self.sizes else "it takes no 'size'"
        if ask.seconds is not None and self.seconds is not None and ask.seconds not in self.seconds:
            return "seconds", f"'seconds' must be one of {', '.join(map(str, self.seconds))}"
        return None

    def fill(self, ask: VideoRequest) -> VideoRequest:
        """What is asked for, with what the model makes where it is left open, as far as that is known."""
        if ask.remix_of is not None:
            return ask
        seconds = ask.seconds or (self.seconds[0] if self.seconds else None)
        return attrs.evolve(ask, seconds=seconds, size=ask.size or (self.sizes[0] if self.sizes else None))


UNKNOWN = Capability("*")
"""Of a model that nobody has said anything of."""


def find_capability(entries: Sequence[Capability], *names: str) -> Capability | None:
    """The entry of a model, by any of its names: an exact one, else the longest glob that matches one of them.

    Among equals that of the name which is told first, and of its entries the first.
    """
    for name in names:
        for entry in entries:
            if entry.name == name:
                return entry
    globs = [entry for name in names for entry in entries if fnmatchcase(name, entry.name)]
    return max(globs, key=lambda entry: len(entry.name), default=None)


_CHECKED = ("model", "mask", "image", "video_id", "input_reference", "size", "n", "seconds")
"""The fields at fault, in the order in which they are looked at."""


def find_shared_problem(
    unable: Iterable[tuple[Capability, Problem]], look: Callable[[Capability], Problem | None]
) -> Problem | None:
    """Why something cannot be had of any of several, each with its own problem; None where there is none of them.

    It is that of those who come nearest, and what it lists is everything that at least one of these allows. ``look``
    finds the problem of one.
    """
    by_field: dict[str, list[Capability]] = {}
    for capability, (field, _) in unable:
        by_field.setdefault(field, []).append(capability)
    if not by_field:
        return None
    nearest = by_field[max(by_field, key=_CHECKED.index)]
    return look(unite(nearest))


def unite(capabilities: Sequence[Capability]) -> Capability:
    """What at least one of them can do; where one may be able to do anything, so may all of them together."""
    told = [attrs.asdict(capability, recurse=False) for capability in capabilities]
    return Capability(**{name: _unite_values([one[name] for one in told]) for name in told[0]})


def _unite_values(values: Sequence[Any]) -> Any:
    if None in values:
        return None
    if isinstance(values[0], tuple):
        return tuple(dict.fromkeys(item for value in values for item in value))
    return values[0] if isinstance(values[0], str) else max(values)
