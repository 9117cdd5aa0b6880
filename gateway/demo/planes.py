"""Pictures as films have them: brightness at every pixel, two colour differences at every second of every second row.

ITU-R BT.709 with its narrow range (brightness 16 to 235, differences 16 to 240). Nothing is counted pixel by pixel:
every channel goes through a table, and three rows are added as three long numbers, whose bytes never overflow.
"""

from collections.abc import Sequence

from attrs import field, frozen

from gateway.demo.drawing import average
from gateway.demo.scenery import Colour

_RED, _GREEN, _BLUE = 0.2126, 0.7152, 0.0722
_LUMA, _CHROMA = 219 / 255, 224 / 255
_FLOOR = 16

Channels = tuple[bytes, bytes, bytes]
"""A row's red, green and blue, a byte a pixel each."""


@frozen
class Planes:
    """A picture. Every row is a byte a sample; the differences have half as many rows, half as long."""

    luma: Sequence[bytes] = field(repr=False)
    blue: Sequence[bytes] = field(repr=False)
    red: Sequence[bytes] = field(repr=False)


def _table(scale: float, floor: int = 0, *, turned: bool = False) -> bytes:
    return bytes(int(floor + scale * (255 - value if turned else value) + 0.5) for value in range(256))


_TO_LUMA = (_table(_LUMA * _RED), _table(_LUMA * _GREEN, _FLOOR), _table(_LUMA * _BLUE))
_TO_BLUE = (
    _table(_CHROMA * _RED / (2 - 2 * _BLUE), turned=True),
    _table(_CHROMA * _GREEN / (2 - 2 * _BLUE), _FLOOR, turned=True),
    _table(_CHROMA / 2),
)
_TO_RED = (
    _table(_CHROMA / 2),
    _table(_CHROMA * _GREEN / (2 - 2 * _RED), _FLOOR, turned=True),
    _table(_CHROMA * _BLUE / (2 - 2 * _RED), turned=True),
)


def to_planes(rows: Sequence[Channels]) -> Planes:
    """A picture of an even number of rows, each of an even number of pixels."""
    luma = [_weigh(row, _TO_LUMA) for row in rows]
    halves = [_halve(rows[at], rows[at + 1]) for at in range(0, len(rows), 2)]
    return Planes(luma, [_weigh(half, _TO_BLUE) for half in halves], [_weigh(half, _TO_RED) for half in halves])


def to_samples(colour: Colour) -> tuple[int, int, int]:
    """One colour's brightness and differences."""
    row: Channels = (bytes([colour[0]]), bytes([colour[1]]), bytes([colour[2]]))
    return _weigh(row, _TO_LUMA)[0], _weigh(row, _TO_BLUE)[0], _weigh(row, _TO_RED)[0]


def _weigh(row: Channels, tables: tuple[bytes, bytes, bytes]) -> bytes:
    red, green, blue = (
        int.from_bytes(channel.translate(table), "big") for channel, table in zip(row, tables, strict=True)
    )
    return (red + green + blue).to_bytes(len(row[0]), "big")


def _halve(upper: Channels, lower: Channels) -> Channels:
    red, green, blue = (_merge(one, other) for one, other in zip(upper, lower, strict=True))
    return red, green, blue


def _merge(upper: bytes, lower: bytes) -> bytes:
    both = average(upper, lower)
    return average(both[::2], both[1::2])
