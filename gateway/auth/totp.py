"""A second factor: codes of an authenticator (TOTP, RFC 6238), and recovery codes on paper."""
# ruff: noqa: PLC0415 - pyotp and segno are imported at the first use of a second factor

import hmac
import secrets
from base64 import b32encode
from hashlib import sha256

import attrs
import structlog

from gateway.domain.member import Credential, Member, SecondFactorNeeded, WrongPassphrase
from gateway.errors import InternalError
from gateway.frozen import frozen
from gateway.storage.encryption import DecryptionFailed, SecretBox

STEP_S = 30
RECOVERY_CODES = 10
ISSUER = "Model gateway"
"""The name that authenticators show."""
_STEP_OFFSETS = (0, -1, 1)
"""Accepted time steps, relative to the current one: for slow clocks and slow typing (RFC 6238, 5.2)."""
_DIGITS = 6
_RECOVERY_BYTES = 10
_GROUP_CHARS = 4
PURPOSE = "totp"
"""The purpose for which the secrets of second factors are encrypted."""

log = structlog.stdlib.get_logger(__name__)


@frozen
class Enrolment:
    """The secret for an authenticator: as text, as a link and as a QR code."""

    secret: str = attrs.field(repr=False)
    uri: str = attrs.field(repr=False)
    qr_svg: str = attrs.field(repr=False)


class Totp:
    """Creates and verifies second factors; their secrets are encrypted with ``secret_box``."""

    def __init__(self, secret_box: SecretBox) -> None:
        self._secret_box = secret_box.derive(PURPOSE)

    def enrol(self, name: str) -> Enrolment:
        import pyotp
        import segno

        secret = pyotp.random_base32()
        uri = pyotp.TOTP(secret).provisioning_uri(name=name, issuer_name=ISSUER)
        # Light modules even on a dark page: some cameras cannot read inverted codes.
        qr_svg = segno.make_qr(uri, error="m").svg_inline(svgclass="qr", lineclass=None, omitsize=True, light="#fff")
        return Enrolment(secret, uri, qr_svg)

    def confirm(self, member: Member, secret: str, step: int) -> tuple[Member, list[str]]:
        """Return the member with a confirmed second factor, and its recovery codes."""
        codes = [_make_recovery_code() for _ in range(RECOVERY_CODES)]
        sealed_secret = self._secret_box.seal(secret.encode(), context=build_associated_data(member.id))
        digests = tuple(map(_digest, codes))
        return attrs.evolve(member, totp=sealed_secret, totp_step=step, recovery=digests), codes

    def verify(self, member: Member, code: str | None, now_s: float) -> Credential:
        """Verify a code; return the proof. A member without a second factor needs no code.

        Raises ``SecondFactorNeeded`` if the code is missing or has another form, or the member has only passkeys;
        ``WrongPassphrase`` for a wrong or used code; ``InternalError`` if the stored secret cannot be decrypted.
        """
        if not member.has_second_factor:
            return Credential(member.passphrase, is_known=True)
        has_passkeys = member.passkeys > 0
        if member.totp is None:
            raise SecondFactorNeeded(has_codes=False, has_passkeys=has_passkeys)
        typed_code = _parse_code(code or "")
        if len(typed_code) == _DIGITS and typed_code.isascii() and typed_code.isdigit():
            step = find_step(self._open(member), typed_code, now_s)
            if step is None or step <= member.totp_step:
                raise WrongPassphrase
            return Credential(member.passphrase, step=step)
        if len(typed_code) != _RECOVERY_BYTES * 8 // 5:
            raise SecondFactorNeeded(has_passkeys=has_passkeys)
        digest = _digest(typed_code)
        if not any(hmac.compare_digest(digest, stored_digest) for stored_digest in member.recovery):
            raise WrongPassphrase
        return Credential(member.passphrase, recovery_digest=digest)

    def _open(self, member: Member) -> str:
        try:
            return self._secret_box.open(member.totp or b"", context=build_associated_data(member.id)).decode()
        except DecryptionFailed as error:
            log.warning("second_factor_unreadable", member=member.name, error=str(error))
            raise InternalError("Your second factor cannot be read here: use a recovery code") from None


def find_step(secret: str, code: str, now_s: float) -> int | None:
    """Return the time step of ``code`` near ``now_s``; None if the code matches no such step."""
    import pyotp

    totp, current_step = pyotp.TOTP(secret), int(now_s) // STEP_S
    steps = (current_step + offset for offset in _STEP_OFFSETS if current_step + offset >= 0)
    return next((step for step in steps if hmac.compare_digest(totp.generate_otp(step), code)), None)


def build_associated_data(member_id: int) -> str:
    """Return the context to which the secret of a second factor is bound."""
    return f"member:{member_id}"


def _make_recovery_code() -> str:
    """Return 80 random bits in groups of four unambiguous characters."""
    text = b32encode(secrets.token_bytes(_RECOVERY_BYTES)).decode().lower()
    return "-".join(text[start : start + _GROUP_CHARS] for start in range(0, len(text), _GROUP_CHARS))


def _parse_code(code: str) -> str:
    return "".join(character for character in code.lower() if character != "-" and not character.isspace())


def _digest(code: str) -> str:
    """Return the digest of a recovery code, as it is stored. It needs no secret key: a code is 80 random bits."""
    return sha256(_parse_code(code).encode("utf-8", "surrogatepass")).hexdigest()
