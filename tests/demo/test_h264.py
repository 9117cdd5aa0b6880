"""What is encoded is what FFmpeg decodes, to the last bit."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.demo.bits import Bits, golomb, join, signed_golomb, write_unit
from gateway.demo.h264 import SQUARE, write_picture_set, write_sequence_set
from gateway.demo.motion import Shift, encode_moving, shift_square
from gateway.demo.mp4 import Track, write_mp4
from gateway.demo.planes import Planes, to_planes, to_samples
from gateway.demo.still import cut_square, encode_still
from tests.demo import reels

COLUMNS, ROWS = 4, 3
WIDTH, HEIGHT = COLUMNS * SQUARE, ROWS * SQUARE


def plane(width: int, height: int, kind: str, noise: bytes) -> list[bytes]:
    """Samples that some guess meets, or none."""
    across, down, grain = noise[0] % 5, noise[1] % 5, noise[2:] or b"\0"
    rows = []
    for y in range(height):
        row = [40 + (across * x if kind == "slope" else 0) + down * y for x in range(width)]
        if kind == "bent":
            row = [40 + across * x * x // 64 + down * y * y // 48 for x in range(width)]
        if kind == "noise":
            row = [16 + grain[(y * 7 + x * 3) % len(grain)] * (x + y) % 219 for x in range(width)]
        rows.append(bytes(min(value, 235) for value in row))
    return rows


kinds = st.sampled_from(["flat", "slope", "bent", "noise"])
steps = st.sampled_from([0, 0, 1, 16])


@st.composite
def pictures(draw: st.DrawFn) -> Planes:
    noise = draw(st.binary(min_size=2, max_size=24))
    luma, blue, red = draw(kinds), draw(kinds), draw(kinds)
    half = (WIDTH // 2, HEIGHT // 2)
    return Planes(plane(WIDTH, HEIGHT, luma, noise), plane(*half, blue, noise), plane(*half, red, noise))


def encode_first(picture: Planes) -> tuple[bytes, Planes]:
    work = encode_still(picture)
    while True:
        try:
            next(work)
        except StopIteration as end:
            unit, seen = end.value
            return unit, seen


def watch(units: list[bytes], width: int = WIDTH, height: int = HEIGHT) -> reels.Film:
    return reels.watch(
        write_mp4(Track(width, height, 24, write_sequence_set(width, height, 24), write_picture_set(), units))
    )


def rows_of(picture: Planes) -> reels.Planes:
    return tuple(picture.luma), tuple(picture.blue), tuple(picture.red)


def moved(rows: reels.Plane, shifts: list[Shift], side: int) -> reels.Plane:
    """A plane as clause 8.4.2.2 says it is shown: whole samples, or means of those around."""
    height, width = len(rows), len(rows[0])
    scale = SQUARE // side
    made = []
    for y in range(height):
        shift, out = shifts[y // side], bytearray()
        for x in range(width):
            left = x // side * SQUARE
            right = shift.right % (WIDTH - SQUARE)
            right -= WIDTH - SQUARE if left + right > WIDTH - SQUARE else 0
            at_x, at_y = x + right // scale, y + shift.down // scale
            part_x, part_y = (right % scale) * 8 // scale, (shift.down % scale) * 8 // scale
            total = 32
            for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
                weight = (part_x if dx else 8 - part_x) * (part_y if dy else 8 - part_y)
                total += weight * rows[min(max(at_y + dy, 0), height - 1)][min(max(at_x + dx, 0), width - 1)]
            out.append(total >> 6)
        made.append(bytes(out))
    return tuple(made)


@settings(max_examples=30, deadline=None)
@given(pictures())
def test_a_first_picture_is_decoded_as_foretold_and_nearly_without_loss(picture: Planes) -> None:
    unit, seen = encode_first(picture)
    assert watch([unit]).pictures == (rows_of(seen),)
    for given_rows, seen_rows in zip(rows_of(picture), rows_of(seen), strict=True):
        for one, other in zip(given_rows, seen_rows, strict=True):
            assert all(abs(a - b) <= 1 for a, b in zip(one, other, strict=True))


@settings(max_examples=20, deadline=None)
@given(
    pictures(),
    st.lists(
        st.builds(Shift, steps | st.integers(-99, 99), steps | st.integers(-20, 20)), min_size=ROWS, max_size=ROWS
    ),
    st.sets(st.tuples(st.integers(0, ROWS - 1), st.integers(0, COLUMNS - 1)), max_size=5),
)
def test_later_pictures_are_the_first_one_shifted_and_painted_over(
    picture: Planes, shifts: list[Shift], places: set[tuple[int, int]]
) -> None:
    first, seen = encode_first(picture)
    paint = bytes(range(16, 144)) * 3
    units = [
        first,
        encode_moving(1, COLUMNS, shifts, {}),
        encode_moving(2, COLUMNS, shifts, dict.fromkeys(places, paint)),
    ]
    film = watch(units)
    plain = tuple(moved(rows, shifts, side) for rows, side in zip(rows_of(seen), (16, 8, 8), strict=True))
    assert film.pictures[:2] == (rows_of(seen), plain)
    for row in range(ROWS):
        for column in range(COLUMNS):
            shown = cut_square(film.pictures[2], row, column)
            assert shown == (paint if (row, column) in places else cut_square(plain, row, column))


@settings(max_examples=12, deadline=None)
@given(pictures(), st.integers(-99, 99), st.integers(0, ROWS - 1), st.integers(0, COLUMNS - 1))
def test_what_a_shifted_square_shows_is_known_without_decoding(
    picture: Planes, right: int, row: int, column: int
) -> None:
    shift = Shift(right)
    rows = tuple(moved(plane_, [shift] * ROWS, side) for plane_, side in zip(rows_of(picture), (16, 8, 8), strict=True))
    assert shift_square(picture, row, column, shift) == cut_square(rows, row, column)


def test_what_is_no_whole_square_is_cut_off() -> None:
    unit, seen = encode_first(Planes([b"\x80" * WIDTH] * HEIGHT, [b"\x60" * 32] * 24, [b"\x70" * 32] * 24))
    film = watch([unit], WIDTH - 10, HEIGHT - 6)
    assert (film.width, film.height) == (WIDTH - 10, HEIGHT - 6)
    assert film.pictures[0][0] == tuple(row[: WIDTH - 10] for row in seen.luma[: HEIGHT - 6])


@pytest.mark.parametrize(("off", "shown"), [(1, 0), (-1, 0), (2, 2), (-2, -2)])
def test_a_guess_may_be_off_by_one_and_no_more(off: int, shown: int) -> None:
    luma = [bytearray(40 + x + y for x in range(WIDTH)) for y in range(HEIGHT)]
    luma[40][40] += off
    unit, seen = encode_first(Planes([bytes(row) for row in luma], [b"\x60" * 32] * 24, [b"\x70" * 32] * 24))
    assert seen.luma[40][40] == 120 + shown
    assert watch([unit]).pictures == (rows_of(seen),)


def test_what_is_the_same_in_every_row_is_decoded_as_foretold() -> None:
    """There is nothing above the first row to be continued."""
    stripes = Planes([bytes(range(40, 168, 2))] * HEIGHT, [bytes(range(60, 92))] * 24, [bytes(range(90, 122))] * 24)
    unit, seen = encode_first(stripes)
    assert watch([unit]).pictures == (rows_of(seen),) == (rows_of(stripes),)


@pytest.mark.parametrize("number", [1, 7, 287])
def test_pictures_are_numbered(number: int) -> None:
    """Behind its place, type, set and frame, a slice's header has its picture's order (7.3.3)."""
    unit = encode_moving(number, COLUMNS, [Shift(0)] * ROWS, {})
    bits = f"{int.from_bytes(unit[1:], 'big'):0{8 * len(unit) - 8}b}"
    assert bits[:11] == "10011010001"
    assert int(bits[11:21], 2) == 2 * number


def test_what_lies_flat_takes_next_to_no_room() -> None:
    flat = Planes([bytes([40 + y]) * WIDTH for y in range(HEIGHT)], [b"\x60" * 32] * 24, [b"\x70" * 32] * 24)
    unit, seen = encode_first(flat)
    assert rows_of(seen) == rows_of(flat)
    assert len(unit) < ROWS * (384 + COLUMNS) + 20


@given(st.lists(st.sampled_from([0, 0, 1, 2, 3, 4]), max_size=40).map(bytes))
def test_no_unit_looks_like_the_beginning_of_another(payload: bytes) -> None:
    unit = write_unit(5, 3, payload)
    assert unit[0] == 0x65
    assert not re.search(rb"\0\0[\0-\2]", unit[1:])
    assert unit[1:].replace(b"\0\0\3", b"\0\0") == payload


@pytest.mark.parametrize(("value", "written"), [(0, "1"), (1, "010"), (2, "011"), (3, "00100"), (7, "0001000")])
def test_numbers_are_exponential_golomb_codes(value: int, written: str) -> None:
    """Table 9-2."""
    assert f"{golomb(value)[0]:0{golomb(value)[1]}b}" == written


def test_numbers_of_either_sign_take_turns() -> None:
    """Table 9-3."""
    assert [signed_golomb(value) for value in (0, 1, -1, 2, -2)] == [golomb(number) for number in range(5)]


def test_bits_are_joined_and_end_with_a_one() -> None:
    bits = Bits()
    bits.fixed(*join([(0b101, 3), (0b01, 2)]))
    bits.whole(b"\xff")
    bits.unsigned(1)
    assert bits.end() == bytes([0b10101000, 0xFF, 0b01010000])


@pytest.mark.parametrize(
    ("colour", "samples"),
    [((0, 0, 0), (16, 128, 128)), ((255, 255, 255), (235, 128, 128)), ((255, 0, 0), (63, 102, 240))],
)
def test_colours_are_those_of_bt709(colour: tuple[int, int, int], samples: tuple[int, int, int]) -> None:
    assert all(abs(one - other) <= 1 for one, other in zip(to_samples(colour), samples, strict=True))
    row = tuple(bytes([channel]) * 4 for channel in colour)
    planes = to_planes([(row[0], row[1], row[2])] * 2)
    assert [plane_[0][0] for plane_ in (planes.luma, planes.blue, planes.red)] == list(to_samples(colour))
    assert [(len(plane_), len(plane_[0])) for plane_ in (planes.luma, planes.blue, planes.red)] == [
        (2, 4),
        (1, 2),
        (1, 2),
    ]
