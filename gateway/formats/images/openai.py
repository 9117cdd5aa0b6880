"""Images in the OpenAI API format: parsing requests, building provider bodies and parsing answers."""

import re
from typing import Any

import attrs

from gateway.domain.image import AUTO_SIZE, MAX_IMAGES, MAX_INPUT_IMAGES, Image, ImageForm, ImageRequest, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.media import sniff_image
from gateway.domain.operation import Operation
from gateway.domain.upload import Upload
from gateway.domain.usage import Usage, attach_details, build_reported_usage, find_modalities, parse_count, parse_usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_any_object
from gateway.formats.errors.content_filter import find_block
from gateway.formats.errors.openai import Secrets
from gateway.formats.errors.vendor import find_message
from gateway.formats.images.params import check_fields, check_size
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.formats.usage.token_bounds import bound_text
from gateway.formats.wire import fields
from gateway.formats.wire.form import FieldTypes, ReceivedForm, check_files, parse_fields, parse_files
from gateway.formats.wire.request_body import Form

MAX_PROMPT_CHARS = 32_000
IMAGE_TOKENS = 8_232
"""The most tokens of an image of at most ``_DEFAULT_PIXELS`` at the highest quality.

Source: developers.openai.com/api/docs/guides/image-generation, "Cost and latency". The highest value of its table is
6,240 for 1024x1536. Its calculator gives 7,024 for 1024x1024, 14,272 for 2048x2048, and less for other shapes of the
same area. The formula of ``_TOKEN_FORMULA_CONSTANTS`` is therefore an upper bound.
"""
_DEFAULT_PIXELS = 1024 * 1536
_TOKEN_FORMULA_CONSTANTS = (9_216, 2_000_000, 4_000_000)
"""Constants a, b, c of the formula for a square's tokens: a * (b + pixels) / c."""
PARTIAL_TOKENS = 100
"""Tokens of each partial image: "Partial images cost" on the same page."""
_DEFAULT_FRAMES = 9
"""Default number of frames of a GIF, which are generated as one sheet: ``frame_count`` in the reference."""
SOURCE_TOKENS = 6_821
"""Tokens of a non-square input image at high fidelity: 65, plus 129 for each of four tiles, plus 6240
(developers.openai.com/api/docs/guides/images-vision, "Calculating costs").
"""
ESTIMATED_IMAGE_TOKENS = 1_056
"""Tokens of a square image at medium quality, for providers that do not report tokens."""
SIZE_PATTERN = re.compile(r"[1-9][0-9]{0,4}x[1-9][0-9]{0,4}", re.ASCII)

_STRING_FIELDS = (
    "background",
    "complexity",
    "input_fidelity",
    "moderation",
    "output_format",
    "quality",
    "safety_identifier",
    "style",
    "user",
)
_INTEGER_FIELDS = (
    ("output_compression", 0, 100),
    ("partial_images", 0, 3),
    ("frame_count", 2, 16),
    ("frame_duration_ms", 1, 655_350),
)
_FIELD_TYPES = FieldTypes(integers=("n", *(name for name, _, _ in _INTEGER_FIELDS)), flags=("stream",))
_FILE_FIELDS = ("image", "mask", "markup")
_REPORTED_CHOICES = {
    "background": frozenset({"transparent", "opaque", "auto"}),
    "output_format": frozenset({"png", "webp", "jpeg", "gif", "svg"}),
    "quality": frozenset({"low", "medium", "high", "xhigh", "max", "auto"}),
}
_MAX_CREATED_S = 2**40


def parse_images_inference(body: fields.Body) -> InferenceRequest:
    """Check a parsed body and return the request. Raises ``InvalidRequest`` naming the field."""
    fields.parse_object(body, "svg")
    return _parse_inference("images", body)


def parse_edits_inference(form: ReceivedForm) -> InferenceRequest:
    """Check an edit form and return the request.

    A form has 1 to 16 images, at most one mask and one markup, and the fields of a generation. Raises
    ``InvalidRequest`` naming the field.
    """
    check_files(form, _FILE_FIELDS)
    body = parse_fields(form, _FIELD_TYPES)
    file_field = next((name for name in _FILE_FIELDS if name in body), None)
    if file_field is not None:
        raise InvalidRequest(f"'{file_field}' must be a file", param=file_field)
    inference = _parse_inference("image_edits", body)
    images, masks, markups = (
        parse_files(form, name, MAX_INPUT_IMAGES if name == "image" else 1) for name in _FILE_FIELDS
    )
    if not images:
        raise InvalidRequest("Missing required file 'image'", param="image")
    files = (*images, *masks, *markups)
    for file in files:
        _check_image(file)
    return attrs.evolve(
        inference,
        files=files,
        image=attrs.evolve(_get_image_request(inference), sources=len(images), masked=bool(masks)),
        max_prompt_tokens=inference.max_prompt_tokens + SOURCE_TOKENS * len(files),
    )


