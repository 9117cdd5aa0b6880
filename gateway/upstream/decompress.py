"""Decodes a response body in steps if the server compressed it although the request did not allow that."""

import zlib

from gateway.errors import ProviderBadResponse

STEP_BYTES = 64 * 1024
"""Largest decoded piece: a small body may expand to any size."""
MAX_MEMBERS = 100
_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15
_INFLATED_ENCODINGS = frozenset({"gzip", "deflate"})
_DEFLATE_METHOD = 8  # RFC 1950, 2.2: the low half of the first byte


class Decompressor:
    """Decodes a stream: ``feed`` received data, ``read_piece`` until nothing is left, ``end`` after all data.

    Args:
        encoding: ``gzip`` or ``deflate``. The latter is the zlib format in the standard, and a raw stream from some
            servers.
    """

    __slots__ = ("_decoder", "_encoding", "_members", "_pending_data")

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._decoder = None if encoding == "deflate" else zlib.decompressobj(_GZIP)
        self._pending_data = b""
        self._members = 1

    def feed(self, data: bytes) -> None:
        """Add received data, which must not be empty. Call only after ``read_piece`` has returned nothing.

        Raises ``zlib.error``.
        """
        if self._decoder is None:
            self._decoder = zlib.decompressobj(_ZLIB if data[0] & 0xF == _DEFLATE_METHOD else _RAW_DEFLATE)
        elif self._decoder.eof:
            self._decoder = self._open_next()
        self._pending_data = data

    def read_piece(self) -> bytes:
        """Return the next decoded piece; empty if more data is needed first. Raises ``zlib.error``."""
        decoder = self._decoder
        while decoder is not None:
            piece = decoder.decompress(self._pending_data, STEP_BYTES)
            self._pending_data = decoder.unconsumed_tail
            if piece:
                return piece
            if decoder.eof and decoder.unused_data:
                self._pending_data = decoder.unused_data
                decoder = self._decoder = self._open_next()
            elif decoder.eof or not self._pending_data:
                break
        return b""

    def _open_next(self) -> "zlib._Decompress":
        """Return a decoder for the next gzip member, of which there may be a limited number (RFC 1952, 2.2)."""
        self._members += 1
        if self._encoding != "gzip" or self._members > MAX_MEMBERS:
            raise zlib.error("The encoded body continues after its end")
        return zlib.decompressobj(_GZIP)

    def end(self) -> None:
        if self._decoder is not None and not self._decoder.eof:
            raise zlib.error("The encoded body is cut")


def open_inflation(encoding: str | None) -> Decompressor | None:
    """Return a decoder for ``encoding``; None for an empty one. Raises ``ProviderBadResponse`` for others and None."""
    if encoding == "":
        return None
    if encoding not in _INFLATED_ENCODINGS:
        raise ProviderBadResponse("The provider's answer is encoded in a way that was not asked for", phase="headers")
    return Decompressor(encoding)
