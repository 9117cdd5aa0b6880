"""Pictures in an answer: base64, and ``data:`` URLs (RFC 2397). Strict: what is no base64 is no picture."""

import base64
import re

import attrs

from gateway.domain.image import Image
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.media import SNIFF_BYTES, sniff_image
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.prompt_tokens import estimate_prompt

_BASE64 = re.compile(r"[A-Za-z0-9+/]++={0,2}\Z")
_LONGEST_HEAD = 128
_LONGEST_URL = 4_096
_TOKENS_A_IMAGE = 1_290
"""What Gemini counts for one of 1024x1024 (ai.google.dev/gemini-api/docs/image-generation): for an estimate."""


@attrs.frozen
class FoundImage:
    """A picture and its media type, where one was said."""

    image: Image
    media_type: str | None = None


def parse_base64(data: object) -> str:
    """``data``, where it is base64 of the standard alphabet with its padding. Raises ``ProviderBadResponse``."""
    if not isinstance(data, str) or len(data) % 4 or not _BASE64.match(data):
        raise ProviderBadResponse("The provider's answer has a picture that is not base64")
    return data


def check_image(head: bytes) -> None:
    """Raise ``ProviderBadResponse`` where a file that begins with ``head`` is no picture."""
    if sniff_image(head[:SNIFF_BYTES]) is None:
        raise ProviderBadResponse("The provider's picture is of no kind that is known")


def check_whole(data: str) -> None:
    """Raise ``ProviderBadResponse`` where ``data`` is not the base64 of a picture. It takes a while where that is
    large.
    """
    check_image(base64.b64decode(parse_base64(data)[: 2 * SNIFF_BYTES]))


def parse_media_type(value: object) -> str | None:
    """The media type of a picture, in small letters; None where it is something else's."""
    if not isinstance(value, str) or len(value) > _LONGEST_HEAD:
        return None
    media_type = value.partition(";")[0].strip().lower()
    return media_type if media_type.startswith("image/") else None


def parse_url(url: str) -> FoundImage:
    """A picture by its ``data:``, http or https URL. Raises ``ProviderBadResponse`` where it is none of these."""
    if url[:5].lower() == "data:":
        comma = url.find(",", 0, _LONGEST_HEAD)
        head = url[5 : max(comma, 5)]
        media_type = parse_media_type(head)
        if media_type is None or not head.lower().endswith(";base64"):
            raise ProviderBadResponse("The provider's answer has a data URL that is no picture's")
        return FoundImage(Image(data=parse_base64(url[comma + 1 :])), media_type)
    if len(url) <= _LONGEST_URL and is_web_url(url):
        return FoundImage(Image(url=url))
    raise ProviderBadResponse("The provider's answer has a picture whose address makes no sense")


def is_web_url(url: str) -> bool:
    """Whether ``url`` is an address that can be fetched; whether it may be is the egress guard's business."""
    return (
        url[:8].lower().startswith(("http://", "https://")) and url.isascii() and url.isprintable() and " " not in url
    )


def build_told(found: tuple[FoundImage, ...]) -> dict[str, str]:
    """What pictures are, in the convention's words: ``output_format``, where all of them are of the same."""
    kinds = {one.media_type for one in found}
    kind = kinds.pop() if len(kinds) == 1 else None
    return {"output_format": kind.removeprefix("image/").partition("+")[0]} if kind else {}


def estimate_usage(call: InferenceRequest, images: int) -> Usage:
    """The usage of a model that talks, whose provider said nothing that can be believed."""
    return Usage(estimate_prompt(call), _TOKENS_A_IMAGE * images, source="estimate", images=images)
