"""Parse AWS event streams: binary messages with headers, a payload and two checksums.

Layout of a message: total length, length of the headers, CRC-32 of both; headers; payload; CRC-32 of everything before.
Sources: docs.aws.amazon.com/AmazonS3/latest/API/RESTSelectObjectAppendix.html and
smithy.io/2.0/aws/amazon-eventstream.html.
"""

from binascii import crc32
from collections.abc import Iterator, Mapping
from struct import Struct

import attrs

from gateway.errors import ProviderBadResponse
from gateway.frozen import frozen

MEDIA_TYPE = "application/vnd.amazon.eventstream"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_HEADER_BYTES = 128 * 1024
_PRELUDE = Struct(">III")
_CRC = Struct(">I")
_FRAME_BYTES = _PRELUDE.size + _CRC.size
_TEXT = 7
_FIXED_BYTES: Mapping[int, int] = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Size of a header's value by its type: flags, integers, a time, a UUID. Types 6 and 7 have a length prefix."""
_SIZED = frozenset({6, _TEXT})
_CUT = "The provider sent an event whose headers cannot be read"


@frozen
class EventMessage:
    """One message. ``headers``: the headers with text values. ``size``: bytes of the whole message."""

    headers: Mapping[str, str]
    payload: bytes
    size: int = attrs.field(default=0, eq=False)


class EventStreamSplitter:
    """Splits a stream into whole messages. ``noise``: total bytes of messages that do not belong to an answer."""

    __slots__ = ("_held", "_length", "noise")

    def __init__(self) -> None:
        self._held = bytearray()
        self._length = 0  # length of the incomplete message; 0 if its prelude is incomplete
        self.noise = 0

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def split(self, data: bytes) -> Iterator[EventMessage]:
        """Yield the messages that ``data`` completes. Raises ``ProviderBadResponse`` for an invalid message."""
        held = self._held
        held += data
        while self._length or len(held) >= _PRELUDE.size:
            self._length = self._length or _parse_length(held)
            if len(held) < self._length:
                return
            message = bytes(held[: self._length])
            del held[: self._length]
            self._length = 0
            yield _parse_message(message)


def _parse_length(held: bytearray) -> int:
    total, of_headers, checksum = _PRELUDE.unpack_from(held)
    if crc32(held[:8]) != checksum:
        raise ProviderBadResponse("The provider sent an event whose beginning has a wrong checksum", phase="stream")
    if not _FRAME_BYTES + of_headers <= total <= MAX_MESSAGE_BYTES or of_headers > MAX_HEADER_BYTES:
        raise ProviderBadResponse("The provider sent an event of an impossible length", phase="stream")
    return int(total)


def _parse_message(message: bytes) -> EventMessage:
    end = len(message) - _CRC.size
    if crc32(memoryview(message)[:end]) != _CRC.unpack_from(message, end)[0]:
        raise ProviderBadResponse("The provider sent an event with a wrong checksum", phase="stream")
    begin = _PRELUDE.size + _PRELUDE.unpack_from(message)[1]
    try:
        headers = dict(_parse_headers(message[_PRELUDE.size : begin]))
    except (IndexError, UnicodeDecodeError):
        raise ProviderBadResponse(_CUT, phase="stream") from None
    return EventMessage(headers, message[begin:end], len(message))


def _parse_headers(raw: bytes) -> Iterator[tuple[str, str]]:
    """Yield the headers with text values. Raises ``IndexError``, ``UnicodeDecodeError`` or ``ProviderBadResponse``."""
    at = 0
    while at < len(raw):
        name_end = at + 1 + raw[at]
        name, kind, at = raw[at + 1 : name_end], raw[name_end], name_end + 1
        if kind in _SIZED:
            size = raw[at] << 8 | raw[at + 1]
            at += 2
        else:
            size = _FIXED_BYTES.get(kind, len(raw))
        if at + size > len(raw):
            raise ProviderBadResponse(_CUT, phase="stream")
        if kind == _TEXT:
            yield name.decode(), raw[at : at + size].decode()
        at += size
