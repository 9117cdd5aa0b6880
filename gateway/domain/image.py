"""Images: the request of a client, and the result of a provider."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from gateway.domain.usage import NO_USAGE, Usage
from gateway.frozen import frozen

ImageForm = Literal["url", "b64_json"]
"""The requested form of images: URLs, or base64 in the answer."""

MAX_IMAGES = 10
"""Maximum number of images per request, as in the OpenAI API."""
MAX_INPUT_IMAGES = 16
MAX_IMAGE_BYTES = 32 * 1024 * 1024
"""Maximum bytes of one decoded image."""
AUTO_SIZE = "auto"
"""The size that leaves the choice to the model."""


@frozen
class ImageRequest:
    """The part of an image request that every image backend needs; the rest is in the request's body.

    Attributes:
        size: ``1024x1024``; None if the client left it open or wrote ``auto``.
        sources: the number of source images of an edit.
    """

    prompt: str = attrs.field(repr=False)
    count: int = 1
    size: str | None = None
    form: ImageForm = "url"
    sources: int = 0
    masked: bool = False


@frozen
class Image:
    """One image from a provider: base64, or a URL to fetch it from.

    Attributes:
        revised_prompt: the prompt as the model rewrote it.
        quoted: whether the URL is from the model's text. The client may have dictated such a URL, so it is trusted no
            more than the client, and the provider is not blamed for an error in it.
    """

    data: str | None = attrs.field(default=None, repr=False)
    url: str | None = attrs.field(default=None, repr=False)
    revised_prompt: str | None = attrs.field(default=None, repr=False)
    quoted: bool = False


@frozen
class Images:
    """A provider's images; ``reported`` has the other fields of the answer (``size``, ``quality``…)."""

    items: tuple[Image, ...]
    usage: Usage = NO_USAGE
    reported: Mapping[str, Any] = attrs.field(factory=dict)
