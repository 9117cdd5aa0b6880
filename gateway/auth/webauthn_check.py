"""Checks of authenticators' answers, using the ``webauthn`` package of the extra ``sso``."""
# ruff: noqa: PLC0415 - the extra may be missing, and is imported at the first use of a passkey

import asyncio
from importlib.util import find_spec
from typing import Any

import attrs
import orjson

from gateway.domain.passkey import Assertion, Attestation, RelyingParty
from gateway.domain.passkey_spec import decode
from gateway.frozen import frozen

_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""Exceptions that the package raises for malformed bytes, besides its own."""


class VerificationFailed(Exception):
    """An authenticator's answer is not valid for the site, the challenge or the passkey; the message is the reason."""


@frozen
class NewCredential:
    """A verified registration: the public key as COSE, and the signature counter."""

    public_key: bytes = attrs.field(repr=False)
    sign_count: int


@frozen
class SignedAssertion:
    """A verified assertion. ``is_verified`` says whether the device verified its user (a PIN, a fingerprint)."""

    sign_count: int
    is_verified: bool


def is_installed() -> bool:
    """Return whether the extra is installed."""
    return find_spec("webauthn") is not None


def parse_challenge(client_data: bytes) -> bytes:
    """Return the challenge in an authenticator's client data, which is not verified here; empty if there is none."""
    try:
        return decode(orjson.loads(client_data)["challenge"])
    except (LookupError, TypeError, ValueError, AttributeError):
        return b""


async def check_attestation(answer: Attestation, challenge: bytes, site: RelyingParty) -> NewCredential:
    """Verify a registration; return the new credential. Raises ``VerificationFailed``."""
    return await asyncio.to_thread(_check_attestation, answer, challenge, site)


async def check_assertion(
    answer: Assertion, challenge: bytes, site: RelyingParty, public_key: bytes, *, needs_user: bool
) -> SignedAssertion:
    """Verify an assertion, except its counter, and return it. Raises ``VerificationFailed``.

    With ``needs_user``, the device must have verified its user.
    """
    return await asyncio.to_thread(_check_assertion, answer, challenge, site, public_key, needs_user=needs_user)


def _check_attestation(answer: Attestation, challenge: bytes, site: RelyingParty) -> NewCredential:
    from webauthn import verify_registration_response
    from webauthn.helpers.exceptions import WebAuthnException
    from webauthn.helpers.structs import AuthenticatorAttestationResponse, RegistrationCredential

    response = AuthenticatorAttestationResponse(
        client_data_json=answer.client_data, attestation_object=answer.attestation_object
    )
    try:
        registration = verify_registration_response(
            credential=RegistrationCredential(_encode(answer.credential_id), answer.credential_id, response),
            expected_challenge=challenge,
            expected_rp_id=site.id,
            expected_origin=site.origin,
        )
    except (WebAuthnException, *_MALFORMED) as error:
        raise VerificationFailed(str(error)) from None
    if registration.credential_id != answer.credential_id:
        raise VerificationFailed("another credential was attested")
    return NewCredential(registration.credential_public_key, registration.sign_count)


def _check_assertion(
    answer: Assertion, challenge: bytes, site: RelyingParty, public_key: bytes, *, needs_user: bool
) -> SignedAssertion:
    from webauthn import verify_authentication_response
    from webauthn.helpers.exceptions import WebAuthnException
    from webauthn.helpers.structs import AuthenticationCredential, AuthenticatorAssertionResponse

    response = AuthenticatorAssertionResponse(
        client_data_json=answer.client_data, authenticator_data=answer.authenticator_data, signature=answer.signature
    )
    try:
        authentication = verify_authentication_response(
            credential=AuthenticationCredential(_encode(answer.credential_id), answer.credential_id, response),
            expected_challenge=challenge,
            expected_rp_id=site.id,
            expected_origin=site.origin,
            credential_public_key=public_key,
            credential_current_sign_count=0,  # the package compares it before the signature: a mismatch proves nothing
            require_user_verification=needs_user,
        )
    except (WebAuthnException, *_MALFORMED) as error:
        raise VerificationFailed(str(error)) from None
    return SignedAssertion(authentication.new_sign_count, authentication.user_verified)


def _encode(credential_id: bytes) -> Any:
    from webauthn.helpers import bytes_to_base64url

    return bytes_to_base64url(credential_id)
