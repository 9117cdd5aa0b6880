"""A service account of Google's cloud, as its key file has it, and the tokens that it signs."""

from base64 import b64encode
from typing import Any

import orjson
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

PRIVATE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
ACCOUNT = {
    "type": "service_account",
    "project_id": "p",
    "private_key_id": "key-1",
    "private_key": PEM,
    "client_email": "gateway@p.iam.gserviceaccount.com",
    "token_uri": "https://oauth2.googleapis.com/token",
}


def pack(file: Any) -> str:
    """A key file as a channel's key."""
    return b64encode(file if isinstance(file, bytes) else orjson.dumps(file)).decode()


KEY = pack(ACCOUNT)


def read_token(headers: dict[str, str]) -> str:
    scheme, _, token = headers["Authorization"].partition(" ")
    assert scheme == "Bearer"
    return token
