"""Build image and document blocks (``ImageBlockParam``, ``DocumentBlockParam``) from the common chat model."""

import base64
import binascii
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.chat.model import MediaPart

_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_HEAD_CHARS = 24
"""Characters of base64 to decode: 18 bytes, more than any file signature below."""


def build_media_block(part: MediaPart) -> dict[str, Any]:
    """Build the block for ``part``, without cache control. Raises ``InvalidRequest`` if no block can express it."""
    part = _split_data_url(part)
    match part.kind:
        case "image":
            return {"type": "image", "source": _build_image_source(part)}
        case "file":
            block: dict[str, Any] = {"type": "document", "source": _build_document_source(part)}
            return block | {"title": part.name} if part.name else block
        case "audio":
            raise InvalidRequest("This provider accepts text, images and files, but no audio", param=part.param)


def takes_media(part: MediaPart) -> bool:
    """Return whether ``part`` can be sent as a block."""
    try:
        build_media_block(part)
    except InvalidRequest:
        return False
    return True


def _split_data_url(part: MediaPart) -> MediaPart:
    """Return ``part`` with the content of its ``data:`` URL. Some clients put such a URL into ``data``.

    A part without such a URL is returned unchanged. Raises ``InvalidRequest`` if the URL has no base64.
    """
    for url in (part.url, part.data):
        if url is None or url[:5].lower() != "data:":
            continue
        url_prefix, separator, data = url[5:].partition(",")
        if not separator or not url_prefix.lower().endswith(";base64"):
            raise InvalidRequest("A data: URL must hold base64", param=part.param)
        media_type = url_prefix.partition(";")[0].lower() or part.media_type
        return MediaPart(part.kind, media_type=media_type, data=data, name=part.name, param=part.param)
    return part


def _build_image_source(part: MediaPart) -> dict[str, Any]:
    if part.data is None:
        return _build_url_source(part)
    # The provider rejects an image whose media type does not match its content.
    standard_type = "image/jpeg" if part.media_type == "image/jpg" else part.media_type
    media_type = _detect_image_type(part.data) or standard_type
    if media_type not in _IMAGE_TYPES:
        raise InvalidRequest("An image must be PNG, JPEG, GIF or WebP for this provider", param="messages")
    return {"type": "base64", "media_type": media_type, "data": part.data}


def _build_document_source(part: MediaPart) -> dict[str, Any]:
    if part.data is None:
        return _build_url_source(part)
    media_type = (part.media_type or "").partition(";")[0].strip().lower()
    if media_type == "application/pdf" or _decode_base64(part.data[:_HEAD_CHARS]).startswith(b"%PDF-"):
        return {"type": "base64", "media_type": "application/pdf", "data": part.data}
    if media_type.startswith("text/"):
        try:
            text = _decode_base64(part.data).decode()
        except UnicodeDecodeError:
            text = ""
        if not text.strip():
            raise InvalidRequest("A text file must hold UTF-8 in base64", param=part.param)
        return {"type": "text", "media_type": "text/plain", "data": text}
    raise InvalidRequest("This provider accepts only PDF and text files", param=part.param)


def _build_url_source(part: MediaPart) -> dict[str, Any]:
    if not part.url:
        raise InvalidRequest("An image or a file has neither data nor an address", param=part.param)
    return {"type": "url", "url": part.url}


def _detect_image_type(data: str) -> str | None:
    head = _decode_base64(data[:_HEAD_CHARS])
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if head.startswith(b"RIFF") and head[8:12] == b"WEBP" else None


def _decode_base64(data: str) -> bytes:
    try:
        return base64.b64decode(data + "=" * (-len(data) % 4))
    except (binascii.Error, ValueError):
        return b""
