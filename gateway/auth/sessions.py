"""Who is at the door of the console: members sign in, are known by their sessions, and leave."""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs
import structlog

from gateway.auth.login_throttle import LoginThrottle
from gateway.auth.passwords import PasswordService
from gateway.auth.totp import Enrolment, Totp, find_step
from gateway.domain.account import Account
from gateway.domain.audit_log import Actor, AuditRow
from gateway.domain.member import (
    ABSOLUTE_MS,
    Credential,
    Member,
    Session,
    SignedOut,
    WrongPassphrase,
    find_passphrase_problem,
)
from gateway.errors import Conflict, InvalidRequest, NotFound, RateLimited, StoreUnavailable
from gateway.storage.members import MemberRepository

SEEN_EVERY_MS = 60_000
"""A session's last use is written this often at most."""
ENROLMENT_MS = 10 * 60 * 1000
"""How long a second factor waits for its first code."""
_MAX_ADDRESS, _MAX_AGENT = 64, 256

log = structlog.stdlib.get_logger(__name__)


@attrs.frozen
class CurrentUser:
    """Somebody who is signed in, as the store has it at this moment."""

    member: Member
    account: Account
    session: Session

    @property
    def expires_ms(self) -> int:
        """When the session is over at the latest."""
        return self.session.created_ms + ABSOLUTE_MS

    def act(self, address: str) -> Actor:
        """Who asks for a change, and from where."""
        member = self.member
        scope = None if member.role == "administrator" else member.account_id
        return Actor("member", member.name, member.id, member.account_id, scope, address)


@attrs.frozen
class ClientInfo:
    """Who stands at the door, signed in or not.

    Attributes:
        address: where they call from; empty where that is not known.
        agent: what their browser says it is.
        reference: of the session that they had before, if any; a new one takes its place.
    """

    address: str = ""
    agent: str = ""
    reference: str | None = attrs.field(default=None, repr=False)


@attrs.frozen
class NewSession:
    """Somebody has signed in: ``reference`` is what their browser is known by from now on."""

    reference: str = attrs.field(repr=False)
    signed: CurrentUser