def _parse_inference(operation: Operation, body: fields.Body) -> InferenceRequest:
    model = fields.parse_model(body)
    prompt = fields.parse_prompt(body, MAX_PROMPT_CHARS)
    for name in _STRING_FIELDS:
        fields.read_text(body, name)
    for name, low, high in _INTEGER_FIELDS:
        fields.parse_integer(body, name, low, high)
    size = _parse_size(body)
    check_fields(body, has_size=size is not None)
    image_request = ImageRequest(
        prompt, count=fields.parse_integer(body, "n", 1, MAX_IMAGES) or 1, size=size, form=_parse_form(body)
    )
    return InferenceRequest(
        operation=operation,
        model=model,
        body=body,
        stream=fields.parse_flag(body, "stream"),
        choices=image_request.count,
        prompt_chars=len(prompt),
        max_prompt_tokens=bound_text(prompt),
        max_output_tokens=_bound_image(body, size),
        image=image_request,
    )


def _parse_size(body: fields.Body) -> str | None:
    size = fields.read_text(body, "size")
    if size is None or size == AUTO_SIZE:
        return None
    if not SIZE_PATTERN.fullmatch(size):
        raise InvalidRequest("'size' must be 'auto', or width and height in pixels such as '1024x1024'", param="size")
    return size


