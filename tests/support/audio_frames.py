"""Frames of audio files."""

import struct


def flac_frame(number: int, code: bytes = b"\xc5", rest: bytes = b"") -> bytes:
    """4,096 samples at 16,000 a second, or what its code says."""
    header = b"\xff\xf8" + code + b"\x08" + chr(number).encode() + rest
    crc = 0
    for bit in range(len(header) * 8):
        top = crc >> 7 ^ header[bit // 8] >> 7 - bit % 8 & 1
        crc = (crc << 1 ^ (0x07 if top else 0)) & 0xFF
    return header + bytes([crc])


def page_of(packets: list[bytes], *, serial: int = 7, inside: bool = False) -> bytes:
    """A page with several packets; ``inside``: the first of them began on the page before."""
    head = struct.pack("<4sBBqIIIB", b"OggS", 0, inside, 5, serial, 1, 0, len(packets))
    return head + bytes(map(len, packets)) + b"".join(packets)
