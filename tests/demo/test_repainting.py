"""Pictures that were sent are painted over where it was asked for, and nowhere else."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.demo.drawing import Raster
from gateway.demo.png import PngError, PngReader
from gateway.demo.repainting import SIZES, choose_size, read_canvas, read_mask, repaint
from tests.demo import pixels


def reader(data: bytes) -> PngReader:
    return PngReader(io.BytesIO(data))


def shown(width: int, height: int) -> bytes:
    """A picture in which every pixel says where it is."""
    rows = (b"\0" + b"".join(bytes([x, y, 7]) for x in range(width)) for y in range(height))
    return pixels.write(width, height, b"".join(rows))


def places(raster: Raster) -> list[list[tuple[int, int]]]:
    return [[(row[at], row[at + 1]) for at in range(0, len(row), 3)] for row in raster.rows]


def test_a_picture_of_the_size_asked_stays_as_it_is() -> None:
    assert places(read_canvas(reader(shown(5, 4)), 5, 4)) == [[(x, y) for x in range(5)] for y in range(4)]


def test_a_picture_twice_as_large_has_every_pixel_twice() -> None:
    assert places(read_canvas(reader(shown(2, 2)), 4, 4)) == [[(0, y), (0, y), (1, y), (1, y)] for y in (0, 0, 1, 1)]


def test_of_another_shape_the_middle_is_kept() -> None:
    assert places(read_canvas(reader(shown(8, 2)), 4, 2)) == [[(2, y), (3, y), (4, y), (5, y)] for y in range(2)]
    assert places(read_canvas(reader(shown(2, 8)), 2, 4)) == [[(0, y), (1, y)] for y in range(2, 6)]


@given(st.integers(1, 30), st.integers(1, 30), st.integers(2, 30), st.integers(2, 30))
def test_any_picture_fits_any_size(width: int, height: int, wide: int, high: int) -> None:
    raster = read_canvas(reader(shown(width, height)), wide, high)
    assert [len(row) for row in raster.rows] == [3 * wide] * high
    seen = places(raster)
    assert all(0 <= x < width and 0 <= y < height for row in seen for x, y in row)
    assert all(row == sorted(row) for row in seen)


def test_a_mask_is_open_where_it_is_more_than_half_transparent() -> None:
    row = b"".join(bytes([9, 9, 9, alpha]) for alpha in (0, 127, 128, 255))
    assert read_mask(reader(pixels.write(4, 1, b"\0" + row, colour=6)), 4, 1) == (b"\xff\xff\0\0",)


def test_only_what_is_open_is_painted_over() -> None:
    canvas, drawing = Raster(2, 1, (b"abcdef",)), Raster(2, 1, (b"ABCDEF",))
    assert repaint(canvas, (b"\0\xff",), drawing).rows == (b"abcDEF",)


def test_without_a_mask_there_is_half_of_each() -> None:
    canvas, drawing = Raster(1, 1, (b"\0\x10\xff",)), Raster(1, 1, (b"\x10\0\xfd",))
    assert repaint(canvas, None, drawing).rows == (b"\x08\x08\xfe",)


@pytest.mark.parametrize(
    ("width", "height", "chosen"),
    [
        (256, 256, (256, 256)),
        (1536, 1024, (1536, 1024)),
        (300, 300, (1024, 1024)),
        (4000, 3000, (1536, 1024)),
        (600, 1300, (1024, 1536)),
        (1, 4096, (1024, 1536)),
    ],
)
def test_the_size_is_the_pictures_own_or_the_nearest_shape(width: int, height: int, chosen: tuple[int, int]) -> None:
    assert choose_size(width, height) == chosen
    assert chosen in SIZES


def test_a_broken_picture_is_refused() -> None:
    with pytest.raises(PngError):
        read_canvas(reader(shown(8, 8)[:-30]), 8, 8)
