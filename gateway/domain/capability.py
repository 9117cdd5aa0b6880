"""What a model can be asked for: looked at before anything is spent, so that a caller hears at once what is allowed."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

import attrs

from gateway.domain.picture import PictureAsk, PictureForm

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
        seconds: lengths of videos.
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

    def over(self, other: "Capability | None") -> "Capability":
        """This, and where it says nothing what ``other`` says."""
        if other is None:
            return self
        told = {name: value for name, value in attrs.asdict(self).items() if value is not None}
        return attrs.evolve(other, **told)

    def find_problem(self, ask: PictureAsk, *, edit: bool, fan_out: bool) -> Problem | None:
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


UNKNOWN = Capability("*")
"""Of a model that nobody has said anything of."""


def find_capability(entries: Iterable[Capability], model: str) -> Capability | None:
    """The entry of ``model``: of its own name, else of the longest glob that matches; among equals the first."""
    found: Capability | None = None
    for entry in entries:
        if entry.name == model:
            return entry
        if (found is None or len(entry.name) > len(found.name)) and fnmatchcase(model, entry.name):
            found = entry
    return found
