"""Strict parsing of images in an answer: base64, ``data:`` URLs (RFC 2397) and web addresses."""

import base64
import re

from gateway.domain.image import Image
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.media import SNIFF_BYTES, sniff_image
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.frozen import frozen

_BASE64_PATTERN = re.compile(r"[A-Za-z0-9+/]++={0,2}\Z")
_MAX_HEAD_CHARS = 128
_MAX_URL_CHARS = 4_096
_TOKENS_PER_IMAGE = 1_290
"""Gemini's token count for a 1024x1024 image (ai.google.dev/gemini-api/docs/image-generation), used in estimates."""


@frozen
class FoundImage:
    """An image and its media type.

    Attributes:
        media_type: the media type that the provider gave, or None.
    """

    image: Image
    media_type: str | None = None


def parse_base64(data: object) -> str:
    """Return ``data`` if it is padded base64 in the standard alphabet, else raise ``ProviderBadResponse``."""
    if not isinstance(data, str) or len(data) % 4 or not _BASE64_PATTERN.match(data):
        raise ProviderBadResponse("The provider's answer has an image that is not base64")
    return data


def check_image(head: bytes) -> None:
    """Raise ``ProviderBadResponse`` if ``head``, the first bytes of a file, is not that of an image."""
    if sniff_image(head[:SNIFF_BYTES]) is None:
        raise ProviderBadResponse("The provider's image is of an unknown type")


def check_whole(data: str) -> None:
    """Raise ``ProviderBadResponse`` if ``data`` is not an image in base64. Large data takes milliseconds."""
    check_image(base64.b64decode(parse_base64(data)[: 2 * SNIFF_BYTES]))


def parse_media_type(value: object) -> str | None:
    """Return an image media type in lower case, without parameters; None for any other value."""
    if not isinstance(value, str) or len(value) > _MAX_HEAD_CHARS:
        return None
    media_type = value.partition(";")[0].strip().lower()
    return media_type if media_type.startswith("image/") else None


def parse_url(url: str) -> FoundImage:
    """Parse an image given by a ``data:``, http or https URL. Raises ``ProviderBadResponse`` for anything else."""
    if url[:5].lower() == "data:":
        separator_index = url.find(",", 0, _MAX_HEAD_CHARS)
        url_prefix = url[5 : max(separator_index, 5)]
        media_type = parse_media_type(url_prefix)
        if media_type is None or not url_prefix.lower().endswith(";base64"):
            raise ProviderBadResponse("The provider's answer has a data URL that holds no image")
        return FoundImage(Image(data=parse_base64(url[separator_index + 1 :])), media_type)
    if find_url(url) is not None:
        return FoundImage(Image(url=url))
    raise ProviderBadResponse("The provider's answer has an image with an invalid address")


def is_web_url(url: str) -> bool:
    """Return whether ``url`` is a well-formed http or https URL; the egress guard decides whether it may be fetched."""
    return (
        url[:8].lower().startswith(("http://", "https://")) and url.isascii() and url.isprintable() and " " not in url
    )


def find_url(value: object) -> str | None:
    """Return ``value`` if it is an http or https URL of at most 4,096 characters, else None."""
    return value if isinstance(value, str) and len(value) <= _MAX_URL_CHARS and is_web_url(value) else None


def build_format_field(images: tuple[FoundImage, ...]) -> dict[str, str]:
    """Return OpenAI's ``output_format`` field if all images have the same known format, else an empty dict."""
    media_types = {image.media_type for image in images}
    media_type = media_types.pop() if len(media_types) == 1 else None
    return {"output_format": media_type.removeprefix("image/").partition("+")[0]} if media_type else {}


def estimate_usage(inference: InferenceRequest, image_count: int) -> Usage:
    """Estimate the usage of an image answer whose provider reported no plausible counts."""
    return Usage(estimate_prompt(inference), _TOKENS_PER_IMAGE * image_count, source="estimate", images=image_count)
