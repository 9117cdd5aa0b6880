"""The texts of an event stream, whose pieces are in its events: a secret may be split over several events.

The pieces of one text have the same place in their events: ``choices[index 0].delta.content``. They are joined, the
text is redacted, and each mark is put into the piece in which the replaced part begins. All events stay.
"""

import re
from collections.abc import Iterator
from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.formats.redaction.first_pass import has_nothing_to_redact
from gateway.formats.redaction.pieces import redact_pieces
from gateway.formats.redaction.redactor import Redactor
from gateway.formats.redaction.values import redact_nested
from gateway.frozen import quick_frozen

_EVENT_END = re.compile(rb"(?>\r\n|\n|\r){2}")
"""Two ends of lines. The atomic group keeps a carriage return and its newline from counting as two."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
_REPEATED_FIELDS = frozenset(
    {"id", "object", "model", "type", "role", "name", "status", "item_id", "call_id", "tool_call_id", "response_id",
     "finish_reason", "stop_reason", "native_finish_reason", "finishReason", "system_fingerprint", "service_tier",
     "provider", "event", "event_id", "previous_item_id", "conversation_id", "phase", "responseId", "modelVersion",
     "obfuscation", "logprobs", "token"}
)  # fmt: skip
"""Fields with whole values, which events repeat. Joined, they would look like long numbers."""
_PLACE_FIELDS = ("type", "index", "output_index", "content_index", "summary_index", "item_id")
_INNER_PLACE_FIELDS = ("output_index", "content_index", "summary_index", "item_id")
"""Fields of an object that say to which text its other fields belong."""
_PLACE_NAMES, _INNER_PLACE_NAMES = frozenset(_PLACE_FIELDS), frozenset(_INNER_PLACE_FIELDS)
_DATA, _BLANK_LINE = b"data:", b"\n\n"

Place = tuple[Any, ...]
"""Where a text is in its events: the names and positions on the way to it, and the fields that identify the text."""


@attrs.define(eq=False)
class StreamedEvent:
    """One event: its bytes with the blank line, its JSON data or None, and whether the data was changed."""

    raw: bytes
    data: Any
    changed: bool = False

    def build(self) -> bytes:
        """Return the event's bytes; with changed data, without comments and in one line."""
        if not self.changed:
            return self.raw
        lines = [line for line in _LINE_END.split(self.raw) if line and not line.startswith((_DATA, b":"))]
        return b"\n".join([*lines, b"data: " + exact_json.dumps(self.data)]) + b"\n\n"


@quick_frozen
class _Piece:
    """A piece of a text: the event, and the object or list that holds it under ``key``."""

    event: StreamedEvent
    holder: Any
    key: Any


@attrs.define(eq=False)
class StreamText:
    """A text whose pieces are in several events of a stream."""

    place: Place
    pieces: list[_Piece] = attrs.Factory(list)

    @property
    def text(self) -> str:
        return "".join(piece.holder[piece.key] for piece in self.pieces)


def split_events(stream: bytes) -> list[bytes]:
    """Return the events with their blank lines. The last one may be incomplete."""
    ends = _find_blank_lines(stream) if b"\r" not in stream else (match.end() for match in _EVENT_END.finditer(stream))
    events, start = [], 0
    for end in ends:
        events.append(stream[start:end])
        start = end
    if start < len(stream):
        events.append(stream[start:])
    return events


def _find_blank_lines(stream: bytes) -> Iterator[int]:
    # One ``split`` of a long stream would hold the interpreter's lock for too long.
    found = stream.find(_BLANK_LINE)
    while found >= 0:
        end = found + len(_BLANK_LINE)
        yield end
        found = stream.find(_BLANK_LINE, end)


def parse_event(raw: bytes) -> StreamedEvent:
    """Parse one event, whose data may take several lines."""
    is_one_line = raw.endswith(_BLANK_LINE) and raw.find(b"\n") == len(raw) - len(_BLANK_LINE) and b"\r" not in raw
    if is_one_line and raw.startswith(_DATA):
        return StreamedEvent(raw, _parse_data(raw[len(_DATA) :].removeprefix(b" ")))
    lines = [line[len(_DATA) :].removeprefix(b" ") for line in _LINE_END.split(raw) if line.startswith(_DATA)]
    return StreamedEvent(raw, _parse_data(b"\n".join(lines)) if lines else None)


def _parse_data(data: bytes) -> Any:
    try:
        value = exact_json.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict | list) else None


def join_texts(events: list[StreamedEvent]) -> list[StreamText]:
    """Return the texts of a stream, in the order in which they begin. Values that events repeat are left out."""
    texts: dict[Place, StreamText] = {}
    for event in events:
        if event.data is not None:
            _add_strings(event, texts)
    return list(texts.values())


def describe_texts(stream: bytes) -> list[tuple[str, str]]:
    """Return the texts of a stream, each with the names on the way to its pieces: ``choices.0.delta.content``."""
    texts = join_texts([parse_event(raw) for raw in split_events(stream)])
    return [
        (".".join(str(name) for name in text.place if not isinstance(name, tuple)), text.text)
        for text in texts
        if text.text
    ]


def redact_text(text: StreamText, redactor: Redactor) -> None:
    """Redact a text in its pieces. JSON whose values need more redaction moves to the first piece as a whole.

    Raises ``TooMuchWorkError``.
    """
    values = [piece.holder[piece.key] for piece in text.pieces]
    if has_nothing_to_redact("".join(values), redactor, keeps_media=True):
        return
    redacted = redact_pieces(values, redactor)
    joined = "".join(redacted)
    whole = redact_nested(joined, redactor, keeps_media=True)
    if whole != joined:
        redacted = [whole, *[""] * (len(values) - 1)]
    for piece, value, new_value in zip(text.pieces, values, redacted, strict=True):
        if new_value != value:
            piece.holder[piece.key] = new_value
            piece.event.changed = True


def _add_strings(event: StreamedEvent, texts: dict[Place, StreamText]) -> None:
    """Add the texts in an event to the texts of their places, except fields that events repeat."""
    holders: list[tuple[Place, Any]] = [((), event.data)]
    while holders:
        place, holder = holders.pop()
        is_object = isinstance(holder, dict)
        if is_object and not (_INNER_PLACE_NAMES if place else _PLACE_NAMES).isdisjoint(holder):
            place = (*place, *_list_marks(holder, is_root=not place))
        for key, value in holder.items() if is_object else enumerate(holder):
            if isinstance(value, str):
                if key not in _REPEATED_FIELDS:
                    text_place = (*place, key)
                    text = texts.get(text_place)
                    if text is None:
                        text = texts[text_place] = StreamText(text_place)
                    text.pieces.append(_Piece(event, holder, key))
            elif isinstance(value, dict | list) and key not in _REPEATED_FIELDS:
                holders.append(((*place, key if is_object else _get_index(value, key)), value))


def _list_marks(holder: dict[str, Any], *, is_root: bool) -> list[tuple[str, Any]]:
    """Return the fields of ``holder`` that identify the text to which its other fields belong.

    Below the root, ``type`` does not count, because only the first piece of a tool call has one, and ``index`` is
    already part of the place.
    """
    names = _PLACE_FIELDS if is_root else _INNER_PLACE_FIELDS
    return [(name, holder[name]) for name in names if isinstance(holder.get(name), int | str)]


def _get_index(value: Any, position: int) -> int:
    index = value.get("index") if isinstance(value, dict) else None
    return index if isinstance(index, int) else position
