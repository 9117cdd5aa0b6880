"""An MP4 file of one H.264 track (ISO/IEC 14496-12, -15), its index before its data: it plays while it loads."""

import struct
from collections.abc import Sequence

from attrs import field, frozen

_TICKS = 512  # of a film's clock, a picture
_MILLISECONDS = 1_000
_MATRIX = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
_UNDETERMINED = 0x55C4  # the language "und", packed
_BT709 = 1


@frozen
class Track:
    """A film: its size in pixels, pictures a second, the two parameter sets, and every picture as one NAL unit.

    The first picture is the only one that stands for itself.
    """

    width: int
    height: int
    rate: int
    sequence_set: bytes = field(repr=False)
    picture_set: bytes = field(repr=False)
    pictures: Sequence[bytes] = field(repr=False)


def write_mp4(track: Track) -> bytes:
    """The file of a track."""
    samples = [struct.pack(">I", len(unit)) + unit for unit in track.pictures]
    sizes = [len(sample) for sample in samples]
    kind = _box(b"ftyp", b"mp42", struct.pack(">I", 0), b"mp42isomavc1")
    index = _index(track, sizes, 0)
    begin = len(kind) + len(index) + 8
    return b"".join([kind, _index(track, sizes, begin), _box(b"mdat", *samples)])


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I", len(body) + 8) + kind + body


def _full(kind: bytes, flags: int, *parts: bytes) -> bytes:
    return _box(kind, struct.pack(">I", flags), *parts)


def _index(track: Track, sizes: Sequence[int], begin: int) -> bytes:
    length = len(sizes) * _MILLISECONDS // track.rate
    head = struct.pack(">4I", 0, 0, _MILLISECONDS, length) + struct.pack(">IH10x", 0x10000, 0x100)
    movie = _full(b"mvhd", 0, head, _MATRIX, bytes(24), struct.pack(">I", 2))
    place = struct.pack(">5I8x4H", 0, 0, 1, 0, length, 0, 0, 0, 0) + _MATRIX
    shown = struct.pack(">2I", track.width << 16, track.height << 16)
    shown_track = _full(b"tkhd", 3, place, shown)
    return _box(b"moov", movie, _box(b"trak", shown_track, _media(track, sizes, begin)))


def _media(track: Track, sizes: Sequence[int], begin: int) -> bytes:
    clock = struct.pack(">4I2H", 0, 0, track.rate * _TICKS, len(sizes) * _TICKS, _UNDETERMINED, 0)
    place = _box(b"dinf", _full(b"dref", 0, struct.pack(">I", 1), _full(b"url ", 1)))
    return _box(
        b"mdia",
        _full(b"mdhd", 0, clock),
        _full(b"hdlr", 0, struct.pack(">I4s12x", 0, b"vide"), b"video\0"),
        _box(b"minf", _full(b"vmhd", 1, bytes(8)), place, _table(track, sizes, begin)),
    )


def _table(track: Track, sizes: Sequence[int], begin: int) -> bytes:
    """Where every picture is, and when: one chunk has them all."""
    return _box(
        b"stbl",
        _full(b"stsd", 0, struct.pack(">I", 1), _entry(track)),
        _full(b"stts", 0, struct.pack(">3I", 1, len(sizes), _TICKS)),
        _full(b"stss", 0, struct.pack(">2I", 1, 1)),
        _full(b"stsc", 0, struct.pack(">4I", 1, 1, len(sizes), 1)),
        _full(b"stsz", 0, struct.pack(f">{len(sizes) + 2}I", 0, len(sizes), *sizes)),
        _full(b"stco", 0, struct.pack(">2I", 1, begin)),
    )


def _entry(track: Track) -> bytes:
    """What is needed to decode the track."""
    inch = 72 << 16
    picture = struct.pack(">6xH16x2H3IH32xHh", 1, track.width, track.height, inch, inch, 0, 1, 24, -1)
    sets = struct.pack(">BH", 0xE1, len(track.sequence_set)) + track.sequence_set
    sets += struct.pack(">BH", 1, len(track.picture_set)) + track.picture_set
    decoder = _box(b"avcC", b"\1" + track.sequence_set[1:4] + b"\xff", sets)
    colours = _box(b"colr", struct.pack(">4s3HB", b"nclx", _BT709, _BT709, _BT709, 0))
    return _box(b"avc1", picture, decoder, colours)
