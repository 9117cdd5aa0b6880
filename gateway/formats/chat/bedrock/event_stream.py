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
_STRING_TYPE = 7
_VALUE_BYTES_BY_TYPE: Mapping[int, int] = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Size of a header's value by its type: flags, integers, a time, a UUID. Types 6 and 7 have a length prefix."""
_VARIABLE_LENGTH_TYPES = frozenset({6, _STRING_TYPE})
_INVALID_HEADERS_TEXT = "The provider sent an event whose headers cannot be read"


@frozen
class EventMessage:
    """A message of an AWS event stream.

    Attributes:
        headers: the headers with text values.
        size: bytes of the whole message.
    """

    headers: Mapping[str, str]
    payload: bytes
    size: int = attrs.field(default=0, eq=False)


class EventStreamSplitter:
    """Splits a stream into whole messages.

    Attributes:
        noise: total bytes of messages that do not belong to an answer.
    """

    __slots__ = ("_buffer", "_length", "noise")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._length = 0  # length of the incomplete message; 0 if its prelude is incomplete
        self.noise = 0

    @property
    def held_bytes(self) -> int:
        return len(self._buffer)

    def split(self, data: bytes) -> Iterator[EventMessage]:
        """Yield the messages that ``data`` completes. Raises ``ProviderBadResponse`` for an invalid message."""
        buffer = self._buffer
        buffer += data
        while self._length or len(buffer) >= _PRELUDE.size:
            self._length = self._length or _parse_length(buffer)
            if len(buffer) < self._length:
                return
            message = bytes(buffer[: self._length])
            del buffer[: self._length]
            self._length = 0
            yield _parse_message(message)


def _parse_length(buffer: bytearray) -> int:
    message_bytes, header_bytes, checksum = _PRELUDE.unpack_from(buffer)
    if crc32(buffer[:8]) != checksum:
        raise ProviderBadResponse("The provider sent an event whose beginning has a wrong checksum", phase="stream")
    if not _FRAME_BYTES + header_bytes <= message_bytes <= MAX_MESSAGE_BYTES or header_bytes > MAX_HEADER_BYTES:
        raise ProviderBadResponse("The provider sent an event of an impossible length", phase="stream")
    return int(message_bytes)


def _parse_message(message: bytes) -> EventMessage:
    payload_end = len(message) - _CRC.size
    if crc32(memoryview(message)[:payload_end]) != _CRC.unpack_from(message, payload_end)[0]:
        raise ProviderBadResponse("The provider sent an event with a wrong checksum", phase="stream")
    payload_start = _PRELUDE.size + _PRELUDE.unpack_from(message)[1]
    try:
        headers = dict(_parse_headers(message[_PRELUDE.size : payload_start]))
    except (IndexError, UnicodeDecodeError):
        raise ProviderBadResponse(_INVALID_HEADERS_TEXT, phase="stream") from None
    return EventMessage(headers, message[payload_start:payload_end], len(message))


def _parse_headers(raw: bytes) -> Iterator[tuple[str, str]]:
    """Yield the headers with text values. Raises ``IndexError``, ``UnicodeDecodeError`` or ``ProviderBadResponse``."""
    position = 0
    while position < len(raw):
        name_end = position + 1 + raw[position]
        name, kind, position = raw[position + 1 : name_end], raw[name_end], name_end + 1
        if kind in _VARIABLE_LENGTH_TYPES:
            size = raw[position] << 8 | raw[position + 1]
            position += 2
        else:
            size = _VALUE_BYTES_BY_TYPE.get(kind, len(raw))
        if position + size > len(raw):
            raise ProviderBadResponse(_INVALID_HEADERS_TEXT, phase="stream")
        if kind == _STRING_TYPE:
            yield name.decode(), raw[position : position + size].decode()
        position += size
