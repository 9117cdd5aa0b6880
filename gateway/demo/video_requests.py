"""Parses requests for the demo's videos, as JSON or as a form."""

import re
from base64 import b64decode
from binascii import Error
from typing import Any

from attrs import field

from gateway.demo.forms import DemoForm
from gateway.demo.models import VIDEO_MODEL, VIDEO_MODELS
from gateway.demo.requests import Json, RequestError, get_choice, get_typed, make_model_error
from gateway.frozen import frozen

SIZES: tuple[tuple[int, int], ...] = ((1280, 720), (720, 1280), (854, 480), (480, 854), (640, 360))
"""Supported widths and heights in pixels; the first is the default."""

LENGTHS: tuple[int, ...] = (4, 8, 12)
"""Supported lengths in seconds; the first is the default."""

_MAX_PROMPT_CHARS = 32_000
_BLOCKED_WORD_PATTERN = re.compile(r"\bblocked\b", re.IGNORECASE)
_IMAGE_PATTERN = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|RIFF....WEBP", re.DOTALL)
_DATA_URL_PATTERN = re.compile(r"data:image/[a-z.+-]+;base64,", re.IGNORECASE)
_HTTP_PATTERN = re.compile(r"https?://\S", re.IGNORECASE)
_REFERENCE_FIELD = "input_reference"
_HEAD_BYTES = 12


@frozen(kw_only=True)
class DemoVideoRequest:
    """A valid request for a video."""

    prompt: str = field(repr=False)
    model: str
    size: tuple[int, int]
    seconds: int


def parse_video(body: object) -> DemoVideoRequest:
    """Parse a request for a video. Raises ``RequestError`` for the first wrong field."""
    fields = _check_object(body)
    model = get_typed(fields, "model", str, default=VIDEO_MODEL)
    if model not in VIDEO_MODELS:
        raise make_model_error(model)
    prompt = parse_prompt(fields)
    sizes = {f"{width}x{height}": (width, height) for width, height in SIZES}
    lengths = {str(length): length for length in LENGTHS}
    seconds = fields.get("seconds")
    seconds_field = {"seconds": str(seconds) if type(seconds) is int else seconds}
    _check_reference(fields.get(_REFERENCE_FIELD))
    return DemoVideoRequest(
        prompt=prompt,
        model=model,
        size=sizes[get_choice(fields, "size", tuple(sizes))],
        seconds=lengths[get_choice(seconds_field, "seconds", tuple(lengths))],
    )


def parse_video_form(form: DemoForm) -> DemoVideoRequest:
    """Parse the form of a video request. Raises ``RequestError`` for the first wrong field or image."""
    fields: Json = _read_texts(form)
    address = fields.pop(f"{_REFERENCE_FIELD}[image_url]", None)
    if address:
        fields[_REFERENCE_FIELD] = {"image_url": address}
    files = form.list_files(_REFERENCE_FIELD)
    if len(files) > 1:
        raise RequestError("A video can start from one image.", param=_REFERENCE_FIELD)
    for file in files:
        file.file.seek(0)
        _check_image(file.file.read(_HEAD_BYTES))
    return parse_video(fields)


def parse_remix(body: object) -> str:
    """Parse the prompt of a remix. Raises ``RequestError`` for an invalid prompt."""
    return parse_prompt(_check_object(body))


def parse_remix_form(form: DemoForm) -> str:
    """Parse the prompt of a remix form. Raises ``RequestError`` for an invalid prompt."""
    return parse_prompt(_read_texts(form))


def parse_prompt(fields: Json) -> str:
    """Return the prompt of a request. Raises ``RequestError`` for an invalid prompt."""
    prompt = get_typed(fields, "prompt", str, default="")
    if not prompt.strip() or len(prompt) > _MAX_PROMPT_CHARS:
        raise RequestError(f"'prompt' must be a text of 1 to {_MAX_PROMPT_CHARS} characters.", param="prompt")
    if _BLOCKED_WORD_PATTERN.search(prompt):
        message = "The demo's safety system blocked this prompt: it contains the demo's test word."
        raise RequestError(message, param="prompt", code="moderation_blocked")
    return str(prompt)


def _check_object(body: object) -> Json:
    if not isinstance(body, dict):
        raise RequestError("The request body must be a JSON object.")
    return body


def _read_texts(form: DemoForm) -> dict[str, Any]:
    return {name: text for name, text in form.fields if text}


def _check_reference(value: object) -> None:
    """Check an image reference: an object as in the OpenAI API, or only the address. The demo does not use the image.

    Raises ``RequestError`` if the reference has another form, or is no image.
    """
    if value is None:
        return
    address = value.get("image_url") if isinstance(value, dict) else value
    if not isinstance(address, str):
        raise RequestError(f"'{_REFERENCE_FIELD}' must be an object with an 'image_url'.", param=_REFERENCE_FIELD)
    if match := _DATA_URL_PATTERN.match(address):
        try:
            image = b64decode(address[match.end() :], validate=True)
        except (Error, ValueError) as error:
            raise RequestError(f"The image in '{_REFERENCE_FIELD}' is not base64.", param=_REFERENCE_FIELD) from error
        _check_image(image)
    elif not _HTTP_PATTERN.match(address):
        raise RequestError(f"'{_REFERENCE_FIELD}' must be an http, https or data URL.", param=_REFERENCE_FIELD)


def _check_image(head: bytes) -> None:
    if not _IMAGE_PATTERN.match(head):
        raise RequestError(f"The image in '{_REFERENCE_FIELD}' is not a PNG, JPEG or WebP.", param=_REFERENCE_FIELD)
