"""H.264 of the simplest kind (constrained baseline), for films whose pictures are all made of their first.

What a film here needs is little: one picture that stands for itself, with next to no loss (``still.py``), and others
that say of each square of 16 pixels from where in the first it comes (``motion.py``). All are whole slices, and no
filter smoothes anything, so that what is decoded is known to the last bit. Clauses are those of ITU-T H.264.
"""

from gateway.demo.bits import Bits, write_unit

SQUARE = 16

_PROFILE, _COMPATIBLE, _LEVEL = 66, 0b11000000, 40
_SEQUENCE_SET, _PICTURE_SET = 7, 8
_STILL, _MOVING = 5, 1
_ORDER_BITS = 10
_FRAME_BITS = 4
_UNSPECIFIED = 5
_BT709 = 1
_NEEDED, _NOT_NEEDED = 3, 0


def write_sequence_set(width: int, height: int, rate: int) -> bytes:
    """The sequence parameter set (7.3.2.1.1) of a film: its size in pixels, and pictures a second."""
    bits = Bits()
    for byte in (_PROFILE, _COMPATIBLE, _LEVEL):
        bits.fixed(byte, 8)
    bits.unsigned(0)
    bits.unsigned(_FRAME_BITS - 4)
    bits.unsigned(0)  # order is told by a number in each picture
    bits.unsigned(_ORDER_BITS - 4)
    bits.unsigned(1)  # the first picture is the one that others are made of
    bits.fixed(0, 1)
    columns, rows = -(-width // SQUARE), -(-height // SQUARE)
    bits.unsigned(columns - 1)
    bits.unsigned(rows - 1)
    bits.fixed(0b11, 2)  # frames, not fields
    _crop(bits, columns * SQUARE - width, rows * SQUARE - height)
    bits.fixed(1, 1)
    _describe_use(bits, rate)
    return write_unit(_SEQUENCE_SET, _NEEDED, bits.end())


def write_picture_set() -> bytes:
    """The picture parameter set (7.3.2.2)."""
    bits = Bits()
    for number in (0, 0):
        bits.unsigned(number)
    bits.fixed(0b00, 2)  # Exp-Golomb codes, no order of fields
    for number in (0, 0, 0):  # one group of slices, one reference
        bits.unsigned(number)
    bits.fixed(0b000, 3)  # no weights
    for number in (0, 0, 0):
        bits.signed(number)
    bits.fixed(0b100, 3)  # slices say how they are filtered
    return write_unit(_PICTURE_SET, _NEEDED, bits.end())


def begin_still(bits: Bits) -> None:
    """The head (7.3.3) of the slice that is the first picture."""
    for number in (0, 7, 0):
        bits.unsigned(number)
    bits.fixed(0, _FRAME_BITS)
    bits.unsigned(0)
    bits.fixed(0, _ORDER_BITS)
    bits.fixed(0b00, 2)
    bits.signed(0)
    bits.unsigned(1)  # no filter


def end_still(bits: Bits) -> bytes:
    """Its unit."""
    return write_unit(_STILL, _NEEDED, bits.end())


def begin_moving(bits: Bits, number: int) -> None:
    """The head of the slice that is the picture of that number, from 1."""
    for word in (0, 5, 0):
        bits.unsigned(word)
    bits.fixed(1, _FRAME_BITS)
    bits.fixed(2 * number, _ORDER_BITS)
    bits.fixed(0b00, 2)
    bits.signed(0)
    bits.unsigned(1)


def end_moving(bits: Bits) -> bytes:
    """Its unit; no other picture is made of it."""
    return write_unit(_MOVING, _NOT_NEEDED, bits.end())


def _crop(bits: Bits, right: int, bottom: int) -> None:
    """What of the last squares is not shown, in pixels."""
    if not right and not bottom:
        bits.fixed(0, 1)
        return
    bits.fixed(1, 1)
    for pixels in (0, right, 0, bottom):
        bits.unsigned(pixels // 2)


def _describe_use(bits: Bits, rate: int) -> None:
    """How it is to be shown (annex E): colours, the clock, and that no picture waits for a later one."""
    bits.fixed(0b00, 2)
    bits.fixed(1, 1)
    bits.fixed(_UNSPECIFIED, 3)
    bits.fixed(0, 1)  # narrow range
    bits.fixed(1, 1)
    for _ in range(3):
        bits.fixed(_BT709, 8)
    bits.fixed(0, 1)
    bits.fixed(1, 1)
    bits.fixed(1, 32)
    bits.fixed(2 * rate, 32)
    bits.fixed(1, 1)
    bits.fixed(0b000, 3)
    bits.fixed(1, 1)
    bits.fixed(1, 1)
    for number in (0, 0, 13, 11, 0, 1):  # no bounds; vectors of 2^11 by 2^9 pixels; none reordered, one kept
        bits.unsigned(number)
