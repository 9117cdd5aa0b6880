"""The PNG reader takes what the specification allows, and refuses everything else without harm."""

import contextlib
import io
import struct
import tracemalloc
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.demo.png import MAX_SIDE, PngError, PngReader, write_png
from tests.demo import pixels

SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
SMALL = pixels.plain(3, 2, b"\x01\x02\x03\x04", colour=6)


def read(data: bytes) -> list[bytes]:
    return list(PngReader(io.BytesIO(data)).read_rows())


def filtered(kind: int, row: bytes, above: bytes, step: int) -> bytes:
    """A row as the specification's section 9.2 filters it, byte by byte."""
    out = bytearray([kind])
    for at, value in enumerate(row):
        left = row[at - step] if at >= step else 0
        corner = above[at - step] if at >= step else 0
        up = above[at]
        estimate = left + up - corner
        nearest = min((left, up, corner), key=lambda one: abs(estimate - one))
        out.append(value - (0, left, up, (left + up) // 2, nearest)[kind] & 255)
    return bytes(out)


def pack(rows: list[bytes], kinds: list[int], step: int) -> bytes:
    above = [bytes(len(rows[0])), *rows]
    return b"".join(filtered(kind, row, up, step) for kind, (up, row) in zip(kinds, pairwise(above), strict=True))


@st.composite
def pictures(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A PNG with eight bits a sample, filtered at random, and the samples it was made of."""
    colour = draw(st.sampled_from(sorted(SAMPLES)))
    width, height = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    step = SAMPLES[colour]
    rows = [draw(st.binary(min_size=width * step, max_size=width * step)) for _ in range(height)]
    kinds = [draw(st.integers(0, 4)) for _ in range(height)]
    extra = [(b"PLTE", bytes(range(9)))] if colour == 3 else []
    pieces = draw(st.integers(1, 4))
    return pixels.write(width, height, pack(rows, kinds, step), colour=colour, extra=extra, pieces=pieces), rows


@given(pictures())
def test_every_filter_of_every_kind_is_undone(picture: tuple[bytes, list[bytes]]) -> None:
    data, rows = picture
    assert read(data) == rows


@pytest.mark.parametrize(
    ("depth", "packed", "samples"),
    [
        (1, b"\xb0", bytes([255, 0, 255, 255])),
        (2, b"\x1b", bytes([0, 85, 170, 255])),
        (4, b"\x0f\x8a", bytes([0, 255, 136, 170])),
        (16, b"\x01\xff\x02\x00\x80\x00\xff\x00", bytes([1, 2, 128, 255])),
    ],
)
def test_other_depths_are_spread_over_a_byte(depth: int, packed: bytes, samples: bytes) -> None:
    assert read(pixels.write(4, 1, b"\0" + packed, colour=0, depth=depth)) == [samples]


def test_a_short_index_stays_what_it_is() -> None:
    data = pixels.write(5, 1, b"\0\x1b\x40", colour=3, depth=2, extra=[(b"PLTE", bytes(12))])
    assert read(data) == [bytes([0, 1, 2, 3, 1])]


@pytest.mark.parametrize(
    ("colour", "row", "extra", "rgb", "alpha"),
    [
        (0, b"\x05\x09", [], b"\5\5\5\t\t\t", b"\xff\xff"),
        (0, b"\x05\x09", [(b"tRNS", b"\0\x09")], b"\5\5\5\t\t\t", b"\xff\0"),
        (2, b"abcdef", [(b"tRNS", b"\0a\0b\0c")], b"abcdef", b"\xff\xff"),
        (3, b"\1\2", [(b"PLTE", b"abcdef"), (b"tRNS", b"\x10\x20")], b"def\0\0\0", b"\x20\xff"),
        (4, b"\5\6\7\x08", [], b"\5\5\5\7\7\7", b"\6\x08"),
        (6, b"abcdefgh", [], b"abcefg", b"dh"),
    ],
)
def test_a_row_has_colours_and_is_more_or_less_opaque(
    colour: int, row: bytes, extra: list[tuple[bytes, bytes]], rgb: bytes, alpha: bytes
) -> None:
    reader = PngReader(io.BytesIO(pixels.write(2, 1, b"\0" + row, colour=colour, extra=extra)))
    (read_row,) = reader.read_rows()
    assert (reader.to_rgb(read_row), reader.to_alpha(read_row)) == (rgb, alpha)
    assert reader.head.has_alpha == (alpha != b"\xff\xff")


def test_rows_can_be_read_again() -> None:
    reader = PngReader(io.BytesIO(SMALL))
    assert list(reader.read_rows()) == list(reader.read_rows()) == [b"\1\2\3\4" * 3] * 2


def test_rows_that_nobody_waits_for_are_not_read() -> None:
    waits = iter([False, False, True])
    rows = PngReader(io.BytesIO(pixels.plain(2, 9, b"abc")), is_over=lambda: next(waits)).read_rows()
    assert [next(rows), next(rows)] == [b"abcabc"] * 2
    with pytest.raises(PngError, match="for nobody"):
        next(rows)


def test_what_is_written_can_be_read_by_anybody() -> None:
    rows = [bytes(range(at, at + 9)) for at in (0, 100)]
    data = write_png(3, 2, rows, note="a café")
    assert read(data) == rows
    picture = pixels.read(data)
    assert (picture.rows, picture.texts) == (tuple(rows), {b"Description": "a café".encode()})


def test_a_picture_that_is_cut_anywhere_is_refused_or_whole() -> None:
    """What comes behind the last row is not asked for."""
    for cut in range(len(SMALL)):
        rows: object = None
        try:
            rows = read(SMALL[:cut])
        except PngError:
            assert cut < len(SMALL) - 4
        assert rows is None or cut >= SMALL.index(b"IEND") - 8, cut


def test_a_damaged_byte_is_noticed() -> None:
    for at in range(len(SMALL) - 12):
        with pytest.raises(PngError):
            pytest.fail(f"{at}: {read(SMALL[:at] + bytes([SMALL[at] ^ 0x20]) + SMALL[at + 1 :])}")


def head(*values: int) -> bytes:
    return pixels.SIGNATURE + pixels.chunk(b"IHDR", struct.pack(">IIBBBBB", *values)) + SMALL[33:]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "not a PNG"),
        (b"GIF89a", "not a PNG"),
        (pixels.SIGNATURE + SMALL[33:], "say what it is"),
        (pixels.SIGNATURE + SMALL[8:33] + pixels.chunk(b"IEND", b""), "no pixels"),
        (head(0, 2, 8, 6, 0, 0, 0), "does not exist"),
        (head(3, 2, 7, 6, 0, 0, 0), "does not exist"),
        (head(3, 2, 4, 2, 0, 0, 0), "does not exist"),
        (head(3, 2, 8, 5, 0, 0, 0), "does not exist"),
        (head(3, 2, 8, 6, 1, 0, 0), "does not exist"),
        (head(3, 2, 8, 6, 0, 0, 2), "does not exist"),
        (head(3, 2, 8, 6, 0, 0, 1), "interlaced"),
        (head(3, 2, 8, 3, 0, 0, 0), "palette"),
        (head(MAX_SIDE + 1, 2, 8, 6, 0, 0, 0), "larger than 4096x4096"),
        (head(2, 0xFFFFFFFF, 8, 6, 0, 0, 0), "larger than 4096x4096"),
        (pixels.write(2049, 2048, b"", colour=6), "more than 16 MB"),
        (pixels.write(MAX_SIDE, MAX_SIDE, b"", colour=0, depth=16), "more than 16 MB"),
        (pixels.write(2048, 2048, b"", colour=6), "before its last row"),
        (head(3, 3, 8, 6, 0, 0, 0), "before its last row"),
        (pixels.write(1, 1, b"\5abc"), "damaged"),
        (SMALL[:33] + b"\xff\xff\xff\xffIDAT", "damaged"),
        (SMALL[:33] + pixels.chunk(b"IDAT", b"nonsense"), "damaged"),
        (SMALL[:33] + pixels.chunk(b"teSt", b"") * 70_000, "too many chunks"),
    ],
)
def test_what_is_wrong_is_told(data: bytes, told: str) -> None:
    with pytest.raises(PngError, match=told):
        read(data)


def test_chunks_that_mean_nothing_to_it_are_passed_over() -> None:
    extra = [(b"gAMA", bytes(4)), (b"eXIf", b"x" * 5_000)]
    assert read(pixels.write(1, 1, b"\0abc", extra=extra)) == [b"abc"]


@pytest.mark.parametrize(("width", "height"), [(1, 1), (MAX_SIDE, 1_300)])
def test_a_bomb_never_lies_unpacked_in_memory(width: int, height: int) -> None:
    """A quarter of a gigabyte of zeros, in a picture of one pixel and in one that has need of a part of them."""
    packer = zlib.compressobj()
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(256)) + packer.flush()
    shape = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", shape), (b"IDAT", bomb), (b"IEND", b""))
    file = io.BytesIO(pixels.SIGNATURE + b"".join(pixels.chunk(*part) for part in parts))
    tracemalloc.start()
    try:
        count = sum(1 for _ in PngReader(file).read_rows())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == height
    assert peak < 1_000_000


chunks = st.tuples(st.sampled_from([b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"teSt"]), st.binary(max_size=40))


@given(st.lists(chunks, max_size=6), st.binary(max_size=20), st.integers(0, 6), st.sampled_from([1, 2, 4, 8, 16]))
@example([], b"", 2, 8)
def test_garbage_is_refused_and_nothing_else(
    parts: list[tuple[bytes, bytes]], rest: bytes, colour: int, depth: int
) -> None:
    first: Any = (b"IHDR", struct.pack(">IIBBBBB", 2, 2, depth, colour, 0, 0, 0))
    data = pixels.SIGNATURE + b"".join(pixels.chunk(*part) for part in [first, *parts]) + rest
    with contextlib.suppress(PngError):
        reader = PngReader(io.BytesIO(data))
        rows = [(reader.to_rgb(row), reader.to_alpha(row)) for row in reader.read_rows()]
        assert [(len(rgb), len(alpha)) for rgb, alpha in rows] == [(6, 2), (6, 2)]


@given(st.binary(max_size=60), st.sampled_from([0, 2, 3, 4, 6]), st.sampled_from([1, 2, 4, 8, 16]))
def test_any_pixels_are_read_or_refused(packed: bytes, colour: int, depth: int) -> None:
    data = pixels.write(2, 2, packed, colour=colour, depth=depth, extra=[(b"PLTE", b"abc")])
    with contextlib.suppress(PngError):
        reader = PngReader(io.BytesIO(data))
        rows = [(reader.to_rgb(row), reader.to_alpha(row)) for row in reader.read_rows()]
        assert [(len(rgb), len(alpha)) for rgb, alpha in rows] == [(6, 2), (6, 2)]