class SessionService:
    """Knows who is signed in.

    Args:
        members: where members, their sessions and links live.
        passphrases: compares them.
        factors: compares codes.
        delays: makes those wait who guess.
        clock: Unix seconds.
    """

    def __init__(
        self,
        members: MemberRepository,
        passphrases: PasswordService,
        factors: Totp,
        delays: LoginThrottle,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._members = members
        self.passphrases = passphrases
        self._factors = factors
        self._delays = delays
        self._clock = clock
        self._enrolments: dict[bytes, tuple[Enrolment, int]] = {}

    @property
    def now_ms(self) -> int:
        """Now, Unix milliseconds."""
        return int(self._clock() * 1000)

    async def find(self, reference: str, *, used: bool = True) -> CurrentUser | None:
        """Who is signed in with the session of that reference; None where it is over, or they may not be any more.

        Not ``used`` is a look that does not keep it from running out. Raises ``StoreUnavailable``.
        """
        found = await self._members.find_session(digest_reference(reference))
        if found is None:
            return None
        session, member, account = found
        if session.is_over(self.now_ms) or member.status != "active" or account.status != "active":
            return None
        if used and self.now_ms >= session.seen_ms + SEEN_EVERY_MS:
            with suppress(StoreUnavailable):  # a full disk shuts nobody out who only looks
                await self._members.touch_session(session.digest, self.now_ms)
        return CurrentUser(member, account, session)

    async def sign_in(self, name: str, passphrase: str, code: str | None, visitor: ClientInfo) -> NewSession:
        """A new session, for what its member knows and has.

        Raises ``WrongPassphrase``, ``SecondFactorNeeded``, ``RateLimited`` with how long to wait, ``Forbidden`` where
        all is right and the member or the account is disabled.
        """
        name = name.strip().lower()
        with self._delays.attempt(name, visitor.address):
            member = await self._members.find_member_called(name)
            await self._check_passphrase(member, passphrase, visitor)
            if member is None:
                raise WrongPassphrase
            entry = await self.open(member, self._prove(member, code, visitor), visitor)
        if self.passphrases.is_worn(member.passphrase):
            await self._renew(member, passphrase)
        return entry

    async def open(self, member: Member, proof: Credential, visitor: ClientInfo) -> NewSession:
        """A session for what was shown. Raises ``WrongPassphrase``, ``Forbidden``."""
        reference, now_ms = make_reference(), self.now_ms
        agent = "".join(mark for mark in visitor.agent[:_MAX_AGENT] if mark.isprintable())
        session = Session(digest_reference(reference), member.id, now_ms, now_ms, visitor.address[:_MAX_ADDRESS], agent)
        actor = Actor("member", member.name, member.id, member.account_id, None, visitor.address)
        audit = build_audit(actor, "member.signed_in", member, now_ms)
        replaced = None if visitor.reference is None else digest_reference(visitor.reference)
        await self._members.add_session(session, proof, audit, replaces=replaced)
        signed = await self.find(reference)
        if signed is None:
            raise SignedOut("The session was ended as it began")
        return NewSession(reference, signed)

    async def sign_out(self, signed: CurrentUser, visitor: ClientInfo) -> None:
        """End the session that is asked with."""
        audit = build_audit(signed.act(visitor.address), "member.signed_out", signed.member, self.now_ms)
        await self._members.delete_sessions([signed.session.digest], audit)

    async def list_sessions(self, signed: CurrentUser) -> Sequence[Session]:
        """The member's own, those that are over left out, the newest first."""
        found = await self._members.list_sessions(signed.member.id)
        return [session for session in found if not session.is_over(self.now_ms)]

    async def end_session(self, signed: CurrentUser, session_id: str, visitor: ClientInfo) -> None:
        """End one of the member's own. Raises ``NotFound``."""
        digests = [session.digest for session in await self.list_sessions(signed) if session.id == session_id]
        if not digests or not await self._end(signed, digests, visitor):
            raise NotFound(f"You have no session with the id {session_id[:40]!r}")

    async def end_others(self, signed: CurrentUser, visitor: ClientInfo) -> int:
        """End every session of the member but this; how many."""
        found = await self._members.list_sessions(signed.member.id)
        digests = [session.digest for session in found if session.digest != signed.session.digest]
        return await self._end(signed, digests, visitor) if digests else 0

    async def _end(self, signed: CurrentUser, digests: Sequence[bytes], visitor: ClientInfo) -> int:
        audit = build_audit(signed.act(visitor.address), "session.ended", signed.member, self.now_ms)
        return await self._members.delete_sessions(digests, audit)

    async def change_passphrase(
        self, signed: CurrentUser, current: str, passphrase: str, visitor: ClientInfo
    ) -> NewSession:
        """Another passphrase: the member's sessions end, and this one goes on under another reference.

        Raises ``WrongPassphrase``, ``RateLimited``, ``InvalidRequest``, ``Conflict``.
        """
        member = signed.member
        with self._delays.attempt(member.name, visitor.address):
            await self._check_passphrase(member, current, visitor)
        after = attrs.evolve(member, passphrase=await self.hash_passphrase(passphrase, member.name))
        audit = build_audit(signed.act(visitor.address), "member.passphrase_changed", member, self.now_ms)
        await self._members.put_member(member, after, audit, end_sessions=True)
        return await self.open(after, Credential(after.passphrase, is_known=True), visitor)

    async def hash_passphrase(self, passphrase: str, name: str) -> str:
        """What is kept of a new passphrase. Raises ``InvalidRequest`` where it is none, ``RateLimited``."""
        problem = find_passphrase_problem(passphrase, name)
        if problem is not None:
            raise InvalidRequest(f"This passphrase will not do: {problem}", param="passphrase")
        return await self.passphrases.hash(passphrase)

    async def enrol(self, signed: CurrentUser, passphrase: str, visitor: ClientInfo) -> Enrolment:
        """A second factor, to be confirmed with its first code. Raises ``Conflict`` where there is one already."""
        _check_has_none(signed.member)
        with self._delays.attempt(signed.member.name, visitor.address):
            await self._check_passphrase(signed.member, passphrase, visitor)
        now_ms = self.now_ms
        self._enrolments = {key: value for key, value in self._enrolments.items() if value[1] > now_ms}
        enrolment = self._factors.enrol(signed.member.name)
        self._enrolments[signed.session.digest] = enrolment, now_ms + ENROLMENT_MS
        return enrolment

    async def confirm(self, signed: CurrentUser, code: str, visitor: ClientInfo) -> list[str]:
        """The second factor is the member's from now on; its recovery codes, shown this once.

        Raises ``Conflict`` where none waits for its code, or there is one: confirmed in another session while this one
        waited, it may be somebody else's wait. ``InvalidRequest`` where that is not the code.
        """
        _check_has_none(signed.member)
        enrolment, until_ms = self._enrolments.get(signed.session.digest, (None, 0))
        if enrolment is None or self.now_ms >= until_ms:
            raise Conflict("No second factor waits for its first code: begin again")
        step = find_step(enrolment.secret, "".join(code.split()), self._clock())
        if step is None:
            raise InvalidRequest("This is not the code that is shown now: is your device's clock right?", param="code")
        after, codes = self._factors.give(signed.member, enrolment.secret, step)
        audit = build_audit(signed.act(visitor.address), "member.second_factor_added", signed.member, self.now_ms)
        await self._members.put_member(signed.member, after, audit)
        self._enrolments.pop(signed.session.digest, None)
        return codes

    async def remove_second_factor(self, signed: CurrentUser, passphrase: str, code: str, visitor: ClientInfo) -> None:
        """Without it from now on. Raises ``WrongPassphrase``, ``SecondFactorNeeded``, ``RateLimited``, ``Conflict``."""
        member = signed.member
        if not member.has_second_factor:
            raise Conflict("You have no second factor")
        with self._delays.attempt(member.name, visitor.address):
            await self._check_passphrase(member, passphrase, visitor)
            self._prove(member, code, visitor)
        audit = build_audit(signed.act(visitor.address), "member.second_factor_removed", member, self.now_ms)
        await self._members.put_member(member, attrs.evolve(member, totp=None, recovery=()), audit)

    def prove(self, member: Member, code: str | None, visitor: ClientInfo) -> Credential:
        """What a code is worth where something else stands for the passphrase. Raises as ``sign_in``."""
        with self._delays.attempt(member.name, visitor.address):
            return self._prove(member, code, visitor)

    async def _check_passphrase(self, member: Member | None, passphrase: str, visitor: ClientInfo) -> None:
        if not await self.passphrases.fits(None if member is None else member.passphrase, passphrase):
            _note_refusal(member, visitor)
            raise WrongPassphrase

    def _prove(self, member: Member, code: str | None, visitor: ClientInfo) -> Credential:
        try:
            return self._factors.prove(member, code, self._clock())
        except WrongPassphrase:
            _note_refusal(member, visitor)
            raise

    async def _renew(self, member: Member, passphrase: str) -> None:
        """The hash at today's cost; where nobody has time for that, another day."""
        with suppress(RateLimited, Conflict, NotFound, StoreUnavailable):
            after = attrs.evolve(member, passphrase=await self.passphrases.hash(passphrase))
            await self._members.put_member(member, after)


def _check_has_none(member: Member) -> None:
    if member.has_second_factor:
        raise Conflict("You have a second factor already: take it away first")


def _note_refusal(member: Member | None, visitor: ClientInfo) -> None:
    # A name that nobody has is not written down: it may be a passphrase in the wrong field.
    log.warning("sign_in_refused", member=None if member is None else member.name, address=visitor.address)


def build_audit(actor: Actor, action: str, member: Member, at_ms: int, detail: str = "{}") -> AuditRow:
    """A row about a member."""
    return AuditRow(
        0,
        at_ms,
        actor.kind,
        actor.name,
        actor.member_id,
        actor.address,
        action,
        member.account_id,
        member.name,
        detail,
    )


def make_reference() -> str:
    """256 random bits, as text for a cookie or a link."""
    return secrets.token_urlsafe(32)


def digest_reference(reference: str) -> bytes:
    """What is kept of a session's reference or a link's: 256 random bits need no key to be hashed under."""
    return hashlib.sha256(reference.encode("utf-8", "surrogateescape")).digest()
