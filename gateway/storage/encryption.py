"""Encryption of values in the database and in files, under keys that are derived from a root key.

AES-256-GCM (NIST SP 800-38D) with a random nonce of 96 bits; keys are derived by HKDF-SHA256 (RFC 5869), one for each
purpose. An encrypted value is a version byte, the nonce, then the ciphertext with its tag.
"""

import secrets
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ROOT_BYTES = 32
_VERSION = b"\x01"
_NONCE_BYTES = 12
_HEAD_BYTES = len(_VERSION) + _NONCE_BYTES


class DecryptionFailed(Exception):
    """A value cannot be decrypted; the message is for the operator."""

    def __init__(self, purpose: str) -> None:
        super().__init__(
            f"What is sealed in the database for {purpose!r} cannot be opened: the master key of the data folder is "
            "not "
            "the one it was sealed with. Restore the folder and the database from the same backup"
        )


class SecretBox:
    """Encrypts and decrypts values of one ``purpose``. The 32 random bytes of ``root`` are used only to derive keys."""

    def __init__(self, root: bytes, purpose: str = "") -> None:
        if len(root) != ROOT_BYTES:
            raise ValueError(f"a root key has {ROOT_BYTES} bytes")
        self._root = root
        self._purpose = purpose

    def derive(self, purpose: str) -> "SecretBox":
        """Return a ``SecretBox`` for ``purpose``. Neither box can decrypt values of the other."""
        return SecretBox(self._root, f"{self._purpose}/{purpose}")

    def seal(self, plaintext: bytes, *, context: str) -> bytes:
        """Encrypt ``plaintext``, bound to the context ``context`` (``channel:7``)."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, plaintext, _VERSION + context.encode())

    def open(self, sealed: bytes, *, context: str) -> bytes:
        """Decrypt a value that is bound to the context ``context``. Raises ``DecryptionFailed``."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - as below

        version, nonce, ciphertext = sealed[:1], sealed[1:_HEAD_BYTES], sealed[_HEAD_BYTES:]
        if version != _VERSION or len(nonce) != _NONCE_BYTES:
            raise DecryptionFailed(context)
        try:
            return self._cipher.decrypt(nonce, ciphertext, version + context.encode())
        except InvalidTag:
            raise DecryptionFailed(context) from None

    def derive_key(self, purpose: str) -> bytes:
        """Return 32 bytes for ``purpose``, for another use than sealing."""
        return self._derive(f"model gateway, key of {self._purpose}/{purpose}")

    @cached_property
    def _cipher(self) -> "AESGCM":
        # The package costs 10 ms and 8 MB, so it is imported only when a value is encrypted or decrypted.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - see above

        return AESGCM(self._derive(f"model gateway, seal of {self._purpose}"))

    def _derive(self, info: str) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        return HKDF(SHA256(), ROOT_BYTES, None, info.encode()).derive(self._root)
