"""Redaction of whole bodies: JSON, event streams, and other texts.

All functions that redact raise ``TooMuchWorkError`` if it would take too long. In JSON they replace media by a
description, unless ``keeps_media``.
"""

import attrs
import orjson

from gateway.domain import exact_json
from gateway.domain.kept_body import BodyPart
from gateway.formats.redaction.event_texts import join_texts, parse_event, redact_text, split_events
from gateway.formats.redaction.first_pass import has_nothing_to_redact
from gateway.formats.redaction.left_out import leave_out
from gateway.formats.redaction.redactor import Redactor
from gateway.formats.redaction.values import redact_values
from gateway.formats.redaction.work import Work

EVENT_STREAM = "text/event-stream"


def redact_part(part: BodyPart, redactor: Redactor, max_bytes: int, *, keeps_media: bool = False) -> BodyPart:
    """Return a body as it may be kept: redacted, without media unless ``keeps_media``, and cut to ``max_bytes``.

    Raises ``TooMuchWorkError`` if the body may not be kept, since its redaction would take too long.
    """
    redactor.work = Work()
    if part.media_type.startswith(EVENT_STREAM):
        content = redact_stream(part.content, redactor, keeps_media=keeps_media)
    else:
        content = redact_content(part.content, redactor, keeps_media=keeps_media)
    is_redacted, is_cut = content != part.content, len(content) > max_bytes
    if is_redacted and redactor.left_out:
        is_redacted = _differs(content, part.content)
    return attrs.evolve(part, content=cut_middle(content, max_bytes), redacted=is_redacted, cut=is_cut)


def _differs(content: bytes, other_content: bytes) -> bool:
    try:
        return exact_json.dumps(exact_json.loads(content)) != exact_json.dumps(exact_json.loads(other_content))
    except orjson.JSONDecodeError:
        return True


def redact_content(content: bytes, redactor: Redactor, *, keeps_media: bool = False) -> bytes:
    """Redact JSON or another text. Its bytes stay the same if nothing is found and no field is left out."""
    if has_nothing_to_redact(content.decode(errors="replace"), redactor, keeps_media=keeps_media):
        return content
    try:
        value = exact_json.loads(content)
    except orjson.JSONDecodeError:
        return _redact_bytes(content, redactor)
    root = [value]
    if (
        redactor.left_out
    ):  # written anew in any case: of a name that occurs twice, the first value is in the bytes alone
        leave_out(value, redactor.left_out)
        content = exact_json.dumps(value)
    if redact_values(root, redactor, keeps_media=keeps_media):
        content = exact_json.dumps(root[0])
    return _redact_bytes(content, redactor)


def redact_stream(stream: bytes, redactor: Redactor, *, keeps_media: bool = False) -> bytes:
    """Redact an event stream: each value of its events, and the texts whose pieces are in several events."""
    events = [parse_event(raw) for raw in split_events(stream)]
    if redactor.left_out:
        for event in events:
            leave_out(event.data, redactor.left_out)
            event.changed = event.data is not None
    for text in join_texts(events):
        redact_text(text, redactor)
    is_clean = has_nothing_to_redact(stream.decode(errors="replace"), redactor, keeps_media=keeps_media)
    if is_clean and not any(event.changed for event in events):
        return stream
    for event in events:  # a changed event may have a whole text now, with media that were in pieces
        if event.data is not None and (event.changed or not is_clean):
            event.changed = redact_values([event.data], redactor, keeps_media=keeps_media) or event.changed
    return _redact_bytes(b"".join(event.build() for event in events), redactor)


def _redact_bytes(content: bytes, redactor: Redactor) -> bytes:
    """Redact bytes as one text; return ``content`` itself if nothing is found.

    JSON whose values have been redacted one by one needs this, too: parsing hides a field that occurs twice, and some
    secrets are recognized only by the name of their field.
    """
    text = content.decode(errors="replace")
    redacted = redactor.redact(text)
    return content if redacted == text else redacted.encode()


def cut_middle(content: bytes, max_bytes: int) -> bytes:
    """Return ``content``, of which at most ``max_bytes`` remain: a short note replaces the middle of a longer one."""
    left_out = len(content) - max_bytes
    if left_out <= 0:
        return content
    head, tail = content[: max_bytes // 2], content[len(content) - (max_bytes - max_bytes // 2) :]
    head, tail = head.decode(errors="ignore").encode(), tail.decode(errors="ignore").encode()  # no part of a character
    return head + f"\n[… {left_out:,} bytes left out …]\n".encode() + tail
