"""Pictures in the convention: the calls, and both sides' bodies.

Shapes: the convention's OpenAPI document, ``CreateImageRequest``, ``CreateImageEditRequest`` and ``ImagesResponse``.
"""

import re
from typing import Any

import attrs

from gateway.domain.image import AUTO, MAX_IMAGES, MAX_INPUT_IMAGES, Image, ImageRequest, Images, PictureForm
from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.media import sniff_image
from gateway.domain.upload import Upload
from gateway.domain.usage import Usage, parse_count, parse_usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.content_filter import find_block, parse_words
from gateway.formats.form import Kinds, ReceivedForm, check_files, parse_fields, parse_files
from gateway.formats.openai.chat import parse_any_object
from gateway.formats.openai.errors import Secrets
from gateway.formats.openai.fields import (
    Body,
    parse_flag,
    parse_integer,
    parse_model,
    parse_object,
    read_text,
)
from gateway.formats.openai.image_params import check_fields, check_size
from gateway.formats.openai.token_bounds import bound_text
from gateway.formats.prompt_tokens import estimate_prompt
from gateway.formats.request_body import Form

MAX_PROMPT_CHARS = 32_000
IMAGE_TOKENS = 8_232
"""A picture of at most ``_USUAL_PIXELS``, at the highest quality: developers.openai.com/api/docs/guides/
image-generation, "Cost and latency". Its table ends at 6,240 for 1024x1536. Its calculator tells 7,024 for 1024x1024,
14,272 for 2048x2048, and less for what is no square: of a square's pixels ``_SQUARE_TOKENS`` are the most it tells."""
_USUAL_PIXELS = 1024 * 1536
_SQUARE_TOKENS = (9_216, 2_000_000, 4_000_000)
"""Tokens a square takes: the first times (the second and its pixels), divided by the third."""
PARTIAL_TOKENS = 100
"""Each partial picture: "Partial images cost" there."""
_USUAL_FRAMES = 9
"""Of a GIF, whose frames are painted as one sheet: ``frame_count`` in the reference."""
SOURCE_TOKENS = 6_821
"""A picture that is not square, to be edited at high fidelity: 65 tokens, four tiles of 129, and 6240 more:
developers.openai.com/api/docs/guides/images-vision, "Calculating costs"."""
ESTIMATED_IMAGE_TOKENS = 1_056
"""A square picture at medium quality, where a provider does not count its tokens."""
SIZE = re.compile(r"[1-9][0-9]{0,4}x[1-9][0-9]{0,4}", re.ASCII)

