"""Redaction of whole bodies: JSON, event streams, and other texts."""

import hashlib
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Sequence
from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.domain.kept_body import BodyPart
from gateway.formats.redaction.event_texts import StreamedEvent, join_texts, parse_event, redact_text, split_events
from gateway.formats.redaction.redactor import Redactor
from gateway.formats.redaction.work import Work

EVENT_STREAM = "text/event-stream"
_MIN_MEDIA_CHARS = 1_024
"""Base64 of at least this length is media, not a name or an id."""
_CHUNK_CHARS = 64 * 1024
_BASE64_START = re.compile(r"[A-Za-z0-9+/_-]{256}")
_DATA_URL = re.compile(r"data:([\w/+.-]{1,100})(?:;[\w=.-]{1,100}){0,8};base64,")
_NAMED_FOR_SECRET = re.compile(rb"(?:pass|secret|key|token|credential)[a-z_]*\"[ ]*:", re.IGNORECASE)
_BASE64_RUN = re.compile(r"[A-Za-z0-9+/_=-]*")


def redact_part(part: BodyPart, redactor: Redactor, max_bytes: int, *, keeps_media: bool = False) -> BodyPart:
    """Return a body as it may be kept: redacted, without media, and cut to ``max_bytes``.

    Raises ``TooMuchWorkError`` if the body may not be kept, since its redaction would take too long.
    """
    redactor.work = Work()
    if part.media_type.startswith(EVENT_STREAM):
        content = redact_stream(part.content, redactor, keeps_media=keeps_media)
    else:
        content = redact_content(part.content, redactor, keeps_media=keeps_media)
    return attrs.evolve(part, content=cut_middle(content, max_bytes))


def redact_content(content: bytes, redactor: Redactor, *, keeps_media: bool = False) -> bytes:
    """Redact JSON, unchanged byte by byte if nothing is found in it, or another text."""
    try:
        value = exact_json.loads(content)
    except orjson.JSONDecodeError:
        return _redact_bytes(content, redactor)
    root = [value]
    if _redact_values(root, redactor, keeps_media=keeps_media):
        content = exact_json.dumps(root[0])
    return _redact_bytes(content, redactor)


def _has_plain_values(event: StreamedEvent) -> bool:
    """Return whether an event's values stand in its bytes as they are, and none is media or named for a secret.

    Then a search of the bytes is a search of the values.
    """
    raw = event.raw
    return len(raw) < _MIN_MEDIA_CHARS and b"\\" not in raw and _NAMED_FOR_SECRET.search(raw) is None


def redact_stream(stream: bytes, redactor: Redactor, *, keeps_media: bool = False) -> bytes:
    """Redact an event stream: each value of its events, and the texts that its events bring in pieces."""
    events = [parse_event(raw) for raw in split_events(stream)]
    for text in join_texts(events):
        redact_text(text, redactor)
    pieces = []
    is_clean = not redactor.find(stream.decode(errors="replace"))
    for event in events:
        if event.data is not None and not (is_clean and _has_plain_values(event)):
            event.changed = _redact_values([event.data], redactor, keeps_media=keeps_media) or event.changed
        pieces.append(event.build())
    return _redact_bytes(b"".join(pieces), redactor)


def _redact_bytes(content: bytes, redactor: Redactor) -> bytes:
    """Redact bytes as one text, unchanged if nothing is found.

    JSON needs that, too: a field may occur twice, and a secret may be recognized by the name of its field.
    """
    text = content.decode(errors="replace")
    redacted = redactor.redact(text)
    return content if redacted == text else redacted.encode()


def cut_middle(content: bytes, max_bytes: int) -> bytes:
    """Return ``content`` of at most ``max_bytes``, without its middle if it is longer; a note says so."""
    left_out = len(content) - max_bytes
    if left_out <= 0:
        return content
    head, tail = content[: max_bytes // 2], content[len(content) - (max_bytes - max_bytes // 2) :]
    head, tail = head.decode(errors="ignore").encode(), tail.decode(errors="ignore").encode()  # no part of a character
    return head + f"\n[… {left_out:,} bytes left out …]\n".encode() + tail


def _redact_values(root: list[Any], redactor: Redactor, *, keeps_media: bool) -> bool:
    """Redact every text in ``root``, which holds a JSON value, and the names of fields. Return whether it changed."""
    changed = False
    stack: list[Any] = [root]
    holder: Any
    while stack:
        holder = stack.pop()
        items: Sequence[tuple[Any, Any]] = list(holder.items() if isinstance(holder, dict) else enumerate(holder))
        names_changed = False
        for key, value in items:
            names_changed = names_changed or (isinstance(key, str) and redactor.redact(key) != key)
            if isinstance(value, dict | list):
                stack.append(value)
                continue
            new_value = _redact_value(key, value, redactor, keeps_media=keeps_media)
            if new_value is not value:
                holder[key] = new_value
                changed = True
        if names_changed:
            fields = {redactor.redact(key): value for key, value in holder.items()}
            holder.clear()
            holder.update(fields)
            changed = True
    return changed


def _redact_value(key: Any, value: Any, redactor: Redactor, *, keeps_media: bool) -> Any:
    if isinstance(value, str):
        text = value if keeps_media or len(value) < _MIN_MEDIA_CHARS else replace_media(value)
        redacted = redactor.redact_field(key, text) if isinstance(key, str) else redactor.redact(text)
        return value if redacted == value else redacted
    if isinstance(value, int) and not isinstance(value, bool):
        return redactor.redact_number(key if isinstance(key, str) else "", str(value)) or value
    return value


def replace_media(text: str) -> str:
    """Return ``text`` with base64 data replaced by its type, its size and its SHA-256."""
    if _BASE64_START.match(text):
        return _describe_media("", text) or text
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
    """Return the end of the base64 that begins at ``start``, in steps that do not hold the interpreter's lock long."""
    while start < len(text):
        match = _BASE64_RUN.match(text, start, start + _CHUNK_CHARS)
        if match is None or match.end() < min(start + _CHUNK_CHARS, len(text)):
            return start if match is None else match.end()
        start = match.end()
    return start


def _describe_media(media_type: str, base64: str) -> str | None:
    """Return what is kept of media; None if ``base64`` is no base64, or too short for media."""
    if len(base64) < _MIN_MEDIA_CHARS:
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
