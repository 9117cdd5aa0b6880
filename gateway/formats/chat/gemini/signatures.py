"""Other providers' reasoning signatures, encoded as thought signatures of Gemini's format.

Clients of Gemini send thought signatures, which are base64, back unchanged. Another provider's signature is therefore
encoded as base64 after a prefix, which distinguishes it from Gemini's own.
"""

import base64
import binascii

_SIGNED_PREFIX = b"gateway:s"
_REDACTED_PREFIX = b"gateway:r"
_PREFIXES = tuple(base64.b64encode(prefix).decode() for prefix in (_SIGNED_PREFIX, _REDACTED_PREFIX))
"""Base64 of the prefixes. Each prefix has nine bytes, so that its base64 has no padding and begins the whole base64."""
_STANDARD_ALPHABET = str.maketrans("-_", "+/")


def build_foreign(signature: str) -> str:
    """Return another provider's signature as a thought signature."""
    return base64.b64encode(_SIGNED_PREFIX + signature.encode()).decode()


def build_redacted(data: str) -> str:
    """Return another provider's encrypted reasoning as a thought signature."""
    return base64.b64encode(_REDACTED_PREFIX + data.encode()).decode()


def is_foreign(signature: object) -> bool:
    """Return whether a thought signature is another provider's."""
    return isinstance(signature, str) and signature.startswith(_PREFIXES)


def parse_foreign(signature: str) -> tuple[str | None, str | None]:
    """Return another provider's signature, or its encrypted reasoning; both are None for an invalid signature."""
    text = signature.translate(_STANDARD_ALPHABET).rstrip("=")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return None, None
    if raw.startswith(_SIGNED_PREFIX.decode()):
        return raw[len(_SIGNED_PREFIX) :], None
    if raw.startswith(_REDACTED_PREFIX.decode()):
        return None, raw[len(_REDACTED_PREFIX) :]
    return None, None
