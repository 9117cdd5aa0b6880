"""The gate of the convention's stream of pictures; see ``gate.Gate``. And streams of what came whole.

Shapes: the convention's OpenAPI document, ``ImageGenStreamEvent`` and ``ImageEditStreamEvent``: partial pictures, and
a ``completed`` event for each picture that is done, with what it used. The end mark is not always sent.
"""

import re

import attrs
import orjson

from gateway.dialects import sse
from gateway.dialects.gate import PassingGate
from gateway.dialects.openai_chat import DONE, DONE_EVENT
from gateway.dialects.openai_error import Secrets
from gateway.dialects.openai_images import estimate_usage, read_images_answer, read_images_usage
from gateway.dialects.pictures_answer import write_completed
from gateway.dialects.safety import find_block, read_words
from gateway.domain.call import Call
from gateway.domain.fault import UpstreamError, UpstreamFault
from gateway.domain.usage import NO_USAGE, Usage

__all__ = ("ImagesGate", "write_completed", "write_whole")

_PARTIAL = ".partial_image"
_COMPLETED = ".completed"
_TYPE = re.compile(rb'"type"\s*:\s*"((?:image_generation|image_edit)\.[a-z_]{1,32})"')
_NAME = re.compile(rb"(?:^|\n)event: ?([a-z_.]{1,64})\r?\n")
_HEAD_BYTES = 128
"""Of an event: its name is in them, and mostly the type in its data."""


class _LongEvents(sse.EventSplitter):
    """The same for events of several MB: a stream without CR, as all of them are, is looked through at C's speed."""

    def __init__(self) -> None:
        super().__init__()
        self._plain = True

    def split(self, data: bytes) -> list[bytes]:
        self._plain = self._plain and b"\r" not in data
        if not self._plain:
            return super().split(data)
        if self._pieces and b"\n\n" not in self._tail[-1:] + data:
            self._keep(data)
            return []
        data = self.take() + data
        events, start = [], 0
        while (end := data.find(b"\n\n", start)) >= 0:
            events.append(data[start : end + 2])
            start = end + 2
        if start < len(data):
            self._keep(data[start:])
        return events


class ImagesGate(PassingGate):
    """What of a provider's stream may leave: whole events, until as many pictures are done as were asked for.

    A partial picture is not looked into. The end mark is written by us, right behind the last picture: whatever else
    the provider sends is dropped.
    """

    __slots__ = ("_call", "_completed", "_failed", "_partial", "_usage")

    def __init__(self, call: Call, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._splitter = _LongEvents()
        self._call = call
        self._partial = False
        self._completed = 0
        self._failed = False
        self._usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        """A piece in, what may leave out."""
        return self._feed_slowly(data)

    def _pass(self, event: bytes) -> bytes:
        if not self.closed and self._begun and b'"error"' not in event and _find_kind(event).endswith(_PARTIAL):
            self.events += 1
            self._partial = True
            return event
        return super()._pass(event)

    def _judge(self, event: bytes, payload: bytes) -> bytes:
        if payload.startswith(DONE):
            return self._end(b"")
        try:
            value = orjson.loads(payload)
        except orjson.JSONDecodeError:
            value = None
        kind = _read_kind(event, value)
        if kind == "error" or (isinstance(value, dict) and value.get("error")):
            self.fault = _read_failure(value, self._secrets)
            return b""
        self._partial |= kind.endswith(_PARTIAL)
        self.events += kind.endswith((_PARTIAL, _COMPLETED))
        return self._note_completed(event, value) if kind.endswith(_COMPLETED) else event

    def _note_completed(self, event: bytes, value: object) -> bytes:
        self._completed += 1
        used = read_images_usage(value.get("usage")) if isinstance(value, dict) else None
        if used is not None:
            self._usage = _add(self._usage or Usage(source="upstream"), used)
        return self._end(event) if self._completed >= self._call.choices else event

    def _end(self, event: bytes) -> bytes:
        if self._completed:
            self.ended = True
            return event + DONE_EVENT
        self.fault = UpstreamError("The provider's stream ended without a picture", phase="stream")
        return b""

    def finish(self) -> bytes:
        """The transport has ended; the end mark, where pictures are done. Raises an ``UpstreamFault`` otherwise."""
        if self.ended:
            return b""
        rest = self._splitter.take().strip()
        if self.fault is None and self._completed and (not rest or (sse.read_data(rest) or b"").startswith(DONE)):
            return self._end(b"")
        self._failed = True
        raise self.fault or UpstreamError("The provider's stream ended before it was complete", phase="stream")

    def read_usage(self) -> Usage:
        """The provider's word, else an estimate.

        A picture that failed costs nothing. One whose caller left when it had seen a part of it does: it is painted,
        and charged for.
        """
        if self._completed:
            used = self._usage or estimate_usage(self._call, self._completed)
            return attrs.evolve(used, images=self._completed)
        if not self._partial or self._failed or self.fault is not None:
            return NO_USAGE
        return estimate_usage(self._call, 1)


def _find_kind(event: bytes) -> str:
    """The type of an event, told without reading it: by its name, else by the first that looks like one.

    In a string of JSON a quotation mark has a backslash before it: no text can say what ``_TYPE`` looks for.
    """
    name = _NAME.search(event[:_HEAD_BYTES])
    if name is not None:
        return name[1].decode()
    start = event.find(b'"type"')
    while start >= 0:
        found = _TYPE.match(event, start)
        if found is not None:
            return found[1].decode()
        start = event.find(b'"type"', start + 1)
    return ""


def _read_kind(event: bytes, value: object) -> str:
    """The same of an event that has been read: its data's word is what clients go by."""
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else _find_kind(event)


def _read_failure(value: object, secrets: Secrets) -> UpstreamFault:
    block = find_block(value, secrets)
    if block is not None:
        return block
    words = read_words(value, secrets) or "The provider gave no reason"
    return UpstreamError(f"The provider reported an error: {words}", phase="stream")


def _add(one: Usage, other: Usage) -> Usage:
    return attrs.evolve(
        one,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
    )


def write_whole(raw: bytes, call: Call, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """A whole answer to a call for a stream -> the stream that says the same, and what was used; for ``EitherGate``.

    Raises ``ImageBlocked``, or ``UpstreamError`` where a picture is there as an address only.
    """
    pictures = read_images_answer(raw, call, secrets)
    created = pictures.told.get("created")
    return write_completed(pictures, call, created if isinstance(created, int) else 0), pictures.usage
