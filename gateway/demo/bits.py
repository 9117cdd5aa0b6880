"""Bits as H.264 writes them: fixed numbers, Exp-Golomb codes, and units (ITU-T H.264, 7.3 and 9.1)."""

import re
from functools import cache

_START_LIKE = re.compile(rb"\0\0(?=[\0-\3])")

Code = tuple[int, int]
"""Some bits: their value, and how many they are."""


class Bits:
    """Bits, written one after the other."""

    def __init__(self) -> None:
        self._done = bytearray()
        self._value = 0
        self._count = 0

    def fixed(self, value: int, count: int) -> None:
        """A number of ``count`` bits: ``u(n)``."""
        self._value = self._value << count | value
        self._count += count

    def unsigned(self, value: int) -> None:
        """A number from 0: ``ue(v)``."""
        self.fixed(*golomb(value))

    def signed(self, value: int) -> None:
        """A number of either sign: ``se(v)``."""
        self.fixed(*signed_golomb(value))

    def whole(self, data: bytes) -> None:
        """Bytes, after zeros up to where a byte begins."""
        self.fixed(0, -self._count % 8)
        self._done += self._value.to_bytes(self._count // 8, "big")
        self._done += data
        self._value = self._count = 0

    def end(self) -> bytes:
        """Everything, with the bit that says where it ends."""
        self.fixed(1, 1)
        self.whole(b"")
        return bytes(self._done)


@cache
def golomb(value: int) -> Code:
    """The code of a number from 0."""
    return value + 1, 2 * (value + 1).bit_length() - 1


def signed_golomb(value: int) -> Code:
    """The code of a number of either sign."""
    return golomb(2 * value - 1 if value > 0 else -2 * value)


def join(codes: list[Code]) -> Code:
    """Several codes as one."""
    value = count = 0
    for bits, length in codes:
        value, count = value << length | bits, count + length
    return value, count


def write_unit(kind: int, importance: int, payload: bytes) -> bytes:
    """A NAL unit, in which nothing looks like the beginning of another."""
    return bytes([importance << 5 | kind]) + _START_LIKE.sub(b"\0\0\3", payload)
