"""Images, sounds and files as base64 in JSON, which are replaced by a description."""

import hashlib
import re
from base64 import b64decode
from binascii import Error as NotBase64

MIN_MEDIA_CHARS = 1_024
"""Base64 of at least this length is media, not a name or an id."""
BASE64_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_=-")
_CHUNK_CHARS = 64 * 1024
_BASE64_START = re.compile(r"[A-Za-z0-9+/_-]{256}")
_DATA_URL = re.compile(r"data:([\w/+.-]{1,100})(?:;[\w=.-]{1,100}){0,8};base64,")
_BASE64_RUN = re.compile(r"[A-Za-z0-9+/_=-]*")


def replace_media(text: str) -> str:
    """Return ``text`` with media replaced by their type, if known, their size and their SHA-256.

    Media are long base64: a whole text, or the data in a ``data:`` URL.
    """
    if _BASE64_START.match(text) and (description := _describe_media("", text)) is not None:
        return description
    pieces, position = [], 0
    for match in _DATA_URL.finditer(text):
        if match.start() < position:
            continue
        end = _find_base64_end(text, match.end())
        description = _describe_media(match[1], text[match.end() : end])
        if description is not None:
            pieces += [text[position : match.start()], description]
            position = end
    return "".join([*pieces, text[position:]])


def _find_base64_end(text: str, start: int) -> int:
    """Return the end of the base64 that begins at ``start``. Each step holds the interpreter's lock only briefly."""
    while start < len(text):
        match = _BASE64_RUN.match(text, start, start + _CHUNK_CHARS)
        if match is None or match.end() < min(start + _CHUNK_CHARS, len(text)):
            return start if match is None else match.end()
        start = match.end()
    return start


def _describe_media(media_type: str, base64: str) -> str | None:
    """Return the text that replaces media; None if ``base64`` is not base64, or too short for media."""
    if len(base64) < MIN_MEDIA_CHARS:
        return None
    digest, size = hashlib.sha256(), 0
    for start in range(0, len(base64), _CHUNK_CHARS):
        chunk = base64[start : start + _CHUNK_CHARS]
        if start + _CHUNK_CHARS >= len(base64):
            chunk = chunk.rstrip("=")
            chunk += "=" * (-len(chunk) % 4)
        try:
            data = b64decode(chunk.replace("-", "+").replace("_", "/"), validate=True)
        except (NotBase64, ValueError):
            return None
        digest.update(data)
        size += len(data)
    return f"[media {media_type + ', ' if media_type else ''}{size:,} bytes, SHA-256 {digest.hexdigest()}]"
