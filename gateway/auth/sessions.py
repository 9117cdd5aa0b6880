"""Console sessions: members sign in, are recognized by a cookie, change passphrase and second factor, and sign out."""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs
import structlog

from gateway.auth.login_throttle import Throttle
from gateway.auth.passwords import PasswordService
from gateway.auth.short_lived import ShortLived
from gateway.auth.totp import Enrolment, Totp, find_step
from gateway.domain.account import Account
from gateway.domain.audit_log import Actor, AuditRow
from gateway.domain.member import (
    ABSOLUTE_MS,
    PASSWORDS_DISABLED,
    Credential,
    Forbidden,
    Member,
    Session,
    SignedOut,
    WrongPassphrase,
    find_passphrase_problem,
)
from gateway.errors import Conflict, InvalidRequest, NotFound, RateLimited, StoreUnavailable
from gateway.frozen import frozen
from gateway.storage.members import MemberRepository

SEEN_INTERVAL_MS = 60_000
"""Minimum interval between two updates of a session's last use."""
ENROLMENT_TTL_MS = 10 * 60 * 1000
"""How long a new second factor waits for its first code."""
_ENROLMENT = "enrolment"
_MAX_ADDRESS_CHARS, _MAX_AGENT_CHARS = 64, 256

log = structlog.stdlib.get_logger(__name__)


@frozen
class CurrentUser:
    """A signed-in member, as currently stored."""

    member: Member
    account: Account
    session: Session

    @property
    def expires_ms(self) -> int:
        return self.session.created_ms + ABSOLUTE_MS

    def act(self, address: str) -> Actor:
        member = self.member
        scope = None if member.role == "administrator" else member.account_id
        return Actor(
            "member", member.name, member.id, member.account_id, scope, address, may_read_bodies=member.may_read_bodies
        )


@frozen
class ClientInfo:
    """The client of a request. ``reference`` identifies its current session, which a new session replaces."""

    address: str = ""
    agent: str = ""
    reference: str | None = attrs.field(default=None, repr=False)


@frozen
class NewSession:
    """A new session. ``reference`` identifies its browser from now on."""

    reference: str = attrs.field(repr=False)
    user: CurrentUser


