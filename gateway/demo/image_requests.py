"""Parses requests for demo-image, as JSON or as a form."""

import re
from typing import Literal

from gateway.demo.forms import DemoForm, FormFile
from gateway.demo.models import IMAGE_MODEL
from gateway.demo.requests import Json, RequestError, get_choice, get_integer, get_typed, parse_fields
from gateway.demo.text import split_pieces
from gateway.frozen import frozen

SIZES: tuple[tuple[int, int], ...] = ((256, 256), (512, 512), (1024, 1024), (1536, 1024), (1024, 1536))
"""Supported widths and heights of images, in pixels."""
MAX_IMAGES = 10
MAX_SOURCES = 16
_MAX_PARTIALS = 3
_MAX_PROMPT_CHARS = 32_000
_PIXELS_PER_TOKEN = 1_024
_SOURCE_TOKENS = 256
_AUTO = "auto"
_BLOCKED_WORD_PATTERN = re.compile(r"\bblocked\b", re.IGNORECASE)
_QUALITIES = ("auto", "low", "medium", "high", "xhigh", "max", "standard", "hd")
_IMAGE_PATTERN = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|RIFF....WEBP", re.DOTALL)
_INTEGER_FIELDS = ("n", "partial_images")
_FLAG_VALUES = {"true": True, "false": False, "1": True, "0": False, "True": True, "False": False}


@frozen(kw_only=True)
class DemoImageRequest:
    """A request for images.

    Attributes:
        size: width and height in pixels; None if the demo chooses the size.
    """

    prompt: str
    count: int
    size: tuple[int, int] | None
    form: Literal["url", "b64_json"]
    stream: bool
    partial_count: int
    quality: str
    source_count: int = 0

    def build_usage(self, size: tuple[int, int], images: int, *, first: bool = True) -> Json:
        """Return the token usage of ``images`` images. Input tokens are included only if ``first`` is true."""
        text_tokens = len(split_pieces(self.prompt)) if first else 0
        input_tokens = _SOURCE_TOKENS * self.source_count if first else 0
        output_tokens = images * size[0] * size[1] // _PIXELS_PER_TOKEN
        return {
            "input_tokens": text_tokens + input_tokens,
            "input_tokens_details": {"text_tokens": text_tokens, "image_tokens": input_tokens},
            "output_tokens": output_tokens,
            "total_tokens": text_tokens + input_tokens + output_tokens,
        }


def parse_generation(body: object) -> DemoImageRequest:
    """Parse a JSON request for images. Raises ``RequestError`` for the first wrong field."""
    return _parse(parse_fields(body, IMAGE_MODEL), source_count=0)


def parse_edit(form: DemoForm) -> DemoImageRequest:
    """Parse the form of an image edit. Raises ``RequestError`` for the first wrong field or image."""
    fields = parse_fields({name: _parse_text(name, text) for name, text in form.fields}, IMAGE_MODEL)
    sources = form.list_files("image")
    if not 1 <= len(sources) <= MAX_SOURCES:
        raise RequestError(f"An edit must come with 1 to {MAX_SOURCES} images in 'image'.", param="image")
    for number, source in enumerate(sources, 1):
        if not _IMAGE_PATTERN.match(_read_head(source)):
            raise RequestError(f"Image {number} in 'image' is not a PNG, JPEG or WebP.", param="image")
    return _parse(fields, source_count=len(sources))


def _parse(fields: Json, *, source_count: int) -> DemoImageRequest:
    prompt = get_typed(fields, "prompt", str, default="")
    if not prompt.strip() or len(prompt) > _MAX_PROMPT_CHARS:
        raise RequestError(f"'prompt' must be a text of 1 to {_MAX_PROMPT_CHARS} characters.", param="prompt")
    if _BLOCKED_WORD_PATTERN.search(prompt):
        message = "The demo's safety system blocked this prompt: it contains the demo's test word."
        raise RequestError(message, param="prompt", code="moderation_blocked")
    get_choice(fields, "output_format", ("png",))
    get_choice(fields, "background", (_AUTO, "opaque"))
    return DemoImageRequest(
        prompt=prompt,
        count=get_integer(fields, "n", MAX_IMAGES) or 1,
        size=_parse_size(fields),
        form="url" if get_choice(fields, "response_format", ("url", "b64_json")) == "url" else "b64_json",
        stream=get_typed(fields, "stream", bool, default=False),
        partial_count=get_integer(fields, "partial_images", _MAX_PARTIALS, low=0) or 0,
        quality=get_choice(fields, "quality", _QUALITIES),
        source_count=source_count,
    )


def _parse_size(fields: Json) -> tuple[int, int] | None:
    known_sizes = {f"{width}x{height}": (width, height) for width, height in SIZES}
    return known_sizes.get(get_choice(fields, "size", (_AUTO, *known_sizes)))


def _parse_text(name: str, text: str) -> str | int | bool | None:
    """Return a form's text as its JSON value: None for an empty text; an invalid number stays text."""
    if name in _INTEGER_FIELDS and text.isascii() and text.isdigit():
        return int(text[:9])
    return _FLAG_VALUES.get(text, text) if name == "stream" else text or None


def _read_head(file: FormFile) -> bytes:
    file.file.seek(0)
    return file.file.read(12)
