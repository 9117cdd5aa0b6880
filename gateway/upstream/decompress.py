"""An encoded body, decoded in steps, although it was asked for as it is."""

import zlib

from gateway.errors import ProviderBadResponse

STEP_BYTES = 64 * 1024
"""What is decoded at once, whatever it was made small from."""
MAX_MEMBERS = 100
_GZIP, _ZLIB, _RAW = 31, 15, -15
_INFLATED = frozenset({"gzip", "deflate"})
_METHOD = 8  # RFC 1950, 2.2: the low half of the first byte


class Decompressor:
    """``feed`` what came, ``take`` until nothing is left, ``end`` when all has come.

    ``encoding``: ``gzip``, or ``deflate``, which is zlib to the standard and raw to some.
    """

    __slots__ = ("_decoder", "_encoding", "_left", "_members")

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._decoder = None if encoding == "deflate" else zlib.decompressobj(_GZIP)
        self._left = b""
        self._members = 1

    def feed(self, data: bytes) -> None:
        """What came; not empty, and only after ``take`` had nothing more. Raises ``zlib.error``."""
        if self._decoder is None:
            self._decoder = zlib.decompressobj(_ZLIB if data[0] & 0xF == _METHOD else _RAW)
        elif self._decoder.eof:
            self._decoder = self._open_next()
        self._left = data

    def take(self) -> bytes:
        """The next piece; empty where more is needed first. Raises ``zlib.error``."""
        decoder = self._decoder
        while decoder is not None:
            piece = decoder.decompress(self._left, STEP_BYTES)
            self._left = decoder.unconsumed_tail
            if piece:
                return piece
            if decoder.eof and decoder.unused_data:
                self._left = decoder.unused_data
                decoder = self._decoder = self._open_next()
            elif decoder.eof or not self._left:
                break
        return b""

    def _open_next(self) -> "zlib._Decompress":
        """Another one, where gzip goes on after its end: within bounds (RFC 1952, 2.2)."""
        self._members += 1
        if self._encoding != "gzip" or self._members > MAX_MEMBERS:
            raise zlib.error("The encoded body continues after its end")
        return zlib.decompressobj(_GZIP)

    def end(self) -> None:
        """All has come. Raises ``zlib.error`` where it was cut."""
        if self._decoder is not None and not self._decoder.eof:
            raise zlib.error("The encoded body is cut")


def open_inflation(encoding: str | None) -> Decompressor | None:
    """What decodes ``encoding``, in lower case: None if it is empty.

    Raises ``ProviderBadResponse`` for one not asked for. ``encoding``: of the body; None if several are named.
    """
    if encoding == "":
        return None
    if encoding not in _INFLATED:
        raise ProviderBadResponse("The provider's answer is encoded in a way that was not asked for", phase="headers")
    return Decompressor(encoding)
