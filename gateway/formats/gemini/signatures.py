"""Other providers' signatures of reasoning, as thought signatures of Gemini's format.

Clients of Gemini send a thought signature back unchanged; it is base64. So another provider's signature travels as
base64, too, behind a mark that tells it from Gemini's own: neither may be sent to the other.
"""

import base64
import binascii

_SIGNED = b"gateway:s"
_REDACTED = b"gateway:r"
_PREFIXES = tuple(base64.b64encode(mark).decode() for mark in (_SIGNED, _REDACTED))
"""Nine bytes each: their base64 has no padding, and is the beginning of the whole."""
_STANDARD = str.maketrans("-_", "+/")


def build_foreign(signature: str) -> str:
    """Return another provider's signature as a thought signature."""
    return base64.b64encode(_SIGNED + signature.encode()).decode()


def build_redacted(data: str) -> str:
    """Return another provider's encrypted reasoning as a thought signature."""
    return base64.b64encode(_REDACTED + data.encode()).decode()


def is_foreign(signature: object) -> bool:
    """Return whether a thought signature is another provider's."""
    return isinstance(signature, str) and signature.startswith(_PREFIXES)


def parse_foreign(signature: str) -> tuple[str | None, str | None]:
    """Return another provider's signature, or its encrypted reasoning; None for what it is not.

    Clients may send either alphabet of base64, with or without padding.
    """
    text = signature.translate(_STANDARD).rstrip("=")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return None, None
    if raw.startswith(_SIGNED.decode()):
        return raw[len(_SIGNED) :], None
    if raw.startswith(_REDACTED.decode()):
        return None, raw[len(_REDACTED) :]
    return None, None
