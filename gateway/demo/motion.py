"""Every later picture of a film: for each square, from where in the first picture it comes, or what it is instead."""

from collections.abc import Mapping, Sequence

from attrs import frozen

from gateway.demo.bits import Bits, Code, join, signed_golomb
from gateway.demo.h264 import SQUARE, begin_moving, end_moving
from gateway.demo.planes import Planes
from gateway.demo.still import PLAIN

_QUARTERS = 4  # vectors count in quarters of a pixel
_MOVED: Code = (1, 1)
_NO_CHANGE: Code = (1, 1)
_PLAIN_HERE = PLAIN + 5  # the same type, behind those of pictures that move
_NOWHERE = (0, 0)

Vector = tuple[int, int]
Vectors = tuple[Vector | None, ...]
"""Those of a row of squares; None for one that is new."""


@frozen
class Shift:
    """A row of squares comes from ``right`` and ``down`` of where it is, in pixels, round a picture without ends.

    A picture has ends all the same: its last column of squares repeats its first, so that whatever is asked for beyond
    its right edge can be had from the left.
    """

    right: int
    down: int = 0

    def find_vectors(self, columns: int) -> Vectors:
        """From where each of so many squares in a row comes, in quarters of a pixel."""
        width = (columns - 1) * SQUARE
        right = self.right % width
        near = (width - right) // SQUARE + 1
        down = self.down * _QUARTERS
        return ((right * _QUARTERS, down),) * near + (((right - width) * _QUARTERS, down),) * (columns - near)


def encode_moving(
    number: int, columns: int, shifts: Sequence[Shift], painted: Mapping[tuple[int, int], bytes]
) -> bytes:
    """The unit of a picture: how each row of squares is shifted, and the samples of new squares (row, column)."""
    bits = Bits()
    begin_moving(bits, number)
    vectors = {shift: shift.find_vectors(columns) for shift in shifts}
    busy = {row for row, _ in painted}
    known: dict[tuple[Vectors, Vectors], list[Code | None]] = {}
    above: Vectors = ()
    skipped = 0
    for row, shift in enumerate(shifts):
        here = vectors[shift]
        if row in busy:
            here = tuple(None if (row, column) in painted else vector for column, vector in enumerate(here))
        if (above, here) not in known:
            known[above, here] = [_find_code(above, here, column) for column in range(columns)]
        for column, code in enumerate(known[above, here]):
            if here[column] is None:
                bits.unsigned(skipped)
                bits.unsigned(_PLAIN_HERE)
                bits.whole(painted[row, column])
                skipped = 0
            elif code is None:
                skipped += 1
            else:
                bits.unsigned(skipped)
                bits.fixed(*code)
                skipped = 0
        above = here
    if skipped:
        bits.unsigned(skipped)
    return end_moving(bits)


def shift_square(picture: Planes, row: int, column: int, shift: Shift) -> bytes:
    """What a square shows that comes from elsewhere in a picture; only for one that is not shifted down.

    Half a sample of colour to the right is the mean of two (8.4.2.2.2).
    """
    width = len(picture.luma[0])
    (vector,) = shift.find_vectors(width // SQUARE)[column : column + 1]
    left = column * SQUARE + (vector[0] // _QUARTERS if vector else 0)
    parts = [line[left : left + SQUARE] for line in picture.luma[row * SQUARE : (row + 1) * SQUARE]]
    half, begin = SQUARE // 2, left // 2
    for plane in (picture.blue, picture.red):
        for line in plane[row * half : (row + 1) * half]:
            samples = line[begin : begin + half]
            if left % 2:
                samples = bytes([one + other + 1 >> 1 for one, other in zip(samples, line[begin + 1 :], strict=False)])
            parts.append(samples)
    return b"".join(parts)


def _find_code(above: Vectors, here: Vectors, column: int) -> Code | None:
    """How to say a square's vector; None where nothing has to be said, or it has none."""
    vector = here[column]
    if vector is None:
        return None
    left = here[column - 1] if column else None
    upper = above[column] if above else None
    corner = above[column + 1 if column + 1 < len(above) else column - 1] if above else None
    guess = _guess(left, upper, corner)
    # What is skipped stands still at the upper and left edges, and beside whatever stands still (8.4.1.1).
    still = not column or not above or _NOWHERE in (left, upper)
    if vector == (_NOWHERE if still else guess):
        return None
    apart = [signed_golomb(one - other) for one, other in zip(vector, guess, strict=True)]
    return join([_MOVED, *apart, _NO_CHANGE])


def _guess(left: Vector | None, upper: Vector | None, corner: Vector | None) -> Vector:
    """What a decoder takes a vector for: the only one beside it, or the median of all three (8.4.1.3)."""
    beside = [vector for vector in (left, upper, corner) if vector is not None]
    if len(beside) == 1:
        return beside[0]
    across, down = (sorted(vector[axis] if vector else 0 for vector in (left, upper, corner))[1] for axis in (0, 1))
    return across, down
