"""Frames: what was framed is read unchanged, and nothing else passes for a frame."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.kept_body import BodyPart
from gateway.storage.bodies.framing import FrameDamaged, build_frame, parse_frame
from gateway.storage.bodies.packing import PackDamaged, pack_parts, unpack_parts

PARTS = st.builds(
    BodyPart,
    kind=st.sampled_from(["request", "answer", "provider_error"]),
    content=st.binary(max_size=200),
    media_type=st.sampled_from(["application/json", "text/event-stream", "ü/\n"]),
    received_bytes=st.integers(0, 2**53),
    channel=st.text("aü-\n", max_size=20),
    status=st.integers(0, 999),
    event_times_ms=st.lists(st.integers(0, 10**7), max_size=5).map(tuple),
)


@given(st.binary(max_size=2000))
def test_a_frame_is_read_as_it_was_written(content: bytes) -> None:
    assert parse_frame(build_frame(content)) == content


@given(st.binary(max_size=300), st.data())
def test_a_part_of_a_frame_is_no_frame(content: bytes, data: st.DataObject) -> None:
    frame = build_frame(content)
    cut = data.draw(st.integers(0, len(frame) - 1))
    for damaged in (frame[:cut], frame[cut + 1 :], frame + b"\0", frame[:cut] + bytes(len(frame) - cut)):
        if damaged != frame:
            with pytest.raises(FrameDamaged):
                parse_frame(damaged)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_changed_bit_is_noticed(content: bytes, data: st.DataObject) -> None:
    frame = bytearray(build_frame(content))
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameDamaged):
        parse_frame(bytes(frame))


@given(st.lists(PARTS, max_size=5))
def test_bodies_are_unpacked_as_they_were_packed(parts: list[BodyPart]) -> None:
    assert unpack_parts(pack_parts(parts)) == parts


@given(st.lists(PARTS, min_size=1, max_size=3), st.data())
def test_incomplete_bodies_are_refused(parts: list[BodyPart], data: st.DataObject) -> None:
    packed = pack_parts(parts)
    with pytest.raises(PackDamaged):
        unpack_parts(packed[: data.draw(st.integers(0, len(packed) - 1))])
