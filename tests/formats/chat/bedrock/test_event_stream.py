"""AWS event streams: the messages that AWS publishes as examples, every cut of them, and damaged ones."""

from binascii import crc32
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ProviderBadResponse
from gateway.formats.chat.bedrock.event_stream import MAX_MESSAGE_BYTES, EventMessage, EventStreamSplitter
from tests.support.converse_cassettes import encode
from tests.support.table_rows import table_rows

# Of botocore's tests (tests/unit/test_eventstream.py), which has them from the specification.
EMPTY = bytes.fromhex("000000100000000005c248eb7d98c8ff")
PAYLOAD = b"\x00\x00\x00\x1d\x00\x00\x00\x00\xfdR\x8cZ{'foo':'bar'}\xc3e96"
WITH_TEXT = bytes.fromhex("0000003d0000002007fd83960c636f6e74656e742d747970650700106170706c69636174696f6e2f6a736f6e")
WITH_TEXT += b"{'foo':'bar'}\x8d\x9c\x08\xb1"
OF_ALL_TYPES = (
    b"\x00\x00\x00\x62\x00\x00\x00\x52\x03\xb5\xcb\x9c\x010\x00\x011\x01\x012\x02\x02\x013\x03\x00\x03"
    b"\x014\x04\x00\x00\x00\x04\x015\x05\x00\x00\x00\x00\x00\x00\x00\x05\x016\x06\x00\x05bytes\x017\x07\x00\x04utf8"
    b"\x018\x08\x00\x00\x00\x00\x00\x00\x00\x08\x019\x090123456789abcdef\x63\x35\x36\x71"
)
KNOWN = [
    (EMPTY, EventMessage({}, b"")),
    (PAYLOAD, EventMessage({}, b"{'foo':'bar'}")),
    (WITH_TEXT, EventMessage({"content-type": "application/json"}, b"{'foo':'bar'}")),
    (OF_ALL_TYPES, EventMessage({"7": "utf8"}, b"")),
]


@table_rows(("raw", "message"), KNOWN)
def test_a_published_message_is_read(raw: bytes, message: EventMessage) -> None:
    assert list(EventStreamSplitter().split(raw)) == [message]


@given(cuts=st.lists(st.integers(1, 40), min_size=1))
def test_however_a_stream_is_cut_the_messages_are_the_same(cuts: list[int]) -> None:
    raw = b"".join(one for one, _ in KNOWN) * 2
    splitter, found, at = EventStreamSplitter(), list[EventMessage](), 0
    for size in cuts * len(raw):
        found += splitter.split(raw[at : at + size])
        at += size
    assert found == [message for _, message in KNOWN] * 2
    assert splitter.held_bytes == 0


def test_an_incomplete_message_is_held() -> None:
    splitter = EventStreamSplitter()
    assert list(splitter.split(WITH_TEXT[:-1])) == []
    assert splitter.held_bytes == len(WITH_TEXT) - 1


@given(at=st.integers(0, len(WITH_TEXT) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_an_error_or_leaves_the_message_incomplete(at: int, bit: int) -> None:
    raw = bytearray(WITH_TEXT)
    raw[at] ^= 1 << bit
    with pytest.raises(ProviderBadResponse):
        list(EventStreamSplitter().split(bytes(raw)))


@table_rows("length", [15, MAX_MESSAGE_BYTES + 1])
def test_an_impossible_length_is_an_error_before_its_bytes_have_come(length: int) -> None:

    prelude = pack(">II", length, 0)
    with pytest.raises(ProviderBadResponse, match="impossible length"):
        list(EventStreamSplitter().split(prelude + pack(">I", crc32(prelude))))


@given(raw=st.binary(max_size=200))
def test_headers_of_any_bytes_are_read_or_an_error(raw: bytes) -> None:

    prelude = pack(">II", 16 + len(raw), len(raw))
    message = prelude + pack(">I", crc32(prelude)) + raw
    try:
        (found,) = EventStreamSplitter().split(message + pack(">I", crc32(message)))
    except ProviderBadResponse:
        return
    assert found.payload == b""


def test_what_the_tests_encode_is_what_aws_encodes() -> None:
    assert encode({"content-type": "application/json"}, b"{'foo':'bar'}") == WITH_TEXT
