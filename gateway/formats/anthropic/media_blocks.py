"""A picture or a file of the hub -> Anthropic's image or document block.

Shapes: Anthropic's documentation, "Images and vision" and "PDF support", and the types ``ImageBlockParam`` and
``DocumentBlockParam`` of its Python library.
"""

import base64
import binascii
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.chat import MediaPart

_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_HEAD = 24
"""Characters of base64 that hold the first 18 bytes, more than the signatures below need."""


def build_matter(blob: MediaPart) -> dict[str, Any]:
    """The block, without its cache mark. Raises ``InvalidRequest`` for sound, and for files that are no PDF or text."""
    blob = _split_data_url(blob)
    match blob.kind:
        case "image":
            return {"type": "image", "source": _build_image(blob)}
        case "file":
            block: dict[str, Any] = {"type": "document", "source": _build_document(blob)}
            return block | {"title": blob.name} if blob.name else block
        case "audio":
            raise InvalidRequest("This provider takes no sound, only text, pictures and files", param="messages")


def _split_data_url(blob: MediaPart) -> MediaPart:
    """A ``data:`` URL as what it holds; any other blob as it is. Also in ``data``, where some clients put one."""
    for text in (blob.url, blob.data):
        if text is None or text[:5].lower() != "data:":
            continue
        head, comma, data = text[5:].partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise InvalidRequest("A data: URL must hold base64", param="messages")
        media_type = head.partition(";")[0].lower() or blob.media_type
        return MediaPart(blob.kind, media_type=media_type, data=data, name=blob.name)
    return blob


def _build_image(blob: MediaPart) -> dict[str, Any]:
    if blob.data is None:
        return _build_url(blob)
    # The provider compares the two and refuses a picture that is called what it is not.
    stated = "image/jpeg" if blob.media_type == "image/jpg" else blob.media_type
    media_type = _sniff(blob.data) or stated
    if media_type not in _IMAGES:
        raise InvalidRequest("A picture must be PNG, JPEG, GIF or WebP for this provider", param="messages")
    return {"type": "base64", "media_type": media_type, "data": blob.data}


def _build_document(blob: MediaPart) -> dict[str, Any]:
    if blob.data is None:
        return _build_url(blob)
    media_type = (blob.media_type or "").partition(";")[0].strip().lower()
    if media_type == "application/pdf" or _decode(blob.data[:_HEAD]).startswith(b"%PDF-"):
        return {"type": "base64", "media_type": "application/pdf", "data": blob.data}
    if media_type.startswith("text/"):
        try:
            text = _decode(blob.data).decode()
        except UnicodeDecodeError:
            text = ""
        if not text.strip():
            raise InvalidRequest("A text file must hold UTF-8 in base64", param="messages")
        return {"type": "text", "media_type": "text/plain", "data": text}
    raise InvalidRequest("A file must be a PDF or a text for this provider", param="messages")


def _build_url(blob: MediaPart) -> dict[str, Any]:
    if not blob.url:
        raise InvalidRequest("A picture or a file has neither data nor an address", param="messages")
    return {"type": "url", "url": blob.url}


def _sniff(data: str) -> str | None:
    """What a picture says of itself in its first bytes."""
    head = _decode(data[:_HEAD])
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if head.startswith(b"RIFF") and head[8:12] == b"WEBP" else None


def _decode(data: str) -> bytes:
    """The bytes of base64; none where it is no base64."""
    try:
        return base64.b64decode(data + "=" * (-len(data) % 4))
    except (binascii.Error, ValueError):
        return b""
