"""Passkeys of members. They are registered on the account page, and sign in on their own or after the passphrase."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import orjson

from gateway.auth.challenges import Challenges
from gateway.auth.login_throttle import Throttle
from gateway.auth.sessions import ClientInfo, CurrentUser, NewSession, SessionService, build_audit, note_refusal
from gateway.auth.webauthn_check import (
    VerificationFailed,
    check_assertion,
    check_attestation,
    is_installed,
    parse_challenge,
)
from gateway.domain.audit_log import Actor
from gateway.domain.member import PASSWORDS_DISABLED, Credential, Forbidden, Member, WrongPassphrase
from gateway.domain.passkey import (
    CHALLENGE_MS,
    MAX_PASSKEYS,
    PASSKEY_REFUSED,
    PASSKEYS_MISSING,
    Assertion,
    Attestation,
    Passkey,
    PasskeyUse,
    RelyingParty,
    write_user_handle,
)
from gateway.domain.passkey_spec import encode
from gateway.errors import Conflict, InvalidRequest, NotFound, StoreUnavailable
from gateway.installation import format_install_command
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.members import MemberRepository
from gateway.storage.passkeys import PasskeyRepository

Options = dict[str, Any]
SITE_REFUSED = "Passkeys need the console at a host name over HTTPS, or at localhost: set server.base_url"
_SERVICE_NAME = "Model gateway"
"""The name that authenticators show."""
_ALGORITHMS = (-8, -7, -257)
"""COSE numbers of Ed25519, ES256 and RS256, in order of preference. Every authenticator supports at least one."""
_SIGN_IN_PURPOSE = "sign in"


class PasskeyService:
    """Registers passkeys and signs in members with them.

    ``sessions`` opens sessions and checks the passphrase of a member. ``audit_log`` records refusals of known passkeys.
    ``throttle``, which ``sessions`` shares, slows down guessing.
    """

    def __init__(
        self,
        passkeys: PasskeyRepository,
        members: MemberRepository,
        sessions: SessionService,
        audit_log: AuditLogRepository,
        throttle: Throttle,
        *,
        challenges: Challenges,
    ) -> None:
        self._passkeys = passkeys
        self._members = members
        self._sessions = sessions
        self._audit_log = audit_log
        self._throttle = throttle
        self._challenges = challenges

    def find_obstacle(self, site: RelyingParty | None) -> Literal["passphrases", "extra", "site"] | None:
        """Return why passkeys cannot be used; None if they can.

        The reasons, in the order of the type: members do not sign in by passphrase, the extra is not installed, or
        ``site`` is None because the console has no suitable address.
        """
        if not self._sessions.is_local:
            return "passphrases"
        return "extra" if not is_installed() else "site" if site is None else None

    def check_ready(self, site: RelyingParty | None) -> RelyingParty:
        """Return ``site`` if passkeys can be used there. Raises ``Conflict``, ``Forbidden``."""
        obstacle = self.find_obstacle(site)
        if obstacle == "passphrases":
            raise Forbidden(PASSWORDS_DISABLED, should_retry=False)
        if obstacle == "extra":
            raise Conflict(
                f"Passkeys need an extra of the gateway: {format_install_command('sso')}", should_retry=False
            )
        if site is None:
            raise Conflict(SITE_REFUSED, should_retry=False)
        return site

    async def list_passkeys(self, member_id: int) -> Sequence[Passkey]:
        return await self._passkeys.list_passkeys(member_id)

    async def start_registration(
        self, site: RelyingParty, user: CurrentUser, passphrase: str, visitor: ClientInfo
    ) -> Options:
        """Check a member's passphrase; return options for ``navigator.credentials.create()``.

        Raises ``WrongPassphrase``, ``RateLimited``, and ``Conflict`` if the member has ``MAX_PASSKEYS`` already.
        """
        await self._sessions.check_consent(user, passphrase, visitor)
        member = user.member
        passkeys = await self._passkeys.list_passkeys(member.id)
        if len(passkeys) >= MAX_PASSKEYS:
            raise Conflict(f"You have {MAX_PASSKEYS} passkeys already: remove one first")
        return {
            "challenge": encode(self._challenges.make(_format_registration_purpose(user))),
            "rp": {"id": site.id, "name": _SERVICE_NAME},
            "user": {"id": encode(write_user_handle(member.id)), "name": member.name, "displayName": member.name},
            "pubKeyCredParams": [{"type": "public-key", "alg": number} for number in _ALGORITHMS],
            "authenticatorSelection": {"residentKey": "preferred", "userVerification": "preferred"},
            "attestation": "none",
            "excludeCredentials": list(map(_build_descriptor, passkeys)),
            "timeout": CHALLENGE_MS,
        }

    async def register(
        self, site: RelyingParty, user: CurrentUser, answer: Attestation, visitor: ClientInfo
    ) -> Passkey:
        """Store a new passkey.

        Raises ``InvalidRequest`` if the challenge has expired or the answer is not valid, and the errors of
        ``PasskeyRepository.add_passkey``.
        """
        challenge = parse_challenge(answer.client_data)
        if not await self._challenges.use(challenge, _format_registration_purpose(user)):
            raise InvalidRequest("The registration took too long, or is not of this session: start again")
        try:
            credential = await check_attestation(answer, challenge, site)
        except VerificationFailed:
            raise InvalidRequest("The passkey's answer is not valid here: start again") from None
        member, now_ms = user.member, self._sessions.now_ms
        key, sign_count = credential.public_key, credential.sign_count
        passkey = Passkey(
            0, member.id, answer.credential_id, key, sign_count, answer.name, answer.transports, created_ms=now_ms
        )
        detail = orjson.dumps({"passkey": passkey.name}).decode()
        audit = build_audit(user.act(visitor.address), "member.passkey_added", member, now_ms, detail)
        return await self._passkeys.add_passkey(passkey, audit)

    async def rename(self, user: CurrentUser, passkey_id: int, name: str, visitor: ClientInfo) -> Passkey:
        passkey = await self._find_own_passkey(user, passkey_id)
        detail = orjson.dumps({"passkey": [passkey.name, name.strip()]}).decode()
        now_ms = self._sessions.now_ms
        audit = build_audit(user.act(visitor.address), "member.passkey_renamed", user.member, now_ms, detail)
        await self._passkeys.rename_passkey(passkey, name.strip(), audit)
        return await self._find_own_passkey(user, passkey_id)

    async def remove(self, user: CurrentUser, passkey_id: int, passphrase: str, visitor: ClientInfo) -> None:
        passkey = await self._find_own_passkey(user, passkey_id)
        await self._sessions.check_consent(user, passphrase, visitor)
        detail = orjson.dumps({"passkey": passkey.name}).decode()
        now_ms = self._sessions.now_ms
        audit = build_audit(user.act(visitor.address), "member.passkey_removed", user.member, now_ms, detail)
        await self._passkeys.delete_passkey(passkey, audit)

    def start_sign_in(self, site: RelyingParty) -> Options:
        """Return options for ``navigator.credentials.get()``. The browser offers its passkeys; no name is needed."""
        return self._build_request(site, _SIGN_IN_PURPOSE, (), "required")

    async def start_second_factor(self, site: RelyingParty, name: str, passphrase: str, visitor: ClientInfo) -> Options:
        """Check a member's passphrase; return options for ``navigator.credentials.get()`` with the member's passkeys.

        Raises ``Conflict`` if the member has no passkey, and the errors of ``SessionService.check_passphrase``.
        """
        member = await self._sessions.check_passphrase(name, passphrase, visitor)
        passkeys = await self._passkeys.list_passkeys(member.id)
        if not passkeys:
            raise Conflict(PASSKEYS_MISSING)
        return self._build_request(site, _format_second_factor_purpose(member), passkeys, "preferred")

    async def sign_in(self, site: RelyingParty, answer: Assertion, visitor: ClientInfo) -> NewSession:
        """Create a session for the answer to a challenge.

        Raises ``WrongPassphrase`` if the answer is not accepted, ``RateLimited``, and ``Forbidden`` if the member or
        the account is disabled.
        """
        passkey = await self._passkeys.find_passkey(answer.credential_id)
        member = None if passkey is None else await self._members.find_member(passkey.member_id)
        async with self._throttle.attempt("" if member is None else member.name, visitor.address):
            if passkey is None or member is None:
                note_refusal(None, visitor)
                raise WrongPassphrase(PASSKEY_REFUSED)
            try:
                use = await self._check(site, passkey, member, answer)
            except VerificationFailed as error:
                await self._note_refusal(passkey, member, str(error), visitor)
                raise WrongPassphrase(PASSKEY_REFUSED) from None
            detail = orjson.dumps({"passkey": passkey.name}).decode()
            return await self._sessions.open(member, Credential(member.passphrase, passkey=use), visitor, detail=detail)

    async def _check(self, site: RelyingParty, passkey: Passkey, member: Member, answer: Assertion) -> PasskeyUse:
        """Verify an answer (WebAuthn, section 7.2). Raises ``VerificationFailed``."""
        challenge = parse_challenge(answer.client_data)
        is_alone = await self._challenges.use(challenge, _SIGN_IN_PURPOSE)
        if not is_alone and not await self._challenges.use(challenge, _format_second_factor_purpose(member)):
            raise VerificationFailed("challenge")
        if answer.user_handle is not None and answer.user_handle != write_user_handle(member.id):
            raise VerificationFailed("user handle")
        assertion = await check_assertion(answer, challenge, site, passkey.public_key, needs_user=is_alone)
        if not passkey.accepts(assertion.sign_count):
            raise VerificationFailed("sign count")
        return PasskeyUse(passkey.id, assertion.sign_count)

    async def _note_refusal(self, passkey: Passkey, member: Member, reason: str, visitor: ClientInfo) -> None:
        note_refusal(member, visitor)
        actor = Actor("gateway", address=visitor.address)
        detail = orjson.dumps({"passkey": passkey.name, "reason": reason[:200]}).decode()
        audit = build_audit(actor, "member.passkey_refused", member, self._sessions.now_ms, detail)
        with suppress(StoreUnavailable):  # the sign-in is refused in any case
            await self._audit_log.add_audit(audit)

    async def _find_own_passkey(self, user: CurrentUser, passkey_id: int) -> Passkey:
        for passkey in await self._passkeys.list_passkeys(user.member.id):
            if passkey.id == passkey_id:
                return passkey
        raise NotFound(f"You have no passkey with the id {passkey_id}")

    def _build_request(
        self, site: RelyingParty, purpose: str, allowed_passkeys: Sequence[Passkey], user_verification: str
    ) -> Options:
        return {
            "challenge": encode(self._challenges.make(purpose)),
            "rpId": site.id,
            "allowCredentials": list(map(_build_descriptor, allowed_passkeys)),
            "userVerification": user_verification,
            "timeout": CHALLENGE_MS,
        }


def _format_registration_purpose(user: CurrentUser) -> str:
    return f"register {user.session.digest.hex()}"


def _format_second_factor_purpose(member: Member) -> str:
    """Return the purpose of a challenge that follows the passphrase step. A changed passphrase voids the challenge."""
    return f"second factor {member.id} {member.passphrase}"


def _build_descriptor(passkey: Passkey) -> Options:
    return {"type": "public-key", "id": encode(passkey.credential_id), "transports": list(passkey.transports)}
