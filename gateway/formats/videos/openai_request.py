"""Requests for videos in the OpenAI API format: JSON, or a form, which the client libraries send even without a file.

The gateway checks, reserves and charges by ``seconds`` and ``size``. Vendors' other names for them are rejected: if
such a field were dropped, the client would miss its effect, and if it were sent, that effect would not be charged.
"""

import binascii
import re
from base64 import b64decode
from contextlib import suppress
from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.media import sniff_image
from gateway.domain.upload import Upload
from gateway.domain.video import MAX_PROMPT_CHARS, MAX_SECONDS, Reference, VideoRequest
from gateway.errors import InvalidRequest
from gateway.formats.usage.token_bounds import bound_text
from gateway.formats.wire.fields import Body, name_json_type, parse_model, parse_prompt, read_text
from gateway.formats.wire.form import FieldTypes, ReceivedForm, check_files, parse_fields, parse_files

REFERENCE_FIELD = "input_reference"
_REFERENCE_URL_FIELD = f"{REFERENCE_FIELD}[image_url]"
_REFERENCE_FILE_FIELD = f"{REFERENCE_FIELD}[file_id]"
_KNOWN_FIELDS = ("model", "prompt", "seconds", "size", REFERENCE_FIELD, "webhook_url")
_VENDOR_FIELDS = (
    "duration", "duration_seconds", "durationSeconds", "length", "num_seconds", "video_length", "num_frames", "frames",
    "frame_count", "fps", "resolution", "width", "height", "aspect_ratio", "ratio", "video_size", "n", "num_videos",
    "numberOfVideos", "sample_count", "video_count", "count",
)  # fmt: skip
"""Vendors' names for length, size and number."""
_SECONDS_PATTERN = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)
_SIZE_PATTERN = re.compile(r"[1-9][0-9]{0,4}x[1-9][0-9]{0,4}", re.ASCII)
_DATA_URL_PATTERN = re.compile(r"data:image/(?:png|jpe?g|webp);base64,(?P<head>[A-Za-z0-9+/=]{4,512})", re.ASCII)
"""The beginning of a data URL; the rest is checked while it is decoded in steps (``videos/reference_image.py``)."""
_WEB_URL_PATTERN = re.compile(r"https?://[!#-;=?-Z\[\]_a-z~]+\Z", re.ASCII)
_MAX_URL_CHARS = 8_190
_MAX_EXCERPT_CHARS = 64
_EMPTY_VALUES = (None, "")
_FIELD_TYPES = FieldTypes()


