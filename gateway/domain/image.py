"""Pictures: what is asked for, and what came, whoever painted it."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from gateway.domain.usage import NO_USAGE, Usage

PictureForm = Literal["url", "b64_json"]
"""How a caller wants its pictures: as addresses, or as base64 in the answer."""

MAX_IMAGES = 10
"""In one request, the convention's own limit."""
MAX_INPUT_IMAGES = 16
MAX_IMAGE_BYTES = 32 * 1024 * 1024
"""Of one picture, as the bytes that it is."""
AUTO = "auto"
"""The size of whoever leaves it to the model."""


@attrs.frozen
class ImageRequest:
    """What of a call for pictures every painter must know; the rest stands in the call's body.

    Attributes:
        prompt: what they show, or what is to be changed.
        count: how many (``n``).
        size: ``1024x1024``; None where the caller left it open (``auto`` too).
        form: how the caller wants them.
        sources: pictures that came with an edit.
        masked: whether a mask came with them.
    """

    prompt: str = attrs.field(repr=False)
    count: int = 1
    size: str | None = None
    form: PictureForm = "url"
    sources: int = 0
    masked: bool = False


@attrs.frozen
class Image:
    """One picture as a provider gave it: its bytes in base64, or an address to fetch it from.

    Attributes:
        data: base64, standard alphabet, no prefix.
        url: an http or https address.
        revised_prompt: what the model made of the prompt.
        quoted: it stood in a text of the model's. Whoever asked may have dictated it: it is trusted no further than
            its caller is, and what is wrong with it is held against nobody.
    """

    data: str | None = attrs.field(default=None, repr=False)
    url: str | None = attrs.field(default=None, repr=False)
    revised_prompt: str | None = attrs.field(default=None, repr=False)
    quoted: bool = False


@attrs.frozen
class Images:
    """An answer. ``told`` is what else its provider said of it, in the convention's words (``size``, ``quality``…)."""

    items: tuple[Image, ...]
    usage: Usage = NO_USAGE
    told: Mapping[str, Any] = attrs.field(factory=dict)
