"""The first picture of a film, square by square: guessed from its neighbours where a guess is right, else as it is.

A square is guessed (ITU-T H.264, 8.3.3 and 8.3.4) as a continuation of the column to its left, of the row above it, or
as a slope that both make; a guess is right where nothing is off by more than one step of brightness. What no guess
meets is written out (``I_PCM``).
"""

from collections.abc import Generator, Sequence

from gateway.demo.bits import Bits, Code, golomb, join
from gateway.demo.h264 import SQUARE, begin_still, end_still
from gateway.demo.planes import Planes

PLAIN = 25
"""The type of a square that is written out, in a picture that stands for itself."""

_HALF = SQUARE // 2
_OFF = 1
_ACROSS, _DOWN, _SLOPE = 0, 1, 2
_LUMA_TYPES = (2, 1, 4)
_CHROMA_TYPES = (1, 2, 3)
_NO_CHANGE: Code = (1, 1)
_NOTHING: dict[int, Code] = {0: (1, 1), 8: (0b11, 6), 16: (0b11, 6)}  # no coefficients, after so many beside it

Rows = Sequence[bytearray]


def encode_still(picture: Planes) -> Generator[None, None, tuple[bytes, Planes]]:
    """Its unit, and what is seen of it once it is decoded. Yields after every row of squares."""
    bits = Bits()
    begin_still(bits)
    seen = tuple([bytearray(row) for row in plane] for plane in (picture.luma, picture.blue, picture.red))
    columns = len(picture.luma[0]) // SQUARE
    above: list[bool] = []
    for row in range(len(picture.luma) // SQUARE):
        plain: list[bool] = []
        for column in range(columns):
            guess = _guess_square(seen, row, column)
            if guess is None:
                bits.unsigned(PLAIN)
                bits.whole(cut_square(seen, row, column))
            else:
                beside = [*plain[-1:], *above[column : column + 1]]
                nothing = _NOTHING[SQUARE * sum(beside) // max(len(beside), 1)]
                bits.fixed(*join([*guess, _NO_CHANGE, nothing]))
            plain.append(guess is None)
        above = plain
        yield
    luma, blue, red = ([bytes(row) for row in plane] for plane in seen)
    return end_still(bits), Planes(luma, blue, red)


def cut_square(planes: Sequence[Sequence[bytes | bytearray]], row: int, column: int) -> bytes:
    """A square's samples: brightness, then both differences."""
    parts = []
    for plane, side in zip(planes, (SQUARE, _HALF, _HALF), strict=True):
        left = column * side
        parts += [line[left : left + side] for line in plane[row * side : (row + 1) * side]]
    return b"".join(parts)


def _guess_square(seen: Sequence[Rows], row: int, column: int) -> tuple[Code, Code] | None:
    """How to say which guesses are right, which then stand where the square was; None where none is."""
    if not column:
        return None
    luma, blue, red = seen
    kinds = (_ACROSS, _DOWN, _SLOPE) if row else (_ACROSS,)
    for kind in kinds:
        shade = _guess(luma, row * SQUARE, column * SQUARE, SQUARE, kind)
        if shade:
            break
    else:
        return None
    top, left = row * _HALF, column * _HALF
    for hue in kinds:
        bluish = _guess(blue, top, left, _HALF, hue)
        reddish = bluish and _guess(red, top, left, _HALF, hue)
        if bluish and reddish:
            break
    else:
        return None
    _put(luma, row * SQUARE, column * SQUARE, shade)
    _put(blue, top, left, bluish)
    _put(red, top, left, reddish)
    return golomb(_LUMA_TYPES[kind]), golomb(_CHROMA_TYPES[hue])


def _guess(plane: Rows, top: int, left: int, side: int, kind: int) -> list[bytes] | None:
    """The rows that a guess of that kind makes, if it is right."""
    if kind == _SLOPE:
        return _guess_slope(plane, top, left, side)
    rows = []
    for line in plane[top : top + side]:
        guess = bytes(line[left - 1 : left]) * side if kind == _ACROSS else bytes(plane[top - 1][left : left + side])
        if line[left : left + side] != guess:
            return None
        rows.append(guess)
    return rows


def _guess_slope(plane: Rows, top: int, left: int, side: int) -> list[bytes] | None:
    above, half = plane[top - 1], side // 2
    beside = [line[left - 1] for line in plane[top : top + side]]
    corner = above[left - 1]
    upper = [corner, *above[left : left + side]]
    lower = [corner, *beside]
    across = sum([at * (upper[half + at] - upper[half - at]) for at in range(1, half + 1)])
    down = sum([at * (lower[half + at] - lower[half - at]) for at in range(1, half + 1)])
    scale = 5 if side == SQUARE else 34
    across, down = scale * across + 32 >> 6, scale * down + 32 >> 6
    start = 16 * (beside[-1] + upper[-1]) + 16 - (half - 1) * (across + down)
    rows = []
    steps = range(0, across * side, across) if across else [0] * side
    for at, line in enumerate(plane[top : top + side]):
        base = start + down * at
        guess = [base + step >> 5 for step in steps]
        for one, other in zip(guess, line[left : left + side], strict=True):
            if not -_OFF <= one - other <= _OFF:
                return None
        rows.append(bytes(guess))
    return rows


def _put(plane: Rows, top: int, left: int, rows: list[bytes]) -> None:
    for line, guess in zip(plane[top:], rows, strict=False):
        line[left : left + len(guess)] = guess
