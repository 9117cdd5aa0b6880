"""Segment files: frames one after another, in files of limited size. A single thread uses them at a time."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from gateway.frozen import frozen
from gateway.storage.bodies.framing import FrameDamaged, build_frame, parse_frame
from gateway.storage.data_folder import sync_folder

MAX_SEGMENT_BYTES = 64 * 1024 * 1024
MAX_SEGMENT_AGE_S = 3_600.0
"""How long frames are appended to one segment: expired bodies are removed with their whole segment."""
_SUFFIX, _DRAFT_SUFFIX = ".segment", ".draft"
_OWNER_ONLY_MODE = 0o600
_ZEROS = bytes(1024 * 1024)


@frozen
class Location:
    """Where a frame is: the number of its segment, the offset of its first byte, and its length in bytes."""

    segment: int
    position: int
    bytes: int


class Segments:
    """The segments in ``folder``. Methods raise ``OSError`` if the disk fails. ``clock`` returns monotonic seconds.

    A process never appends to a segment of an earlier one: after a power failure a segment may be shorter than the
    index says.
    """

    def __init__(self, folder: Path, clock: Callable[[], float], max_bytes: int = MAX_SEGMENT_BYTES) -> None:
        self._folder = folder
        self._clock = clock
        self._max_bytes = max_bytes
        self._descriptor = -1
        self._started_at = 0.0
        self._last = 0
        self._sizes: dict[int, int] = {}
        self._erasures: dict[int, int] = {}

    @property
    def total_bytes(self) -> int:
        return sum(self._sizes.values())

    def list_numbers(self) -> list[int]:
        """Return the numbers of all segments, the oldest first."""
        return sorted(self._sizes)

    def has(self, number: int) -> bool:
        """Return whether a segment is in the folder."""
        return number in self._sizes

    def count_erasures(self, number: int) -> int:
        """Return how often frames of a segment were erased since its folder was opened."""
        return self._erasures.get(number, 0)

    def list_finished(self, max_age_s: float) -> list[tuple[int, Path, int]]:
        """Return the number, path and size of every segment that gets no more frames, the oldest first.

        The current segment is ended first if it is older than ``max_age_s``.
        """
        if self._descriptor >= 0 and self._clock() - self._started_at >= max_age_s:
            self.close()
        current = self._last if self._descriptor >= 0 else -1
        numbers = [number for number in sorted(self._sizes) if number != current]
        return [(number, self._find_path(number), self._sizes[number]) for number in numbers]

    def remove(self, number: int) -> None:
        """Remove a segment, durably."""
        self._remove(number)
        sync_folder(self._folder)

    def exist(self) -> bool:
        """Return whether the folder has segments. May be called before ``open``."""
        return any(self._folder.glob(f"*{_SUFFIX}"))

    def open(self, ends: Mapping[int, int], last: int = 0) -> list[int]:
        """Remove drafts, segments that are not in ``ends``, and what follows the last known frame of the others.

        ``ends`` has the end of this frame in bytes for each segment of the index. Numbers up to ``last`` are not used
        again. Return the segments of ``ends`` that do not exist.
        """
        for draft in self._folder.glob(f"*{_DRAFT_SUFFIX}"):
            draft.unlink(missing_ok=True)
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if path.stem.isdigit():
                self._sizes[int(path.stem)] = path.stat().st_size
        self._last = max((last, *self._sizes, *ends))
        for number, size in list(self._sizes.items()):
            end = ends.get(number, 0)
            if end == 0:
                self._remove(number)
            elif size > end:
                os.truncate(self._find_path(number), end)
                self._sizes[number] = end
        return sorted(ends.keys() - self._sizes.keys())

    def append(self, content: bytes) -> Location:
        """Append a frame with ``content``, and return its place.

        If that fails, what was written of the frame is cut off, or its segment gets no more frames.
        """
        frame = build_frame(content)
        if self._descriptor < 0 or self._is_full(len(frame)):
            self._start_segment()
        position = self._sizes[self._last]
        try:
            _write_all(self._descriptor, frame, position)
        except OSError:
            try:
                os.ftruncate(self._descriptor, position)
            except OSError:
                self.close()  # the next frame begins another segment, whatever is left of this one
            raise
        self._sizes[self._last] = position + len(frame)
        return Location(self._last, position, len(frame))

    def read(self, location: Location) -> bytes:
        """Return the content of a frame. Raises ``FrameDamaged``, also if it was erased or its segment is missing."""
        try:
            descriptor = os.open(self._find_path(location.segment), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FrameDamaged("the segment of a frame is missing") from None
        try:
            return parse_frame(os.pread(descriptor, location.bytes, location.position))
        finally:
            os.close(descriptor)

    def erase(self, locations: Iterable[Location]) -> None:
        """Overwrite frames with zeros, durably. A frame of a segment that does not exist is gone already."""
        ordered = sorted(locations, key=lambda location: (location.segment, location.position))
        for number, group in groupby(ordered, key=lambda location: location.segment):
            if self.has(number):
                self._erasures[number] = self.count_erasures(number) + 1
            with suppress(FileNotFoundError):
                overwrite_frames(self._find_path(number), group)

    def replace(self, number: int, frames: Iterable[tuple[Location, bytes]]) -> None:
        """Replace the contents of frames by others of the same size, all of them or none, durably."""
        if number == self._last:
            self.close()
        path = self._find_path(number)
        content = bytearray(path.read_bytes())
        for location, frame_content in frames:
            content[location.position : location.position + location.bytes] = build_frame(frame_content)
        draft = path.with_suffix(_DRAFT_SUFFIX)
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, _OWNER_ONLY_MODE)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(self._folder)

    def remove_unused(self, used: Iterable[int]) -> int:
        """Remove every segment but ``used``; return how many."""
        unused = self._sizes.keys() - set(used)
        for number in unused:
            self._remove(number)
        if unused:
            sync_folder(self._folder)
        return len(unused)

    def close(self) -> None:
        """End the current segment: the next frame begins another one."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _is_full(self, frame_bytes: int) -> bool:
        size = self._sizes[self._last]
        is_old = self._clock() - self._started_at > MAX_SEGMENT_AGE_S
        return size > 0 and (is_old or size + frame_bytes > self._max_bytes)

    def _start_segment(self) -> None:
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        number = self._last + 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(self._find_path(number), flags, _OWNER_ONLY_MODE)
        self._last, self._sizes[number], self._started_at = number, 0, self._clock()

    def _remove(self, number: int) -> None:
        if number == self._last:
            self.close()
        self._find_path(number).unlink(missing_ok=True)
        del self._sizes[number]
        self._erasures.pop(number, None)

    def _find_path(self, number: int) -> Path:
        return find_segment(self._folder, number)


def find_segment(folder: Path, number: int) -> Path:
    """Return the path of a segment in ``folder``."""
    return folder / f"{number:08d}{_SUFFIX}"


def overwrite_frames(path: Path, locations: Iterable[Location]) -> None:
    """Overwrite frames of one segment with zeros, durably. Raises ``OSError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for location in locations:
            _write_zeros(descriptor, location)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written


def _write_zeros(descriptor: int, location: Location) -> None:
    position, end = location.position, location.position + location.bytes
    while position < end:
        position += os.pwrite(descriptor, _ZEROS[: end - position], position)
