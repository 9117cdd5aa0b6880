"""The beginning and the end of a passed stream: a buffer keeps both, and they are parsed once, after the last piece.

The end of a chat stream gives the usage, the finished choices and a sample of the text.
"""

import re
from collections.abc import Iterator
from typing import Any

from gateway.domain.usage import Usage, attach_tier, parse_usage
from gateway.formats.wire import sse
from gateway.formats.wire.json_values import list_objects, loads_or_none
from gateway.frozen import frozen

HEAD_BYTES = 4 * 1024
TAIL_BYTES = 16 * 1024
SLACK_BYTES = 2 * 1024
"""Bytes kept beyond the tail before trimming, to avoid a trim for every piece."""
_MAX_TAIL_BYTES = TAIL_BYTES + SLACK_BYTES
DONE_MARK = b"[DONE]"
_END_MARK_PATTERN = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]")
_MAX_MARK_PREFIX_BYTES = 7
_USAGE_KEY = b'"usage"'
_MAX_EVENT_END_BYTES = 4
_CONTENT_KEYS = ("content", "reasoning_content", "reasoning", "refusal")


class HeadTailBuffer:
    """Keeps at least the first 4 KiB and the last 16 KiB of a stream, in whole pieces.

    Attributes:
        pieces: the tail, and up to ``SLACK_BYTES`` of the data before the tail.
        room: bytes that fit before the next trim.
    """

    __slots__ = ("_dropped_bytes", "_head", "_head_room", "pieces", "room")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.room = _MAX_TAIL_BYTES
        self._head: list[bytes] = []
        self._head_room = HEAD_BYTES
        self._dropped_bytes = 0

    def feed(self, data: bytes) -> None:
        self.pieces.append(data)
        self.room -= len(data)
        if self.room < 0:
            self.trim()

    def trim(self) -> None:
        pieces, count, excess_bytes = self.pieces, 0, SLACK_BYTES - self.room
        for piece in pieces:
            if len(piece) > excess_bytes:
                break
            excess_bytes -= len(piece)
            count += 1
            if self._head_room > 0:
                self._head.append(piece)
                self._head_room -= len(piece)
        del pieces[:count]
        dropped_bytes = SLACK_BYTES - self.room - excess_bytes
        self._dropped_bytes += dropped_bytes
        self.room += dropped_bytes

    @property
    def size(self) -> int:
        return self._dropped_bytes + _MAX_TAIL_BYTES - self.room

    @property
    def head(self) -> bytes:
        pieces, room = list(self._head), self._head_room
        for piece in self.pieces:
            if room <= 0:
                break
            pieces.append(piece)
            room -= len(piece)
        return b"".join(pieces)

    @property
    def tail(self) -> bytes:
        self.trim()
        return b"".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        self.trim()
        return not self._dropped_bytes


@frozen
class StreamTail:
    """The end of a stream.

    Attributes:
        finished_count: number of finished choices.
        sample_event_count: number of events in the sample.
        sample: a part of the stream's text.
    """

    finished_count: int
    sample_event_count: int
    sample: str


EMPTY_TAIL = StreamTail(0, 0, "")


def find_last_usage(raw: bytes) -> Usage | None:
    """Return the last plausible usage in the end of a stream, up to the end mark; None if there is none."""
    end = _find_end_mark(raw)
    while (position := raw.rfind(_USAGE_KEY, 0, end)) >= 0:
        start = max(raw.rfind(b"\n\n", 0, position), raw.rfind(b"\r\n\r\n", 0, position), 0)
        for value in reversed(list(_parse_chunks(raw[start : end + _MAX_EVENT_END_BYTES]))):
            usage = parse_usage(value.get("usage"), completes=True)
            if usage is not None:
                tier = value.get("service_tier")
                return attach_tier(usage, tier) if tier and tier != "default" else usage
        end = start  # "usage": null, or in an error event: look for an earlier report
    return None


def _find_end_mark(raw: bytes) -> int:
    """Return the offset of the end mark; the length of ``raw`` if there is none. Marks inside a text are ignored."""
    position = raw.find(DONE_MARK)
    while position >= 0:  # searching only with the pattern would take ten times as long
        match = _END_MARK_PATTERN.search(raw, max(position - _MAX_MARK_PREFIX_BYTES, 0), position + len(DONE_MARK))
        if match:
            return match.start()
        position = raw.find(DONE_MARK, position + 1)
    return len(raw)


def parse_tail(raw: bytes) -> StreamTail:
    """Parse the complete events of ``raw`` up to the end mark, skipping a truncated first or last event."""
    finished_choices: set[int] = set()
    event_count, texts = 0, []
    for value in _parse_chunks(raw):
        event_count += 1
        for choice in list_objects(value.get("choices")):
            if choice.get("finish_reason") is not None:
                index = choice.get("index")
                finished_choices.add(index if isinstance(index, int) else 0)
            texts.append(parse_choice(choice, "delta"))
    return StreamTail(len(finished_choices), event_count, "".join(texts))


def _parse_chunks(raw: bytes) -> Iterator[dict[str, Any]]:
    for event in split_events(raw):
        payload = sse.parse_data(event)
        if not payload:
            continue
        if payload.startswith(DONE_MARK):
            return
        value = parse_chunk(payload)
        if value is not None and not value.get("error") and isinstance(value.get("choices"), list):
            yield value


def split_events(raw: bytes) -> list[bytes]:
    """Return the complete events in a part of a stream; empty if the part is one unfinished event."""
    try:
        return sse.SseSplitter().split(raw)
    except sse.EventTooLong:
        return []


def parse_chunk(payload: bytes) -> dict[str, Any] | None:
    """Return the JSON object in an event's data; None if there is no object."""
    value = loads_or_none(payload)
    return value if isinstance(value, dict) else None


def parse_choice(choice: dict[str, Any], param: str) -> str:
    """Return the text of a choice, from its field ``param`` (delta or message) or its field ``text``.

    Reasoning and tool calls are included. A text that is in several fields counts once.
    """
    delta = choice.get(param)
    if not isinstance(delta, dict):
        delta = {}
    texts = [choice.get("text"), *dict.fromkeys(str(delta.get(key) or "") for key in _CONTENT_KEYS)]
    for call in list_objects(delta.get("tool_calls")):
        function = call.get("function")
        texts += [function.get("name"), function.get("arguments")] if isinstance(function, dict) else []
    return "".join(text for text in texts if isinstance(text, str))
