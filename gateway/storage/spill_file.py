"""A file for data that does not fit into memory. It has no name, and only this process can read what it contains."""

import os
import tempfile
from pathlib import Path
from threading import Lock

from gateway.frozen import frozen

_KEY_BITS = 256
_NONCE_BYTES = 12


@frozen
class SpilledPiece:
    """The place of one piece in a ``SpillFile``."""

    number: int
    offset: int
    length: int


class SpillFile:
    """Pieces of data, sealed with AES-256-GCM under a key that is in memory only, for use in threads.

    The kernel frees the file when it is closed, or when the process ends or is killed. Raises ``OSError``.
    """

    def __init__(self, folder: Path) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - only if memory is short

        folder.mkdir(mode=0o700, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open until ``close``
        self._cipher = AESGCM(AESGCM.generate_key(_KEY_BITS))
        self._lock = Lock()
        self._count = self._end = 0

    def write(self, data: bytes) -> SpilledPiece:
        sealed = self._cipher.encrypt(self._make_nonce(self._count), data, None)
        with self._lock:
            self._check_open()
            piece = SpilledPiece(self._count, self._end, len(sealed))
            view = memoryview(sealed)
            while view:
                written = os.pwrite(self._file.fileno(), view, piece.offset + len(sealed) - len(view))
                view = view[written:]
            self._count, self._end = self._count + 1, self._end + len(sealed)
        return piece

    def read(self, piece: SpilledPiece) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - as above

        with self._lock:
            self._check_open()
            sealed = os.pread(self._file.fileno(), piece.length, piece.offset)
        try:
            return self._cipher.decrypt(self._make_nonce(piece.number), sealed, None)
        except InvalidTag:
            raise OSError("the file is damaged") from None

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _check_open(self) -> None:
        if self._file.closed:
            raise OSError("the file is closed")

    @staticmethod
    def _make_nonce(number: int) -> bytes:
        """Return the nonce of a piece: its number. Each file has its own key, so no nonce is used twice."""
        return number.to_bytes(_NONCE_BYTES, "big")
