"""Request bodies for providers: JSON, a form or a file. Uploaded files are not read into memory."""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.domain.upload import Content, FilePiece, Upload
from gateway.errors import InvalidRequest
from gateway.frozen import frozen

Body = dict[str, Any]

JSON = "application/json"
ANY_TYPE = "application/octet-stream"
MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}\Z")
"""A media type without parameters (RFC 6838, 4.2), in lower case."""
_PLACEHOLDER = b"\x00"  # marks a file's place in JSON: no JSON text contains this byte (RFC 8259, 7)
_QUOTED_CHARS = {ord('"'): "%22", ord("\r"): "%0D", ord("\n"): "%0A", ord("\\"): "%5C"}
"""Escapes from HTML ("multipart/form-data encoding algorithm"), and the backslash, which some parsers unescape."""


class AdaptedBody(dict[str, Any]):
    """A JSON body of a direct format. ``adapted`` names its dropped or changed parts."""

    adapted: tuple[str, ...] = ()


@frozen(eq=False)
class Form:
    """A ``multipart/form-data`` body.

    Attributes:
        fields: text, numbers and flags; a list becomes a repeated field.
    """

    fields: Body = attrs.field(repr=False)
    files: tuple[tuple[str, Upload], ...] = ()
    """Pairs of a field name as sent, such as ``image[]``, and a file."""


@frozen(eq=False)
class InlineUpload:
    """A file as a string in a JSON body: the text ``prefix``, followed by the file in base64."""

    upload: Upload
    prefix: str = ""


@frozen(eq=False)
class RawFile:
    """A body that consists of one uploaded file."""

    upload: Upload


Payload = Body | Form | RawFile
"""A JSON body, which may contain ``InlineUpload`` objects instead of strings, a form, or a file."""


def build_data_url(upload: Upload) -> InlineUpload:
    """Return a file as a ``data:`` URL."""
    return InlineUpload(upload, f"data:{upload.media_type};base64,")


def build_payload(body: Payload, boundary_mark: str) -> tuple[bytes | Content, str]:
    """Return the encoded body and its Content-Type.

    ``boundary_mark`` is a word that no file contains. It goes into the boundary of a form. Raises ``InvalidRequest``
    for JSON that is nested too deeply.
    """
    if isinstance(body, RawFile):
        return Content((FilePiece(body.upload),)), _find_media_type(body.upload)
    if isinstance(body, Form):
        boundary = _find_boundary(body, boundary_mark)
        return Content(tuple(_join_bytes(_build_form(body, boundary)))), f"multipart/form-data; boundary={boundary}"
    try:
        return b"".join((orjson.dumps(body), b"")), JSON  # ``exact_json.trim`` without its call: a stream keeps this
    except orjson.JSONEncodeError:  # the body contains files or long numbers, or is nested too deeply
        return _build_around_files(body), JSON


def _build_around_files(body: Body) -> Content:
    files: list[Upload] = []

    def leave_placeholder(value: object) -> orjson.Fragment:
        if not isinstance(value, InlineUpload):
            return exact_json.write_number(value)
        files.append(value.upload)
        return orjson.Fragment(orjson.dumps(value.prefix)[:-1] + _PLACEHOLDER + b'"')

    try:
        first_text, *texts = orjson.dumps(body, default=leave_placeholder).split(_PLACEHOLDER)
    except orjson.JSONEncodeError:
        raise InvalidRequest("The request is nested too deeply to be passed on") from None
    pieces: list[bytes | FilePiece] = [first_text]
    for upload, text in zip(files, texts, strict=True):
        pieces += (FilePiece(upload, base64=True), text)
    return Content(tuple(pieces))


def _find_boundary(form: Form, boundary_mark: str) -> str:
    boundary = f"gateway-{boundary_mark}"
    texts = [_write_text(value) for _, value in _list_fields(form)]
    while any(boundary in text for text in texts):
        boundary += "-"
    return boundary


def _list_fields(form: Form) -> Iterator[tuple[str, object]]:
    for name, value in form.fields.items():
        is_list = isinstance(value, list)
        for member in value if is_list else (value,):
            if member is not None:
                yield f"{name}[]" if is_list else name, member


def _build_form(form: Form, boundary: str) -> Iterator[bytes | FilePiece]:
    part_start = f"--{boundary}\r\nContent-Disposition: form-data; name="
    for name, value in _list_fields(form):
        yield f'{part_start}"{_escape_quotes(name)}"\r\n\r\n{_write_text(value)}\r\n'.encode(errors="replace")
    for name, upload in form.files:
        disposition = f'{part_start}"{_escape_quotes(name)}"; filename="{_escape_quotes(upload.filename)}"'
        yield f"{disposition}\r\nContent-Type: {_find_media_type(upload)}\r\n\r\n".encode(errors="replace")
        yield FilePiece(upload)
        yield b"\r\n"
    yield f"--{boundary}--\r\n".encode()


def _find_media_type(upload: Upload) -> str:
    return upload.media_type if MEDIA_TYPE.match(upload.media_type) else ANY_TYPE


def _join_bytes(pieces: Iterator[bytes | FilePiece]) -> Iterator[bytes | FilePiece]:
    for is_bytes, group in groupby(pieces, lambda piece: isinstance(piece, bytes)):
        if is_bytes:
            yield b"".join(piece for piece in group if isinstance(piece, bytes))
        else:
            yield from group


def _write_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else exact_json.dumps(value).decode()


def _escape_quotes(name: str) -> str:
    return name.translate(_QUOTED_CHARS)
