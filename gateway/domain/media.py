"""Kept media: the type of a file, and its signed link.

A link is unguessable, signed and temporary: ``/media/<id>?expires=<Unix s>&signature=<hex>``.
"""

import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import attrs

from gateway.frozen import frozen

MEDIA_PATH = "/media"
SNIFF_BYTES = 4096
"""The bytes read to detect a file's type. 64 are enough, except for an SVG after a long comment."""
EXTENSIONS: Mapping[str, str] = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/avif": "avif",
    "image/heic": "heic",
    "image/svg+xml": "svg",
    "video/mp4": "mp4",
    "video/webm": "webm",
    "video/quicktime": "mov",
    "audio/mp4": "m4a",
    "audio/mpeg": "mp3",
    "audio/wav": "wav",
    "audio/ogg": "ogg",
    "audio/flac": "flac",
}
"""The media types that are kept, and their file extensions."""

_SIGNATURES: Sequence[tuple[bytes, str]] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
)
_RIFF_TYPES: Mapping[bytes, str] = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_TYPES_BY_BRAND: Mapping[bytes, str] = {
    b"avif": "image/avif",
    b"avis": "image/avif",
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"M4A ": "audio/mp4",
    b"M4V ": "video/mp4",
    b"isom": "video/mp4",
    b"iso2": "video/mp4",
    b"iso4": "video/mp4",
    b"iso5": "video/mp4",
    b"iso6": "video/mp4",
    b"mp41": "video/mp4",
    b"mp42": "video/mp4",
    b"avc1": "video/mp4",
    b"dash": "video/mp4",
    b"qt  ": "video/quicktime",
}
"""Brands of ISO base media files: https://mp4ra.org/registered-types/brands."""
_MAX_BRANDS_BYTES = 256
_EBML_SIGNATURE = b"\x1a\x45\xdf\xa3"
_WEBM_MARK = b"\x42\x82\x84webm"
"""The DocType element with its four letters; Matroska's has eight (RFC 8794, 11.2.6)."""
_EBML_HEADER_BYTES = 64
# Comments, a declaration and a document type may stand before the one tag. The repetition is possessive: what has been
# read one way is never read another, so the time grows with the bytes, whatever they are.
_SVG_PATTERN = re.compile(
    rb"(?:\xef\xbb\xbf)?+"
    rb"(?:\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE\s++svg[^\[>]*+(?:\[[^\]]*+\]\s*+)?+>)*+"
    rb"<svg[\s/>]",
    re.DOTALL,
)
_TYPES_BY_EXTENSION: Mapping[str, str] = {extension: media_type for media_type, extension in EXTENSIONS.items()}
_ID_PATTERN = re.compile(r"[0-9a-f]{32}\.(?P<extension>[a-z0-9]{3,4})", re.ASCII)
_EXPIRES_PATTERN = re.compile(r"[1-9][0-9]{0,11}", re.ASCII)
"""Unix seconds: exactly one spelling of each, up to the year 33658."""


def sniff_media(head: bytes) -> str | None:
    """Return the media type of a file by its first bytes; None if files of that type are not kept."""
    for signature, media_type in _SIGNATURES:
        if head.startswith(signature):
            return media_type
    if head.startswith(b"RIFF"):
        return _RIFF_TYPES.get(head[8:12])
    if head[4:8] == b"ftyp":
        return _sniff_brands(head)
    if head.startswith(_EBML_SIGNATURE):
        return "video/webm" if _WEBM_MARK in head[:_EBML_HEADER_BYTES] else None
    if _is_mp3_frame(head):
        return "audio/mpeg"
    return "image/svg+xml" if _SVG_PATTERN.match(head, 0, SNIFF_BYTES) else None


def sniff_image(head: bytes) -> str | None:
    """Return the media type of an image by its first bytes; None if the file is not a known image."""
    media_type = sniff_media(head)
    return media_type if media_type is not None and media_type.startswith("image/") else None


def _sniff_brands(head: bytes) -> str | None:
    """Return the type by the major brand, else by the first known compatible brand (ISO/IEC 14496-12, 4.3).

    Return None if no brand is known.
    """
    end = min(int.from_bytes(head[:4], "big"), len(head), _MAX_BRANDS_BYTES)
    for start in (8, *range(16, end - 3, 4)):
        if (media_type := _TYPES_BY_BRAND.get(head[start : start + 4])) is not None:
            return media_type
    return "image/heic" if head[8:12] == b"mif1" else None


def _is_mp3_frame(head: bytes) -> bool:
    """Return whether ``head`` starts with a Layer III header that has a bit rate and a sample rate."""
    if len(head) < 3 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:  # noqa: PLR2004 - 11 bits of sync, then the layer
        return False
    return head[1] & 0x18 != 0x08 and head[2] >> 4 != 0x0F and head[2] & 0x0C != 0x0C  # noqa: PLR2004 - all reserved


def find_media_type(media_id: str) -> str | None:
    """Return the media type encoded in an id; None if the id is invalid."""
    match = _ID_PATTERN.fullmatch(media_id)
    return _TYPES_BY_EXTENSION.get(match["extension"]) if match else None


@frozen
class Media:
    """One stored file of a folder. ``stored_s`` is Unix time."""

    id: str
    media_type: str
    size: int
    stored_s: float
    path: Path


@frozen
class RemoteMedia:
    """One stored file of a bucket.

    ``read`` returns the bytes from a start to an end (exclusive). It raises ``NotFound`` and ``StoreUnavailable``.
    """

    id: str
    media_type: str
    size: int
    stored_s: float
    read: Callable[[int, int], Awaitable[bytes]] = attrs.field(eq=False, repr=False)


AnyMedia = Media | RemoteMedia


class UnknownMedia(ValueError):
    """Bytes of no type that is kept."""


@frozen
class MediaRules:
    """How long media are kept, in seconds, and how many bytes at most."""

    max_age_s: float
    max_bytes: int


@frozen
class CleanupResult:
    """The result of a cleanup: deleted files and their bytes; and the bytes left."""

    files: int = 0
    freed_bytes: int = 0
    left_bytes: int = 0


def sign_link(key: bytes, media_id: str, expires_s: int) -> str:
    """Return the signature of a link, hexadecimal."""
    signed_text = f"{media_id}:{expires_s}".encode(errors="surrogatepass")
    return hmac.new(key, signed_text, sha256).hexdigest()


def build_link(key: bytes, media_id: str, expires_s: int) -> str:
    """Return path and query of a link that is valid until ``expires_s`` (Unix s)."""
    return f"{MEDIA_PATH}/{media_id}?expires={expires_s}&signature={sign_link(key, media_id, expires_s)}"


def check_link(key: bytes, media_id: str, *, expires: str, signature: str, now_s: float) -> bool:
    """Return whether the gateway signed the link and it is still valid."""
    if not _EXPIRES_PATTERN.fullmatch(expires):
        return False
    expected_signature = sign_link(key, media_id, int(expires))
    return hmac.compare_digest(signature.encode(errors="replace"), expected_signature.encode()) and now_s < int(expires)
