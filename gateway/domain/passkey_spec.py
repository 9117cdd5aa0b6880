"""Requests about passkeys: bytes come as base64url without padding, as browsers write them."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode

import attrs

from gateway.domain.member import MAX_PASSPHRASE
from gateway.domain.member_spec import MASKED, MAX_TYPED_CHARS
from gateway.domain.passkey import Assertion, Attestation
from gateway.frozen import frozen
from gateway.parsing import must

_BASE64URL = re.compile(r"[A-Za-z0-9_-]*\Z", re.ASCII)
_MAX_ID_CHARS, _MAX_DATA_CHARS = 1364, 12_288
"""The maximum number of characters: of a credential id of at most 1023 bytes (section 5.8.3), and of anything else."""
_MAX_TRANSPORTS, _MAX_TRANSPORT_CHARS = 8, 32


def _is_base64url(text: str, max_length: int) -> bool:
    return 0 < len(text) <= max_length and _BASE64URL.match(text) is not None and len(text) % 4 != 1


_ID = must("base64url of 1 to 1023 bytes", lambda value: _is_base64url(value, _MAX_ID_CHARS))
_BYTES = must("base64url", lambda value: _is_base64url(value, _MAX_DATA_CHARS))
_NAME = must(
    "1 to 64 characters that can be seen",
    lambda value: 0 < len(value) <= MAX_TYPED_CHARS and value.isprintable() and bool(value.strip()),
)
_TYPED_TEXT = must("1 to 64 characters", lambda value: 0 < len(value) <= MAX_TYPED_CHARS)
_PASSPHRASE = must(f"at most {MAX_PASSPHRASE} characters", lambda value: len(value) <= MAX_PASSPHRASE)
_TRANSPORTS = must(
    "a few short words",
    lambda value: len(value) <= _MAX_TRANSPORTS and all(len(transport) <= _MAX_TRANSPORT_CHARS for transport in value),
)


@frozen
class PasskeyStartSpec:
    """Starts a sign-in with a passkey: alone, or after ``name`` and ``passphrase``.

    Attributes:
        name: The member's name; null: the passkey identifies the member.
    """

    name: str | None = attrs.field(default=None, metadata=_TYPED_TEXT, repr=MASKED)
    passphrase: str | None = attrs.field(default=None, metadata=_PASSPHRASE, repr=MASKED)


@frozen
class AssertionSpec:
    """Signs in with a passkey: the answer of ``navigator.credentials.get()``.

    Attributes:
        id: The credential's id. This and the other bytes are base64url.
        client_data: `response.clientDataJSON`.
        authenticator_data: `response.authenticatorData`.
        signature: `response.signature`.
        user_handle: `response.userHandle`; null if there is none.
    """

    id: str = attrs.field(metadata=_ID, repr=MASKED)
    client_data: str = attrs.field(metadata=_BYTES, repr=MASKED)
    authenticator_data: str = attrs.field(metadata=_BYTES, repr=MASKED)
    signature: str = attrs.field(metadata=_BYTES, repr=MASKED)
    user_handle: str | None = attrs.field(default=None, metadata=_BYTES, repr=MASKED)

    def parse(self) -> Assertion:
        """Return the answer with its fields decoded."""
        handle = None if self.user_handle is None else decode(self.user_handle)
        return Assertion(
            decode(self.id), decode(self.client_data), decode(self.authenticator_data), decode(self.signature), handle
        )


@frozen
class AttestationSpec:
    """Registers a passkey: the answer of ``navigator.credentials.create()``, and a name for lists.

    Attributes:
        id: The credential's id. This and the other bytes are base64url.
        client_data: `response.clientDataJSON`.
        attestation_object: `response.attestationObject`.
        transports: `response.getTransports()`.
    """

    id: str = attrs.field(metadata=_ID, repr=MASKED)
    client_data: str = attrs.field(metadata=_BYTES, repr=MASKED)
    attestation_object: str = attrs.field(metadata=_BYTES, repr=MASKED)
    name: str = attrs.field(metadata=_NAME)
    transports: tuple[str, ...] = attrs.field(default=(), metadata=_TRANSPORTS)

    def parse(self) -> Attestation:
        """Return the answer with its fields decoded."""
        client_data, attestation = decode(self.client_data), decode(self.attestation_object)
        return Attestation(decode(self.id), client_data, attestation, self.name.strip(), self.transports)


@frozen
class PasskeyNameSpec:
    """Renames a passkey."""

    name: str = attrs.field(metadata=_NAME)


def encode(data: bytes) -> str:
    """Return base64url without padding (RFC 4648, section 5)."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Return the bytes of base64url without padding."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