class SessionService:
    """Creates, finds and ends sessions. ``is_local`` says whether members may sign in with a passphrase."""

    def __init__(
        self,
        members: MemberRepository,
        hasher: PasswordService,
        factors: Totp,
        throttle: Throttle,
        *,
        values: ShortLived,
        clock: Callable[[], float],
        is_local: bool,
    ) -> None:
        self._members = members
        self.hasher = hasher
        self._factors = factors
        self._throttle = throttle
        self._clock = clock
        self._values = values
        self.is_local = is_local

    @property
    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    async def find(self, reference: str, *, records_use: bool = True) -> CurrentUser | None:
        """Return the user of a live session; None if there is none, or the member or the account is disabled.

        If ``records_use`` is False, the session is not extended.
        """
        stored_session = await self._members.find_session(digest_reference(reference))
        if stored_session is None:
            return None
        session, member, account = stored_session
        if session.is_over(self.now_ms) or member.status != "active" or account.status != "active":
            return None
        if records_use and self.now_ms >= session.seen_ms + SEEN_INTERVAL_MS:
            with suppress(StoreUnavailable):  # a full disk must not lock out users who only read
                await self._members.touch_session(session.digest, self.now_ms)
        return CurrentUser(member, account, session)

    async def sign_in(self, name: str, passphrase: str, code: str | None, visitor: ClientInfo) -> NewSession:
        """Create a session for a member's passphrase and code.

        Raises ``WrongPassphrase``, ``SecondFactorNeeded``, ``RateLimited``, and ``Forbidden`` if the member or the
        account is disabled, or signing in by passphrase is off.
        """
        if not self.is_local:
            raise Forbidden(PASSWORDS_DISABLED, should_retry=False)
        name = name.strip().lower()
        async with self._throttle.attempt(name, visitor.address):
            member = await self._members.find_member_by_name(name)
            await self._check_passphrase(member, passphrase, visitor)
            if member is None:
                raise WrongPassphrase
            new_session = await self.open(member, self._verify_second_factor(member, code, visitor), visitor)
        if self.hasher.needs_rehash(member.passphrase):
            await self._rehash(member, passphrase)
        return new_session

    async def open(self, member: Member, proof: Credential, visitor: ClientInfo, *, detail: str = "{}") -> NewSession:
        """Create a session. ``proof`` is checked once more, and used up.

        ``detail`` is JSON for the audit row. Raises ``WrongPassphrase`` if ``proof`` is no longer valid. Raises
        ``Forbidden`` if the member or the account is disabled. Raises ``SignedOut`` if the session has ended already.
        """
        reference, now_ms = make_reference(), self.now_ms
        agent = "".join(character for character in visitor.agent[:_MAX_AGENT_CHARS] if character.isprintable())
        session = Session(
            digest_reference(reference), member.id, now_ms, now_ms, visitor.address[:_MAX_ADDRESS_CHARS], agent
        )
        actor = Actor("member", member.name, member.id, member.account_id, None, visitor.address)
        audit = build_audit(actor, "member.signed_in", member, now_ms, detail)
        replaced_digest = None if visitor.reference is None else digest_reference(visitor.reference)
        await self._members.add_session(session, proof, audit, replaces=replaced_digest)
        user = await self.find(reference)
        if user is None:
            raise SignedOut("The session was ended as it began")
        return NewSession(reference, user)

    async def sign_out(self, user: CurrentUser, visitor: ClientInfo) -> None:
        audit = build_audit(user.act(visitor.address), "member.signed_out", user.member, self.now_ms)
        await self._members.delete_sessions([user.session.digest], audit)

    async def list_sessions(self, user: CurrentUser) -> Sequence[Session]:
        sessions = await self._members.list_sessions(user.member.id)
        return [session for session in sessions if not session.is_over(self.now_ms)]

    async def end_session(self, user: CurrentUser, session_id: str, visitor: ClientInfo) -> None:
        digests = [session.digest for session in await self.list_sessions(user) if session.id == session_id]
        if not digests or not await self._end(user, digests, visitor):
            raise NotFound(f"You have no session with the id {session_id[:40]!r}")

    async def end_others(self, user: CurrentUser, visitor: ClientInfo) -> int:
        sessions = await self._members.list_sessions(user.member.id)
        digests = [session.digest for session in sessions if session.digest != user.session.digest]
        return await self._end(user, digests, visitor) if digests else 0

    async def _end(self, user: CurrentUser, digests: Sequence[bytes], visitor: ClientInfo) -> int:
        audit = build_audit(user.act(visitor.address), "session.ended", user.member, self.now_ms)
        return await self._members.delete_sessions(digests, audit)

    async def change_passphrase(
        self, user: CurrentUser, current_passphrase: str, passphrase: str, visitor: ClientInfo
    ) -> NewSession:
        """Change the passphrase. Other sessions and reset links end; this session continues under a new reference.

        Raises ``WrongPassphrase``, ``RateLimited``, ``InvalidRequest`` for an unsuitable passphrase, and ``Conflict``
        if the member was changed meanwhile.
        """
        member = user.member
        await self.check_consent(user, current_passphrase, visitor)
        changed_member = attrs.evolve(member, passphrase=await self.hash_passphrase(passphrase, member.name))
        audit = build_audit(user.act(visitor.address), "member.passphrase_changed", member, self.now_ms)
        await self._members.put_member(member, changed_member, audit, end_sessions=True)
        return await self.open(changed_member, Credential(changed_member.passphrase, is_known=True), visitor)

    async def check_consent(self, user: CurrentUser, passphrase: str, visitor: ClientInfo) -> None:
        """Check a signed-in member's passphrase before an action that a stolen session must not allow.

        Raises ``WrongPassphrase``, ``RateLimited``.
        """
        async with self._throttle.attempt(user.member.name, visitor.address):
            await self._check_passphrase(user.member, passphrase, visitor)

    async def check_passphrase(self, name: str, passphrase: str, visitor: ClientInfo) -> Member:
        """Return the member with a name and passphrase, without a session.

        Raises ``WrongPassphrase``, ``RateLimited``, and ``Forbidden`` if signing in by passphrase is off.
        """
        if not self.is_local:
            raise Forbidden(PASSWORDS_DISABLED, should_retry=False)
        name = name.strip().lower()
        async with self._throttle.attempt(name, visitor.address, is_whole=False):
            member = await self._members.find_member_by_name(name)
            await self._check_passphrase(member, passphrase, visitor)
            if member is None:
                raise WrongPassphrase
        return member

    async def hash_passphrase(self, passphrase: str, name: str) -> str:
        """Return the hash of a new passphrase. Raises ``InvalidRequest`` if it is too weak, ``RateLimited``."""
        problem = find_passphrase_problem(passphrase, name)
        if problem is not None:
            raise InvalidRequest(f"This passphrase will not do: {problem}", param="passphrase")
        return await self.hasher.hash(passphrase)

    async def enrol(self, user: CurrentUser, passphrase: str, visitor: ClientInfo) -> Enrolment:
        """Create the secret of an authenticator as second factor, which its first code must confirm.

        Raises ``WrongPassphrase``, ``RateLimited``, and ``Conflict`` if the member has an authenticator.
        """
        _check_no_second_factor(user.member)
        await self.check_consent(user, passphrase, visitor)
        enrolment = self._factors.enrol(user.member.name)
        session_digest, until_ms = user.session.digest, self.now_ms + ENROLMENT_TTL_MS
        await self._values.remove(_ENROLMENT, session_digest)
        await self._values.put(_ENROLMENT, session_digest, enrolment.secret.encode(), until_ms)
        return enrolment

    async def confirm(self, user: CurrentUser, code: str, visitor: ClientInfo) -> list[str]:
        """Confirm the second factor. Return its recovery codes, which only this result contains.

        Raises ``InvalidRequest`` for a wrong code. Raises ``Conflict`` if no second factor waits for its code, or if
        another session, perhaps another person's, has confirmed one meanwhile.
        """
        _check_no_second_factor(user.member)
        enrolment = await self._values.find(_ENROLMENT, user.session.digest)
        if enrolment is None:
            raise Conflict("No second factor is being set up: start again")
        secret = enrolment.decode()
        step = find_step(secret, "".join(code.split()), self._clock())
        if step is None:
            raise InvalidRequest("This is not the code that is shown now: is your device's clock right?", param="code")
        changed_member, codes = self._factors.confirm(user.member, secret, step)
        audit = build_audit(user.act(visitor.address), "member.second_factor_added", user.member, self.now_ms)
        await self._members.put_member(user.member, changed_member, audit)
        await self._values.remove(_ENROLMENT, user.session.digest)
        return codes

    async def remove_second_factor(self, user: CurrentUser, passphrase: str, code: str, visitor: ClientInfo) -> None:
        member = user.member
        if member.totp is None:
            raise Conflict("You have no second factor")
        async with self._throttle.attempt(member.name, visitor.address):
            await self._check_passphrase(member, passphrase, visitor)
            self._verify_second_factor(member, code, visitor)
        audit = build_audit(user.act(visitor.address), "member.second_factor_removed", member, self.now_ms)
        await self._members.put_member(member, attrs.evolve(member, totp=None, recovery=()), audit)

    async def verify_second_factor(self, member: Member, code: str | None, visitor: ClientInfo) -> Credential:
        """Verify the code of a member who was identified without the passphrase, by a link.

        Raises ``SecondFactorNeeded``, ``WrongPassphrase``, ``RateLimited``.
        """
        async with self._throttle.attempt(member.name, visitor.address):
            return self._verify_second_factor(member, code, visitor)

    async def _check_passphrase(self, member: Member | None, passphrase: str, visitor: ClientInfo) -> None:
        if not await self.hasher.matches(None if member is None else member.passphrase, passphrase):
            note_refusal(member, visitor)
            raise WrongPassphrase

    def _verify_second_factor(self, member: Member, code: str | None, visitor: ClientInfo) -> Credential:
        try:
            return self._factors.verify(member, code, self._clock())
        except WrongPassphrase:
            note_refusal(member, visitor)
            raise

    async def _rehash(self, member: Member, passphrase: str) -> None:
        """Store a new hash with today's cost; skipped while too many hashes wait."""
        with suppress(RateLimited, Conflict, NotFound, StoreUnavailable):
            changed_member = attrs.evolve(member, passphrase=await self.hasher.hash(passphrase))
            await self._members.put_member(member, changed_member)


def _check_no_second_factor(member: Member) -> None:
    if member.totp is not None:
        raise Conflict("You already have a second factor: remove it first")


def note_refusal(member: Member | None, visitor: ClientInfo) -> None:
    """Log a refused sign-in."""
    # An unknown name is not logged: it may be a passphrase in the wrong field.
    log.warning("sign_in_refused", member=None if member is None else member.name, address=visitor.address)


def build_audit(actor: Actor, action: str, member: Member, at_ms: int, detail: str = "{}") -> AuditRow:
    """Return an audit row about a member."""
    return AuditRow(
        0, at_ms, actor.kind, actor.name, actor.member_id, actor.address, action, member.account_id, member.name, detail
    )


def make_reference() -> str:
    """Return 256 random bits as text, for a cookie or a link."""
    return secrets.token_urlsafe(32)


def digest_reference(reference: str) -> bytes:
    """Return the digest of a reference, as it is stored. It needs no secret key: a reference is 256 random bits."""
    return hashlib.sha256(reference.encode("utf-8", "surrogateescape")).digest()