def _fold_field_name(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


_FOLDED_NAMES = {_fold_field_name(name): name for name in _KNOWN_FIELDS}
_FOLDED_VENDOR_FIELDS = frozenset(map(_fold_field_name, _VENDOR_FIELDS))


def parse_videos_inference(body: Body) -> InferenceRequest:
    """Check a parsed body and return the request. Raises ``InvalidRequest`` naming the field."""
    return _parse_inference(body, _parse_reference(body.get(REFERENCE_FIELD), REFERENCE_FIELD))


def parse_videos_form(form: ReceivedForm) -> InferenceRequest:
    """Check a form as ``parse_videos_inference`` checks a body; ``input_reference`` may be a file.

    Raises ``InvalidRequest`` naming the field.
    """
    check_files(form, (REFERENCE_FIELD,))
    body = parse_fields(form, _FIELD_TYPES)
    files = parse_files(form, REFERENCE_FIELD, 1)
    reference_fields = {
        name: body.pop(name, None) for name in (REFERENCE_FIELD, _REFERENCE_URL_FIELD, _REFERENCE_FILE_FIELD)
    }
    set_fields = [name for name, value in reference_fields.items() if value not in _EMPTY_VALUES]
    if len(set_fields) + len(files) > 1:
        raise InvalidRequest(f"'{REFERENCE_FIELD}' is there more than once", param=REFERENCE_FIELD)
    if files:
        return _parse_inference(body, _parse_file(files[0]), files)
    if reference_fields[_REFERENCE_FILE_FIELD] not in _EMPTY_VALUES:
        raise _make_file_id_error(_REFERENCE_FILE_FIELD)
    return _parse_inference(
        body,
        _parse_reference(
            reference_fields[set_fields[0]] if set_fields else None, set_fields[0] if set_fields else REFERENCE_FIELD
        ),
    )


def parse_remix_inference(body: Body) -> InferenceRequest:
    """Check a remix and return the request without a model: the path names the video. Raises ``InvalidRequest``."""
    unknown_field = next(
        (name for name in body if name not in {"prompt", "webhook_url"} and body[name] not in _EMPTY_VALUES), None
    )
    if unknown_field is not None:
        excerpt = unknown_field[:_MAX_EXCERPT_CHARS]
        raise InvalidRequest(f"'{excerpt}' is not supported: a remix takes only a prompt", param=excerpt)
    prompt = parse_prompt(body, MAX_PROMPT_CHARS)
    video_request = VideoRequest(prompt, webhook_url=read_text(body, "webhook_url") or None)
    return InferenceRequest(
        "video_remixes", "", body, prompt_chars=len(prompt), max_prompt_tokens=bound_text(prompt), video=video_request
    )


def parse_remix_form(form: ReceivedForm) -> InferenceRequest:
    """Check a form like ``parse_remix_inference``. Raises ``InvalidRequest``."""
    check_files(form, ())
    return parse_remix_inference(parse_fields(form, _FIELD_TYPES))


def _parse_inference(body: Body, reference: Reference | None, files: tuple[Upload, ...] = ()) -> InferenceRequest:
    _check_names(body)
    model = parse_model(body)
    prompt = parse_prompt(body, MAX_PROMPT_CHARS)
    video_request = VideoRequest(
        prompt,
        seconds=_parse_seconds(body.get("seconds")),
        size=_parse_size(body),
        reference=reference,
        webhook_url=read_text(body, "webhook_url") or None,
    )
    return InferenceRequest(
        "videos",
        model,
        {name: value for name, value in body.items() if name not in _KNOWN_FIELDS},
        prompt_chars=len(prompt),
        max_prompt_tokens=bound_text(prompt),
        files=files,
        video=video_request,
    )


def _check_names(body: Body) -> None:
    for name, value in body.items():
        known_name = _FOLDED_NAMES.get(_fold_field_name(name), name)
        excerpt = name[:_MAX_EXCERPT_CHARS]
        if known_name != name:
            raise InvalidRequest(f"Unknown field '{excerpt}'; did you mean '{known_name}'?", param=excerpt)
        if _fold_field_name(name) in _FOLDED_VENDOR_FIELDS and value not in _EMPTY_VALUES:
            raise InvalidRequest(f"'{excerpt}' is not supported: set 'seconds' and 'size' of one video", param=excerpt)


def _parse_seconds(value: Any) -> int | None:
    """Parse ``seconds``: a string as in OpenAI's API, or a number, which many clients send.

    Returns None if the field is missing or empty. Raises ``InvalidRequest``.
    """
    if value in _EMPTY_VALUES and not isinstance(value, bool):
        return None
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not _SECONDS_PATTERN.fullmatch(text) or int(text) > MAX_SECONDS:
        raise InvalidRequest(f"'seconds' must be a whole number from 1 to {MAX_SECONDS}, as in \"4\"", param="seconds")
    return int(text)


def _parse_size(body: Body) -> str | None:
    size = read_text(body, "size")
    if size in {None, "", "auto"}:
        return None
    if not _SIZE_PATTERN.fullmatch(size or ""):
        raise InvalidRequest("'size' must be width and height in pixels such as '1280x720'", param="size")
    return size


def _parse_reference(value: Any, param: str) -> Reference | None:
    if value in _EMPTY_VALUES:
        return None
    if isinstance(value, dict):
        if value.get("file_id") not in _EMPTY_VALUES:
            raise _make_file_id_error(f"{param}.file_id")
        param, value = f"{param}.image_url", value.get("image_url")
        if isinstance(value, dict):  # the form of an image in a chat message
            param, value = f"{param}.url", value.get("url")
    if not isinstance(value, str):
        raise InvalidRequest(f"'{param}' must be an address or a data: URL, not {name_json_type(value)}", param=param)
    if value.startswith("data:"):
        _check_data_url(value, param)
    elif len(value) > _MAX_URL_CHARS or not _WEB_URL_PATTERN.match(value):
        raise InvalidRequest(f"'{param}' must be an http or https address, or a data: URL of an image", param=param)
    return Reference(url=value)


def _check_data_url(value: str, param: str) -> None:
    match, first_bytes = _DATA_URL_PATTERN.match(value), b""
    if match is not None:
        with suppress(binascii.Error):
            first_bytes = b64decode(match["head"][: len(match["head"]) // 4 * 4])
    if sniff_image(first_bytes) is None:
        raise InvalidRequest(f"'{param}' must be a PNG, a JPEG or a WebP file as a base64 data: URL", param=param)


def _parse_file(file: Upload) -> Reference:
    if sniff_image(file.head) not in {"image/png", "image/jpeg", "image/webp"}:
        raise InvalidRequest(
            f"'{REFERENCE_FIELD}' must be an image: a PNG, a JPEG or a WebP file", param=REFERENCE_FIELD
        )
    return Reference(upload=file)


def _make_file_id_error(param: str) -> InvalidRequest:
    return InvalidRequest("Files are not kept here: send the image itself, or its address", param=param)
