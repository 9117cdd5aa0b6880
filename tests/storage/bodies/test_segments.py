"""Segment files: appended to, cut at the next start, erased, removed."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.storage.bodies.framing import FrameDamaged
from gateway.storage.bodies.segments import MAX_SEGMENT_AGE_S, Location, Segments
from tests.support.body_stores import Clock


def open_segments(folder: Path, ends: dict[int, int], max_bytes: int = 1000) -> Segments:
    segments = Segments(folder, Clock(), max_bytes)
    assert segments.open(ends) == []
    return segments


def find_end(location: Location) -> int:
    return location.position + location.bytes


def test_frames_fill_one_segment_after_another(tmp_path: Path) -> None:
    segments = open_segments(tmp_path / "bodies", {})
    places = {content: segments.append(content) for content in (b"a" * 400, b"b" * 400, b"c" * 400, b"d" * 5000, b"e")}
    assert [place.segment for place in places.values()] == [1, 1, 2, 3, 4]
    assert all(segments.read(place) == content for content, place in places.items())
    assert segments.total_bytes == sum(place.bytes for place in places.values())
    files = sorted((tmp_path / "bodies").iterdir())
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert sum(path.stat().st_size for path in files) == segments.total_bytes


def test_an_old_segment_gets_no_more_frames(tmp_path: Path) -> None:
    clock = Clock()
    segments = Segments(tmp_path, clock, 1000)
    segments.open({})
    first = segments.append(b"a")
    clock.now_s += MAX_SEGMENT_AGE_S + 1
    assert [first.segment, segments.append(b"b").segment] == [1, 2]


@pytest.mark.parametrize("torn", [0, 1, 11, 12, 15])
def test_what_the_index_does_not_know_is_cut_off(tmp_path: Path, torn: int) -> None:
    segments = open_segments(tmp_path, {})
    known = segments.append(b"known")
    segments.append(b"unknown")
    segments.close()
    path = tmp_path / "00000001.segment"
    with path.open("r+b") as file:
        file.truncate(find_end(known) + torn)
    again = open_segments(tmp_path, {1: find_end(known)})
    assert path.stat().st_size == find_end(known)
    assert again.read(known) == b"known"
    assert again.append(b"next").segment == 2


def test_a_segment_without_rows_is_removed_and_a_missing_one_reported(tmp_path: Path) -> None:
    segments = open_segments(tmp_path, {}, max_bytes=1)
    first, second = segments.append(b"one"), segments.append(b"two")
    segments.close()
    again = Segments(tmp_path, Clock())
    assert again.open({second.segment: find_end(second), 9: 100}) == [9]
    assert [path.name for path in tmp_path.iterdir()] == ["00000002.segment"]
    with pytest.raises(FrameDamaged, match="missing"):
        again.read(first)
    assert again.append(b"three").segment == 10


def test_an_erased_frame_is_zeros_and_its_neighbours_stay(tmp_path: Path) -> None:
    segments = open_segments(tmp_path, {})
    places = [segments.append(content * 100) for content in (b"a", b"b", b"c")]
    segments.erase([places[1], Location(7, 0, 10)])
    assert [segments.read(places[0]), segments.read(places[2])] == [b"a" * 100, b"c" * 100]
    with pytest.raises(FrameDamaged, match="mark"):
        segments.read(places[1])
    assert b"b" * 2 not in (tmp_path / "00000001.segment").read_bytes()


def test_unused_segments_are_removed_with_the_current_one(tmp_path: Path) -> None:
    segments = open_segments(tmp_path, {}, max_bytes=1)
    for content in (b"a", b"b", b"c"):
        segments.append(content)
    assert segments.remove_unused([2]) == 2
    assert segments.list_numbers() == [2]
    place = segments.append(b"d")
    assert (place.segment, segments.read(place)) == (4, b"d")


def test_a_frame_that_finds_no_room_leaves_nothing(tmp_path: Path) -> None:
    segments = open_segments(tmp_path, {}, max_bytes=10**6)
    first = segments.append(b"a" * 100)
    with limit_file_size(300), pytest.raises(OSError, match="large"):
        segments.append(b"b" * 1000)
    assert (tmp_path / "00000001.segment").stat().st_size == first.bytes
    place = segments.append(b"c" * 100)
    assert (place.segment, place.position, segments.read(place)) == (1, first.bytes, b"c" * 100)


@contextlib.contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """A file grows to so many bytes and no further, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
