"""Files and uploads in the OpenAI API format: ``OpenAIFile``, ``Upload`` and ``UploadPart``, and their requests."""

import re
from collections.abc import Sequence
from typing import Any

from gateway.domain.client_file import (
    MAX_EXPIRY_S,
    MIN_EXPIRY_S,
    PURPOSES,
    ClientFile,
    ClientUpload,
    NewFile,
    UploadPart,
    UploadStatus,
    is_client_id,
)
from gateway.domain.upload import Upload
from gateway.errors import InvalidRequest
from gateway.formats.wire.form import FieldTypes, ReceivedForm, check_files, parse_fields
from gateway.formats.wire.request_body import Body
from gateway.frozen import frozen

MAX_PARTS = 10_000
_ANCHOR_FIELD, _SECONDS_FIELD = "expires_after[anchor]", "expires_after[seconds]"
_MAX_NAME_CHARS = 255
_MAX_TYPE_CHARS = 127
_MD5_PATTERN = re.compile(r"[0-9a-fA-F]{32}\Z")
_FORM_TYPES = FieldTypes(integers=(_SECONDS_FIELD,))


@frozen
class NewUpload:
    """A checked ``CreateUploadRequest``."""

    file: NewFile
    mime_type: str
    bytes: int


@frozen
class CompletedUpload:
    """A checked ``CompleteUploadRequest``.

    Attributes:
        md5: the MD5 checksum of the whole file, in lower case; None if the client gave none.
    """

    part_ids: tuple[str, ...]
    md5: str | None


def parse_file_form(form: ReceivedForm) -> NewFile:
    """Parse the form of a new file. Raises ``InvalidRequest``."""
    upload = find_file(form, "file")
    body = parse_fields(form, _FORM_TYPES)
    expiry_fields = {
        name: body[key] for name, key in (("anchor", _ANCHOR_FIELD), ("seconds", _SECONDS_FIELD)) if key in body
    }
    return NewFile(upload.filename[-_MAX_NAME_CHARS:], _parse_purpose(body), parse_expires_after(expiry_fields or None))


def find_file(form: ReceivedForm, field: str) -> Upload:
    """Return the file in ``field``, which must be the form's only file. Raises ``InvalidRequest``."""
    check_files(form, (field,))
    if len(form.files) != 1:
        raise InvalidRequest(f"'{field}' must be a file", param=field)
    return form.files[0]


def parse_upload(body: Body) -> NewUpload:
    """Parse a ``CreateUploadRequest``. Raises ``InvalidRequest``."""
    filename, mime_type = (
        _parse_text(body, "filename", _MAX_NAME_CHARS),
        _parse_text(body, "mime_type", _MAX_TYPE_CHARS),
    )
    size = body.get("bytes")
    if type(size) is not int or size < 1:
        raise InvalidRequest("'bytes' must be a whole number above 0", param="bytes")
    return NewUpload(
        NewFile(filename, _parse_purpose(body), parse_expires_after(body.get("expires_after"))), mime_type, size
    )


def parse_completion(body: Body) -> CompletedUpload:
    """Parse a ``CompleteUploadRequest``. Raises ``InvalidRequest``."""
    part_ids, md5 = body.get("part_ids"), body.get("md5")
    if not isinstance(part_ids, list) or not 0 < len(part_ids) <= MAX_PARTS:
        raise InvalidRequest(f"'part_ids' must be a list of 1 to {MAX_PARTS} ids", param="part_ids")
    if not all(isinstance(part_id, str) and is_client_id(part_id, "part_") for part_id in part_ids):
        raise InvalidRequest("'part_ids' must have ids of parts only", param="part_ids")
    if len({*part_ids}) != len(part_ids):
        raise InvalidRequest("'part_ids' has a part more than once", param="part_ids")
    if md5 is not None and not (isinstance(md5, str) and _MD5_PATTERN.match(md5)):
        raise InvalidRequest("'md5' must be 32 hexadecimal digits", param="md5")
    return CompletedUpload(tuple(part_ids), None if md5 is None else md5.lower())


def parse_expires_after(value: object, param: str = "expires_after") -> int | None:
    """Return the seconds of an ``expires_after`` object; None if absent. Raises ``InvalidRequest``."""
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("anchor") != "created_at":
        raise InvalidRequest(f"'{param}.anchor' must be 'created_at'", param=f"{param}.anchor")
    seconds = value.get("seconds")
    if type(seconds) is not int or not MIN_EXPIRY_S <= seconds <= MAX_EXPIRY_S:
        text = f"'{param}.seconds' must be a whole number from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}"
        raise InvalidRequest(text, param=f"{param}.seconds")
    return seconds


def _parse_purpose(body: Body) -> str:
    purpose = body.get("purpose")
    if purpose not in PURPOSES:
        raise InvalidRequest(f"'purpose' must be one of {', '.join(PURPOSES)}", param="purpose")
    return str(purpose)


def _parse_text(body: Body, name: str, maximum: int) -> str:
    text = body.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= maximum or not text.isprintable():
        raise InvalidRequest(f"'{name}' must be a text of 1 to {maximum} printable characters", param=name)
    return text


def build_file(file: ClientFile) -> Body:
    """Build the file object."""
    body: Body = {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_ms // 1000,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }
    return body if file.expires_ms is None else {**body, "expires_at": file.expires_ms // 1000}


def build_deleted_file(file_id: str) -> Body:
    """Build the answer to a deletion."""
    return {"id": file_id, "object": "file", "deleted": True}


def build_upload(upload: ClientUpload, status: UploadStatus, file: ClientFile | None = None) -> Body:
    """Build the upload object. ``file`` is the completed file, or None before completion."""
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": upload.created_ms // 1000,
        "expires_at": upload.expires_ms // 1000,
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": status,
        "file": None if file is None else build_file(file),
    }


def build_part(part: UploadPart) -> Body:
    """Build the part object."""
    return {"id": part.id, "object": "upload.part", "created_at": part.created_ms // 1000, "upload_id": part.upload_id}


def build_list(items: Sequence[dict[str, Any]], *, has_more: bool) -> Body:
    """Build one page of a list of files or batches."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
