"""Headers of audio files."""

import struct


def ogg_page(position: int, packet: bytes = b"", serial: int = 7) -> bytes:
    head = struct.pack("<4sBBqIIIBB", b"OggS", 0, 4, position, serial, 1, 0, 1, len(packet))
    return head + packet


OPUS_HEAD = b"OpusHead\x01\x01" + struct.pack("<HIhB", 312, 48_000, 0, 0)


VORBIS_HEAD = b"\x01vorbis\0\0\0\0\x02" + struct.pack("<I", 44_100) + bytes(14)


EBML = b"\x1a\x45\xdf\xa3\x84webm"
