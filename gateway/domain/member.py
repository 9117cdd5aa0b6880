"""Who signs in to the console: members of an account, their sessions, and the links that let new ones in.

A member belongs to one account. Its role says what it may do: an administrator everything, everywhere; a member use and
change what is its account's; a viewer look at it.
"""

import re
from collections.abc import Sequence
from typing import Literal, Protocol

import attrs

from gateway.domain.audit import AuditRow
from gateway.domain.caller import Status
from gateway.domain.fault import Fault

Role = Literal["viewer", "member", "administrator"]
"""In the order of what they may do: each may do what those before it may."""
ROLES: tuple[Role, ...] = ("viewer", "member", "administrator")

LinkKind = Literal["invite", "reset"]
"""A link makes a new member, or gives one that there is a new passphrase."""

MEMBER_NAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}\Z", re.ASCII)
"""What people sign in with; written small, so that no two differ by case alone. An address of theirs is one."""
MIN_PASSPHRASE, MAX_PASSPHRASE = 12, 256
"""Characters. Length is what counts: NIST SP 800-63B asks for no special signs, and for no changes by the calendar."""
IDLE_MS = 30 * 60 * 1000
ABSOLUTE_MS = 12 * 3_600 * 1000
"""How long a session lasts unused, and at all."""
LINK_MS = 72 * 3_600 * 1000
"""How long a link is good."""
_DIFFERENT = 5
_WORN = ("password", "passphrase", "qwerty", "123456", "letmein", "administrator", "correct horse battery staple")


def may(role: Role, needed: Role) -> bool:
    """Whether ``role`` may do what ``needed`` may."""
    return ROLES.index(role) >= ROLES.index(needed)


def find_passphrase_problem(passphrase: str, name: str) -> str | None:
    """What is wrong with a new passphrase of ``name``, in words for whoever chose it."""
    plain = passphrase.lower()
    if not MIN_PASSPHRASE <= len(passphrase) <= MAX_PASSPHRASE:
        return f"expected {MIN_PASSPHRASE} to {MAX_PASSPHRASE} characters: a few words are good"
    if not passphrase.isprintable():
        return "expected characters that can be seen"
    if len(set(plain)) < _DIFFERENT:
        return f"expected at least {_DIFFERENT} different characters"
    rest = plain
    for worn in (*_WORN, name.lower()):
        rest = rest.replace(worn, "")
    if len(rest) < MIN_PASSPHRASE // 2:
        return "expected something that is harder to guess than your name or a common password"
    return None


class SignedOut(Fault):
    """Nobody is signed in, or no more."""

    code = "signed_out"


class WrongPassphrase(Fault):
    """No member has that name with that passphrase; nor, where it has a second factor, with that code."""

    code = "wrong_passphrase"


class SecondFactorNeeded(Fault):
    """The passphrase is right; ``code``, of an authenticator or a recovery code, is asked for too."""

    code = "second_factor_needed"


class Forbidden(Fault):
    """Whoever asks is known, and may not do this."""

    code = "forbidden"


@attrs.frozen
class Member:
    """A person who signs in.

    Attributes:
        name: unique over all accounts.
        passphrase: its argon2id hash.
        totp: the second factor's secret, sealed; None without one.
        totp_step: the newest time step that a code was used of: no code is good twice.
        recovery: digests of the codes that stand in for a lost second factor; each is used once.
    """

    id: int
    account_id: int
    name: str
    role: Role
    status: Status = "active"
    passphrase: str = attrs.field(default="", repr=False)
    totp: bytes | None = attrs.field(default=None, repr=False)
    totp_step: int = 0
    recovery: tuple[str, ...] = attrs.field(default=(), repr=False)
    created_ms: int = 0
    signed_in_ms: int | None = None


@attrs.frozen
class Session:
    """A browser that is signed in. Only the ``digest`` of its 256-bit reference is kept."""

    digest: bytes = attrs.field(repr=False)
    member_id: int
    created_ms: int
    seen_ms: int
    address: str = ""
    agent: str = ""

    def is_over(self, now_ms: int) -> bool:
        """Whether it has been unused for too long, or lasted for too long."""
        return now_ms >= self.seen_ms + IDLE_MS or now_ms >= self.created_ms + ABSOLUTE_MS

    @property
    def id(self) -> str:
        """What lists call it: the start of its digest, from which nothing can be made."""
        return self.digest.hex()[:16]


@attrs.frozen
class Link:
    """An address that lets one person in, once. Only the ``digest`` of what it carries is kept.

    ``member_id`` is whose passphrase it resets; ``role`` and ``account_id`` are what a new member gets.
    """

    digest: bytes = attrs.field(repr=False)
    kind: LinkKind
    account_id: int
    role: Role
    created_ms: int
    expires_ms: int
    member_id: int | None = None
    created_by: str = ""

    @property
    def id(self) -> str:
        """What lists call it."""
        return self.digest.hex()[:16]


class MemberStore(Protocol):
    """Where members, their sessions and links live. ``audit`` rows are written in the commit of what they tell of."""

    async def list_members(self) -> Sequence[Member]:
        """Every member, by id."""
        ...

    async def find_member(self, member_id: int) -> Member | None:
        """One member."""
        ...

    async def find_member_called(self, name: str) -> Member | None:
        """The member of that name."""
        ...

    async def add_member(self, member: Member, audit: AuditRow | None = None, *, link: bytes | None = None) -> Member:
        """Store a new member (its ``id`` is ignored) and return it with its id.

        ``link`` is the digest of the link it came by, which is used up in the same commit.
        Raises ``Conflict`` on its name, ``NotFound`` where the account or the link is not there (any more).
        """
        ...

    async def put_member(
        self,
        member: Member,
        audit: AuditRow | None = None,
        *,
        link: bytes | None = None,
        end_sessions: bool = False,
    ) -> None:
        """Replace the member of the same id; with ``end_sessions`` none of its sessions goes on.

        Raises ``NotFound`` (also of the link), or ``Conflict`` on its name.
        """
        ...

    async def delete_member(self, member_id: int, audit: AuditRow | None = None) -> None:
        """Remove a member with its sessions and links. Raises ``NotFound``."""
        ...

    async def add_session(self, session: Session, audit: AuditRow | None = None) -> None:
        """Store a new session; its member's ``signed_in_ms`` becomes when it was made."""
        ...

    async def find_session(self, digest: bytes) -> tuple[Session, Member] | None:
        """A session and its member, over or not."""
        ...

    async def touch_session(self, digest: bytes, seen_ms: int) -> None:
        """It was used. Nothing where it is not there."""
        ...

    async def list_sessions(self, member_id: int) -> Sequence[Session]:
        """A member's sessions, the newest first."""
        ...

    async def delete_sessions(self, digests: Sequence[bytes], audit: AuditRow | None = None) -> int:
        """End sessions; how many there were."""
        ...

    async def sweep_sessions(self, now_ms: int) -> int:
        """Forget sessions that are over and links that are no longer good; how many there were."""
        ...

    async def add_link(self, link: Link, audit: AuditRow | None = None) -> None:
        """Store a new link."""
        ...

    async def find_link(self, digest: bytes) -> Link | None:
        """A link, good or not."""
        ...

    async def list_links(self) -> Sequence[Link]:
        """Every link, the newest first."""
        ...

    async def delete_link(self, digest: bytes, audit: AuditRow | None = None) -> bool:
        """Take a link back; whether there was one."""
        ...
