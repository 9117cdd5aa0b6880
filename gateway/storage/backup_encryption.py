"""Encryption of a backup with a passphrase: AES-256-GCM in chunks, under a key derived by argon2id (RFC 9106).

The file is a header (``MAGIC`` and a random salt), then chunks of 64 KiB, each with its tag; the last may be shorter.
The nonce of a chunk consists of its number and a flag for the last chunk, as in the STREAM construction (Hoang,
Reyhanitabar, Rogaway, Vizár 2015): removed, reordered or truncated chunks are detected. The key belongs to a single
file, because its salt does; the header is associated data of every chunk.
"""

import io
import secrets
import unicodedata
from functools import cached_property
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"gateway backup, encrypted, 1\n"
CHUNK_BYTES = 64 * 1024
_SALT_BYTES, _TAG_BYTES, _KEY_BYTES = 16, 16, 32
_PASSES, _MEMORY_KIB, _LANES = 3, 65_536, 4
"""The second recommended option of RFC 9106, section 4."""


class BackupUnreadable(Exception):
    """A backup cannot be read; the message is for the operator."""


class _Cipher:
    """Encrypts or decrypts the chunks of one file in order."""

    def __init__(self, passphrase: str, head: bytes) -> None:
        self._passphrase = passphrase
        self._head = head
        self._number = 0

    def encrypt(self, chunk: bytes, *, is_last: bool) -> bytes:
        return self._aead.encrypt(self._next_nonce(is_last), chunk, self._head)

    def decrypt(self, chunk: bytes, *, is_last: bool) -> bytes:
        """Decrypt the next chunk. Raises ``InvalidTag`` if chunk, position or passphrase differ from the encryption."""
        return self._aead.decrypt(self._next_nonce(is_last), chunk, self._head)

    def _next_nonce(self, is_last: bool) -> bytes:
        nonce = self._number.to_bytes(11, "big") + bytes([is_last])
        self._number += 1
        return nonce

    @cached_property
    def _aead(self) -> "AESGCM":
        from argon2.low_level import Type, hash_secret_raw  # noqa: PLC0415 - 20 ms that only few commands need
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

        secret = unicodedata.normalize("NFC", self._passphrase).encode("utf-8", "surrogateescape")
        salt = self._head[len(MAGIC) :]
        return AESGCM(hash_secret_raw(secret, salt, _PASSES, _MEMORY_KIB, _LANES, _KEY_BYTES, Type.ID))


class EncryptingWriter(io.RawIOBase):
    """Encrypts the bytes written to it into ``file``. ``finish`` writes the last chunk."""

    def __init__(self, file: IO[bytes], passphrase: str) -> None:
        head = MAGIC + secrets.token_bytes(_SALT_BYTES)
        self._file = file
        self._cipher = _Cipher(passphrase, head)
        self._unwritten = bytearray()
        file.write(head)

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]  # any buffer
        self._unwritten += data
        while len(self._unwritten) > CHUNK_BYTES:  # only ``finish`` knows the last chunk
            self._file.write(self._cipher.encrypt(bytes(self._unwritten[:CHUNK_BYTES]), is_last=False))
            del self._unwritten[:CHUNK_BYTES]
        return len(data)

    def finish(self) -> None:
        self._file.write(self._cipher.encrypt(bytes(self._unwritten), is_last=True))


class DecryptingReader(io.RawIOBase):
    """Decrypts ``file``, positioned after ``MAGIC``. Raises ``BackupUnreadable``."""

    def __init__(self, file: IO[bytes], passphrase: str) -> None:
        self._file = file
        salt = file.read(_SALT_BYTES)
        if len(salt) != _SALT_BYTES:
            raise BackupUnreadable("it is cut off")
        self._cipher = _Cipher(passphrase, MAGIC + salt)
        self._next_chunk = file.read(CHUNK_BYTES + _TAG_BYTES)
        self._plaintext = b""
        self._has_started = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # only io calls it
        if not self._plaintext and (self._next_chunk or not self._has_started):
            self._plaintext = self._decrypt_next()
        count = min(len(buffer), len(self._plaintext))
        buffer[:count], self._plaintext = self._plaintext[:count], self._plaintext[count:]
        return count

    def _decrypt_next(self) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see ``_Cipher``

        chunk, self._next_chunk = self._next_chunk, self._file.read(CHUNK_BYTES + _TAG_BYTES)
        try:
            plaintext = self._cipher.decrypt(chunk, is_last=not self._next_chunk)
        except (InvalidTag, ValueError):
            raise BackupUnreadable(
                "it was changed or cut off"
                if self._has_started
                else "the passphrase is wrong, or the backup was changed"
            ) from None
        self._has_started = True
        return plaintext