_TEXTS = (
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
_INTEGERS = (
    ("output_compression", 0, 100),
    ("partial_images", 0, 3),
    ("frame_count", 2, 16),
    ("frame_duration_ms", 1, 655_350),
)
_KINDS = Kinds(integers=("n", *(name for name, _, _ in _INTEGERS)), flags=("stream",))
_FILES = ("image", "mask", "markup")
_TOLD = {
    "background": frozenset({"transparent", "opaque", "auto"}),
    "output_format": frozenset({"png", "webp", "jpeg", "gif", "svg"}),
    "quality": frozenset({"low", "medium", "high", "xhigh", "max", "auto"}),
}
_LAST_SECOND = 2**40


def parse_images_call(body: Body) -> InferenceRequest:
    """A parsed body -> the checked call. Raises ``InvalidRequest`` naming the field.

    Checked is what the gateway relies on or what no provider accepts; every other field passes as it is.
    """
    parse_object(body, "svg")
    return _parse_call("images", body)


def parse_edits_call(form: ReceivedForm) -> InferenceRequest:
    """A form -> the checked call: one picture to sixteen, perhaps a mask or a markup, and fields as of a generation."""
    check_files(form, _FILES)
    body = parse_fields(form, _KINDS)
    stray = next((name for name in _FILES if name in body), None)
    if stray is not None:
        raise InvalidRequest(f"'{stray}' must be a file", param=stray)
    call = _parse_call("image_edits", body)
    images, masks, markups = (parse_files(form, name, MAX_INPUT_IMAGES if name == "image" else 1) for name in _FILES)
    if not images:
        raise InvalidRequest("Missing required file 'image'", param="image")
    files = (*images, *masks, *markups)
    for file in files:
        _check_image(file)
    return attrs.evolve(
        call,
        files=files,
        image=attrs.evolve(_get_ask(call), sources=len(images), masked=bool(masks)),
        max_prompt_tokens=call.max_prompt_tokens + SOURCE_TOKENS * len(files),
    )


def _parse_call(operation: Operation, body: Body) -> InferenceRequest:
    model = parse_model(body)
    prompt = _parse_prompt(body)
    for name in _TEXTS:
        read_text(body, name)
    for name, low, high in _INTEGERS:
        parse_integer(body, name, low, high)
    size = _parse_size(body)
    check_fields(body, sized=size is not None)
    ask = ImageRequest(
        prompt,
        count=parse_integer(body, "n", 1, MAX_IMAGES) or 1,
        size=size,
        form=_parse_form(body),
    )
    return InferenceRequest(
        operation=operation,
        model=model,
        body=body,
        stream=parse_flag(body, "stream"),
        choices=ask.count,
        prompt_chars=len(prompt),
        max_prompt_tokens=bound_text(prompt),
        max_output_tokens=_bound_image(body, size),
        image=ask,
    )


def _parse_prompt(body: Body) -> str:
    prompt = read_text(body, "prompt")
    if prompt is None:
        raise InvalidRequest("Missing required field 'prompt'", param="prompt")
    if not prompt.strip():
        raise InvalidRequest("'prompt' must not be empty", param="prompt")
    if len(prompt) > MAX_PROMPT_CHARS:
        raise InvalidRequest(f"'prompt' must be at most {MAX_PROMPT_CHARS} characters", param="prompt")
    return prompt


def _parse_size(body: Body) -> str | None:
    size = read_text(body, "size")
    if size is None or size == AUTO:
        return None
    if not SIZE.fullmatch(size):
        raise InvalidRequest("'size' must be 'auto', or width and height in pixels such as '1024x1024'", param="size")
    return size


def _bound_image(body: Body, size: str | None) -> int:
    """Tokens that a picture will hardly exceed, of all its frames, with the partial ones before it."""
    width, height = map(int, size.split("x")) if size else (0, 0)
    frames = body.get("frame_count") or (_USUAL_FRAMES if body.get("output_format") == "gif" else 1)
    rate, more, divisor = _SQUARE_TOKENS
    pixels = max(width * height, _USUAL_PIXELS) * frames
    return -(-rate * (more + pixels) // divisor) + PARTIAL_TOKENS * (body.get("partial_images") or 0)


def _parse_form(body: Body) -> PictureForm:
    form = read_text(body, "response_format")
    if form not in {None, "url", "b64_json"}:
        raise InvalidRequest("'response_format' must be 'url' or 'b64_json'", param="response_format")
    return "b64_json" if form == "b64_json" else "url"


def _check_image(file: Upload) -> None:
    if sniff_image(file.head) is None:
        raise InvalidRequest(f"'{file.field}' must be a picture: a PNG, a JPEG or a WebP file", param=file.field)


def _get_ask(call: InferenceRequest) -> ImageRequest:
    return call.image or ImageRequest("")


def build_images_body(call: InferenceRequest, model: str, *, shaped: bool = False) -> Body:
    """The body of a generation for the provider, under its own name of the model.

    The form that the caller wants is not in it: a stream has its pictures in it, and what a provider can be asked for
    otherwise is ``OpenAiImageBackend``'s to know. Raises ``InvalidRequest`` where a size is said in a vendor's words;
    for ``shaped`` see ``check_size``.
    """
    check_size(call.body, shaped=shaped)
    body = call.body | {"model": model}
    body.pop("response_format", None)
    if _get_ask(call).size is None:
        body.pop("size", None)  # the default says the same, also to those who do not know the word
    return body


def build_edits_form(call: InferenceRequest, model: str, *, shaped: bool = False) -> Form:
    """The form of an edit for the provider. Several pictures are ``image[]``, as the client libraries say it.

    Raises ``InvalidRequest``; see ``build_images_body``.
    """
    images = [file for file in call.files if file.field == "image"]
    named = [("image[]" if file.field == "image" and len(images) > 1 else file.field, file) for file in call.files]
    return Form(build_images_body(call, model, shaped=shaped), tuple(named))


def parse_images_answer(raw: bytes, call: InferenceRequest, secrets: Secrets = ()) -> Images:
    """A provider's answer with status 200 -> its pictures.

    Raises ``ImageBlocked`` where a filter took them away, ``ProviderBadResponse`` where there are none for another
    reason. SiliconFlow calls the list ``images`` (docs.siliconflow.com, "Image Generation"); xAI's base64 may be a
    ``data:`` URL (docs.x.ai, "Image generations").
    """
    value = parse_any_object(raw)
    items = value.get("data")
    if not isinstance(items, list) or not items:
        items = value.get("images")
    found = [_parse_image(item) for item in items] if isinstance(items, list) else []
    images = tuple(image for image in found if image is not None)
    if not images or value.get("error"):
        raise find_block(value, secrets) or _build_failure(value, secrets)
    return Images(images, _parse_usage(value.get("usage"), call, len(images)), _parse_told(value))


def _build_failure(value: Body, secrets: Secrets) -> ProviderBadResponse:
    words = parse_words(value, secrets)
    return ProviderBadResponse(f"The provider reported an error: {words}" if words else "The provider made no picture")


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
    """The base64 of a ``data:`` URL (RFC 2397); None where it is in no base64."""
    head, comma, data = text.partition(",")
    return (data or None) if comma and head.lower().endswith(";base64") else None


def _parse_string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _parse_usage(raw: object, call: InferenceRequest, images: int) -> Usage:
    used = parse_images_usage(raw)
    if used is not None:
        return attrs.evolve(used, images=images)
    return estimate_usage(call, images)


def estimate_usage(call: InferenceRequest, images: int) -> Usage:
    """What so many pictures used, where their provider does not say."""
    return Usage(estimate_prompt(call), ESTIMATED_IMAGE_TOKENS * images, 0, "estimate", images)


def parse_images_usage(raw: object) -> Usage | None:
    """The convention's usage of pictures, or of a chat; None where it is missing or cannot be believed."""
    if not isinstance(raw, dict):
        return None
    prompt, completion = parse_count(raw.get("input_tokens")), parse_count(raw.get("output_tokens"))
    if prompt is None or completion is None:
        return parse_usage(raw, completes=True)
    return Usage(prompt, completion, 0, "upstream")


def _parse_told(value: Body) -> Body:
    """What an answer says of itself, as far as it is the convention's."""
    told: Body = {name: value[name] for name, words in _TOLD.items() if _is_word(value.get(name), words)}
    if is_size(value.get("size")):
        told["size"] = value["size"]
    if type(value.get("created")) is int and 0 <= value["created"] < _LAST_SECOND:
        told["created"] = value["created"]
    details = parse_details(value.get("usage"))
    if details is not None:
        told["usage"] = details
    return told


def is_size(value: object) -> bool:
    """Whether ``value`` is a size such as ``1024x1024``."""
    return isinstance(value, str) and SIZE.fullmatch(value) is not None


def _is_word(value: Any, words: frozenset[str]) -> bool:
    return isinstance(value, str) and value in words


def parse_details(raw: object) -> Body | None:
    """A usage of pictures as callers are told it, of counts that can be believed; None where one is missing."""
    used = raw if isinstance(raw, dict) else {}
    details = used.get("input_tokens_details")
    counts = [parse_count(used.get(name)) for name in ("input_tokens", "output_tokens")]
    parts = [parse_count(details.get(name)) if isinstance(details, dict) else None for name in _MODALITIES]
    if None in counts or None in parts:
        return None
    prompt, completion = (count or 0 for count in counts)
    return {
        "input_tokens": prompt,
        "input_tokens_details": dict(zip(_MODALITIES, parts, strict=True)),
        "output_tokens": completion,
        "total_tokens": prompt + completion,
    }


_MODALITIES = ("image_tokens", "text_tokens")