def _bound_image(body: fields.Body, size: str | None) -> int:
    """Return a high estimate of an image's tokens, including all frames and partial images."""
    width, height = map(int, size.split("x")) if size else (0, 0)
    frame_count = body.get("frame_count") or (_DEFAULT_FRAMES if body.get("output_format") == "gif" else 1)
    factor, extra_tokens, divisor = _TOKEN_FORMULA_CONSTANTS
    pixels = max(width * height, _DEFAULT_PIXELS) * frame_count
    return -(-factor * (extra_tokens + pixels) // divisor) + PARTIAL_TOKENS * (body.get("partial_images") or 0)


def _parse_form(body: fields.Body) -> ImageForm:
    answer_form = fields.read_text(body, "response_format")
    if answer_form not in {None, "url", "b64_json"}:
        raise InvalidRequest("'response_format' must be 'url' or 'b64_json'", param="response_format")
    return "b64_json" if answer_form == "b64_json" else "url"


def _check_image(file: Upload) -> None:
    if sniff_image(file.head) is None:
        raise InvalidRequest(f"'{file.field}' must be an image: a PNG, a JPEG or a WebP file", param=file.field)


def _get_image_request(inference: InferenceRequest) -> ImageRequest:
    return inference.image or ImageRequest("")


def build_images_body(inference: InferenceRequest, model: str, *, needs_shape: bool = False) -> fields.Body:
    """Build the body of a generation with the provider's model name. Raises ``InvalidRequest``.

    ``response_format`` is omitted: streams always contain the images, and for other answers ``OpenAiImageBackend`` adds
    the form that the provider supports. ``check_size`` explains ``needs_shape``.
    """
    check_size(inference.body, needs_shape=needs_shape)
    body = inference.body | {"model": model}
    body.pop("response_format", None)
    if _get_image_request(inference).size is None:
        body.pop("size", None)  # equivalent to the default, and some servers reject "auto"
    return body


def build_edits_form(inference: InferenceRequest, model: str, *, needs_shape: bool = False) -> Form:
    """Build the form of an edit; see ``build_images_body``. Several images are sent as ``image[]``."""
    images = [file for file in inference.files if file.field == "image"]
    named_files = [
        ("image[]" if file.field == "image" and len(images) > 1 else file.field, file) for file in inference.files
    ]
    return Form(build_images_body(inference, model, needs_shape=needs_shape), tuple(named_files))


def parse_images_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> Images:
    """Parse the images of a provider's answer with status 200.

    If the answer has no image or reports an error, raises ``ImageBlocked`` for a content filter, else
    ``ProviderBadResponse``. SiliconFlow names the list ``images`` (docs.siliconflow.com, "Image Generation"). xAI may
    send base64 as a ``data:`` URL (docs.x.ai, "Image generations").
    """
    value = parse_any_object(raw)
    items = value.get("data")
    if not isinstance(items, list) or not items:
        items = value.get("images")
    parsed_images = [_parse_image(item) for item in items] if isinstance(items, list) else []
    images = tuple(image for image in parsed_images if image is not None)
    if not images or value.get("error"):
        raise find_block(value, secrets) or _build_failure(value, secrets)
    return Images(images, _parse_usage(value.get("usage"), inference, len(images)), _parse_reported(value))


def _build_failure(value: fields.Body, secrets: Secrets) -> ProviderBadResponse:
    message = find_message(value, secrets)
    return ProviderBadResponse(
        f"The provider reported an error: {message}" if message else "The provider made no image"
    )


def _parse_image(item: object) -> Image | None:
    if not isinstance(item, dict):
        return None
    data, url = _parse_string(item.get("b64_json")), _parse_string(item.get("url"))
    if url is not None and url[:5].lower() == "data:":
        data, url = data or url, None
    if url is not None and not url.lower().startswith(("http://", "https://")):
        url = None
    if data is not None and data[:5].lower() == "data:":
        data = _parse_data_url(data)
    if data is None and url is None:
        return None
    return Image(data, url, _parse_string(item.get("revised_prompt")))


def _parse_data_url(text: str) -> str | None:
    # See RFC 2397.
    url_prefix, separator, data = text.partition(",")
    return (data or None) if separator and url_prefix.lower().endswith(";base64") else None


def _parse_string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _parse_usage(raw: object, inference: InferenceRequest, image_count: int) -> Usage:
    usage = parse_images_usage(raw)
    if usage is not None:
        return attrs.evolve(usage, images=image_count)
    return estimate_usage(inference, image_count)


def estimate_usage(inference: InferenceRequest, image_count: int) -> Usage:
    """Estimate the usage of ``image_count`` images whose provider does not report it."""
    return Usage(estimate_prompt(inference), ESTIMATED_IMAGE_TOKENS * image_count, 0, "estimate", image_count)


def parse_images_usage(raw: object) -> Usage | None:
    """Parse a usage object of an image or chat answer; None if missing or implausible."""
    if not isinstance(raw, dict):
        return None
    prompt_tokens, completion_tokens = parse_count(raw.get("input_tokens")), parse_count(raw.get("output_tokens"))
    if prompt_tokens is None or completion_tokens is None:
        return parse_usage(raw, completes=True)
    if not prompt_tokens and not completion_tokens:
        return None
    details = raw.get("input_tokens_details")
    cached_tokens = details.get("cached_tokens") if isinstance(details, dict) else None
    usage = build_reported_usage(prompt_tokens, completion_tokens, cached_tokens=cached_tokens, written_tokens=None)
    return attach_details(usage, find_modalities(details, raw.get("output_tokens_details")))


def _parse_reported(value: fields.Body) -> fields.Body:
    reported_fields: fields.Body = {
        name: value[name] for name, choices in _REPORTED_CHOICES.items() if _is_choice(value.get(name), choices)
    }
    if is_size(value.get("size")):
        reported_fields["size"] = value["size"]
    if type(value.get("created")) is int and 0 <= value["created"] < _MAX_CREATED_S:
        reported_fields["created"] = value["created"]
    details = parse_details(value.get("usage"))
    if details is not None:
        reported_fields["usage"] = details
    return reported_fields


def is_size(value: object) -> bool:
    """Return whether ``value`` is a size such as ``1024x1024``."""
    return isinstance(value, str) and SIZE_PATTERN.fullmatch(value) is not None


def _is_choice(value: Any, choices: frozenset[str]) -> bool:
    return isinstance(value, str) and value in choices


def parse_details(raw: object) -> fields.Body | None:
    """Build the image usage object for clients; None if a count is missing or implausible."""
    usage = raw if isinstance(raw, dict) else {}
    details = usage.get("input_tokens_details")
    counts = [parse_count(usage.get(name)) for name in ("input_tokens", "output_tokens")]
    detail_counts = [
        parse_count(details.get(name)) if isinstance(details, dict) else None for name in _INPUT_DETAIL_FIELDS
    ]
    if None in counts or None in detail_counts:
        return None
    prompt_tokens, completion_tokens = (count or 0 for count in counts)
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": dict(zip(_INPUT_DETAIL_FIELDS, detail_counts, strict=True)),
        "output_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


_INPUT_DETAIL_FIELDS = ("image_tokens", "text_tokens")
