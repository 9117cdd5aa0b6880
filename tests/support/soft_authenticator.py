"""An authenticator in software: real ES256 signatures, and every lie that a test wants it to tell."""

import hashlib
import secrets
from typing import Any

import attrs
import orjson
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from webauthn.helpers import encode_cbor

from gateway.domain.passkey_spec import decode, encode

_PRESENT, _VERIFIED, _ATTESTED = 0x01, 0x04, 0x40
Json = dict[str, Any]


@attrs.define
class SoftAuthenticator:
    """A device with one key.

    Attributes:
        origin: the page at which the browser thinks it is.
        rp_id: overrides what the options say.
        verifies: whether it checks who uses it.
        count: the signature counter.
        step: what the counter goes on by; 0 for a device without one.
        user_handle: as it was told at the registration.
    """

    origin: str
    rp_id: str | None = None
    verifies: bool = True
    count: int = 0
    step: int = 1
    credential_id: bytes = attrs.Factory(lambda: secrets.token_bytes(32))
    key: ec.EllipticCurvePrivateKey = attrs.Factory(lambda: ec.generate_private_key(ec.SECP256R1()))
    user_handle: bytes | None = None

    def create(self, options: Json, name: str = "Laptop", **changes: Any) -> Json:
        """The answer of ``navigator.credentials.create()`` to ``options``, as our script sends it."""
        self.user_handle = decode(options["user"]["id"])
        public = self.key.public_key().public_numbers()
        cose = {1: 2, 3: -7, -1: 1, -2: public.x.to_bytes(32, "big"), -3: public.y.to_bytes(32, "big")}
        about = bytes(16) + len(self.credential_id).to_bytes(2, "big") + self.credential_id + encode_cbor(cose)
        data = self._write_data(options["rp"]["id"], _ATTESTED) + about
        made = {"fmt": "none", "attStmt": {}, "authData": data}
        return {
            "id": encode(self.credential_id),
            "client_data": encode(self._write_client_data("webauthn.create", options["challenge"])),
            "attestation_object": encode(encode_cbor(made)),
            "name": name,
            "transports": ["internal"],
            **changes,
        }

    def get(self, options: Json, **changes: Any) -> Json:
        """The answer of ``navigator.credentials.get()`` to ``options``."""
        client_data = self._write_client_data("webauthn.get", options["challenge"])
        data = self._write_data(options["rpId"])
        signature = self.key.sign(data + hashlib.sha256(client_data).digest(), ec.ECDSA(hashes.SHA256()))
        return {
            "id": encode(self.credential_id),
            "client_data": encode(client_data),
            "authenticator_data": encode(data),
            "signature": encode(signature),
            "user_handle": None if self.user_handle is None else encode(self.user_handle),
            **changes,
        }

    def _write_client_data(self, kind: str, challenge: str) -> bytes:
        return orjson.dumps({"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False})

    def _write_data(self, rp_id: str, flags: int = 0) -> bytes:
        self.count += self.step
        flags |= _PRESENT | (_VERIFIED if self.verifies else 0)
        return hashlib.sha256((self.rp_id or rp_id).encode()).digest() + bytes([flags]) + self.count.to_bytes(4, "big")
