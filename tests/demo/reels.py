"""Films as a test sees them: decoded by FFmpeg, to the last bit and with no mercy for what is not quite right."""

import io
from collections.abc import Iterator
from typing import Any

import attrs
import av

Plane = tuple[bytes, ...]
Planes = tuple[Plane, Plane, Plane]


@attrs.frozen
class Film:
    """A film, decoded: every picture as brightness and two colour differences, row by row."""

    width: int
    height: int
    seconds: float
    profile: str
    full_range: bool
    times: tuple[float, ...]
    pictures: tuple[Planes, ...]


def watch(data: bytes) -> Film:
    with av.open(io.BytesIO(data), mode="r") as file:
        stream: Any = file.streams.video[0]
        context = stream.codec_context
        context.options = {"err_detect": "explode"}
        frames: list[Any] = list(file.decode(stream))
        return Film(
            width=context.width,
            height=context.height,
            seconds=float(stream.duration * stream.time_base),
            profile=str(context.profile),
            full_range=context.color_range == 2,
            times=tuple(float(frame.time) for frame in frames),
            pictures=tuple((_rows(frame, 0), _rows(frame, 1), _rows(frame, 2)) for frame in frames),
        )


def boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The outermost boxes of a file."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : at + 8], data[at + 8 : at + size]
        at += size
    assert at == len(data)


def _rows(frame: Any, number: int) -> Plane:
    plane = frame.planes[number]
    whole = bytes(plane)
    return tuple(whole[at : at + plane.width] for at in range(0, plane.line_size * plane.height, plane.line_size))
