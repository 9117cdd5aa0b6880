"""Members, who sign in to the console: their sessions, and the links that invite them.

A member belongs to one account. Roles: an administrator may do everything in every account; a member may use and
change what belongs to its account; a viewer may only see it.
"""

import re
from typing import Literal

import attrs

from gateway.domain.account import Status
from gateway.domain.passkey import PasskeyUse
from gateway.errors import GatewayError
from gateway.frozen import frozen

Role = Literal["viewer", "member", "administrator"]
"""The roles in ascending order of rights: each includes the rights of those before."""
ROLES: tuple[Role, ...] = ("viewer", "member", "administrator")

LinkKind = Literal["invite", "reset"]
"""A link creates a member, or resets a member's passphrase."""

MEMBER_NAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}\Z", re.ASCII)
"""Lower case, so that no two names differ by case alone. An e-mail address is a valid name."""
MIN_PASSPHRASE, MAX_PASSPHRASE = 12, 256
"""The bounds of a passphrase's length in characters. NIST SP 800-63B asks for length, not for special characters or
regular changes."""
IDLE_MS = 30 * 60 * 1000
ABSOLUTE_MS = 12 * 3_600 * 1000
"""How long a session lasts without use, and in total."""
LINK_LIFETIME_MS = 72 * 3_600 * 1000
"""How long a link is valid."""
_MIN_DIFFERENT_CHARS = 5
_COMMON_PASSWORDS = (
    "password",
    "passphrase",
    "qwerty",
    "123456",
    "letmein",
    "administrator",
    "correct horse battery staple",
)


def includes_rights(role: Role, needed_role: Role) -> bool:
    """Return whether ``role`` includes the rights of ``needed_role``."""
    return ROLES.index(role) >= ROLES.index(needed_role)


def find_passphrase_problem(passphrase: str, name: str) -> str | None:
    """Return in words why a new passphrase of the member ``name`` is too weak; None if it is good."""
    lower_passphrase = passphrase.lower()
    if not MIN_PASSPHRASE <= len(passphrase) <= MAX_PASSPHRASE:
        return f"expected {MIN_PASSPHRASE} to {MAX_PASSPHRASE} characters: a few words are good"
    if not passphrase.isprintable():
        return "expected characters that can be seen"
    if len(set(lower_passphrase)) < _MIN_DIFFERENT_CHARS:
        return f"expected at least {_MIN_DIFFERENT_CHARS} different characters"
    remainder = lower_passphrase
    for common_word in (*_COMMON_PASSWORDS, name.lower()):
        remainder = remainder.replace(common_word, "")
    if len(remainder) < MIN_PASSPHRASE // 2:
        return "expected something that is harder to guess than your name or a common password"
    return None


CHANGED_MEANWHILE = "Another user has changed this member: reload and try again"
DISABLED_TEXT = "You are known here, but may not come in: you or your account is disabled. Ask an administrator"
LAST_ADMINISTRATOR = "This is the only administrator who is active: make another one first"
PASSWORDS_DISABLED = "Nobody signs in to this gateway with a passphrase: use a sign-in provider"
LINK_GONE = "This link is not good, or not any more: ask for a new one"


class SignedOut(GatewayError):
    """No member is signed in, or the session has ended."""

    code = "signed_out"


class WrongPassphrase(GatewayError):
    """No member has that name and passphrase, or that code of a second factor."""

    code = "wrong_passphrase"

    def __init__(self, message: str = "The name, passphrase or code is wrong") -> None:
        super().__init__(message, should_retry=False)


class SecondFactorNeeded(GatewayError):
    """The passphrase is right; a second factor is also needed.

    ``param`` is ``passkey`` if the member has only passkeys, ``passkey_or_code`` if it also has an authenticator, and
    None if it needs a ``code``, of an authenticator or a recovery code.
    """

    code = "second_factor_needed"

    def __init__(self, *, has_codes: bool = True, has_passkeys: bool = False) -> None:
        message, param = "Now the code: of your authenticator, or one of your recovery codes", None
        if has_passkeys:
            message, param = "Now your passkey", "passkey"
        if has_passkeys and has_codes:
            message, param = "Now your passkey, or the code of your authenticator", "passkey_or_code"
        super().__init__(message, param=param, should_retry=False)


class Forbidden(GatewayError):
    """The client is authenticated and lacks the right."""

    code = "forbidden"


@frozen
class Member:
    """A person who signs in.

    Attributes:
        name: unique over all accounts.
        passphrase: the argon2id hash of the passphrase.
        totp: the second factor's secret, encrypted; None if the member has none.
        totp_step: the newest time step of a used code: no code is valid twice.
        recovery: digests of the recovery codes; each is valid once.
        passkeys: the number of the member's passkeys.
        may_read_bodies: whether the member may read the kept bodies of its account's requests. An administrator may
            read those of every account without it.
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
    passkeys: int = 0
    may_read_bodies: bool = False

    @property
    def has_second_factor(self) -> bool:
        return self.totp is not None or self.passkeys > 0

    def accept(self, proof: "Credential") -> "Member | None":
        """Return the member after ``proof`` was used; None if the passphrase has changed or the code was used."""
        if self.passphrase != proof.passphrase:
            return None
        if not self.has_second_factor or proof.is_known or proof.passkey is not None:
            return self
        if proof.step is not None:
            return attrs.evolve(self, totp_step=proof.step) if proof.step > self.totp_step else None
        if proof.recovery_digest not in self.recovery:
            return None
        return attrs.evolve(self, recovery=tuple(digest for digest in self.recovery if digest != proof.recovery_digest))


def find_difference(old_member: Member, new_member: Member) -> set[str]:
    """Return the names of the fields in which two members differ."""
    names = (field.name for field in attrs.fields(Member))
    return {name for name in names if getattr(old_member, name) != getattr(new_member, name)}


@frozen
class Credential:
    """The proofs that a member has given, to be checked again in the transaction that creates the session.

    Attributes:
        step: the time step of the code of an authenticator; None without such a code.
        recovery_digest: the digest of a recovery code; None without one.
        is_known: whether no second factor is asked for: the member has none yet, is signed in already, or comes from a
            sign-in provider.
        passkey: the use of a passkey; the repository checks its counter again.
    """

    passphrase: str = attrs.field(repr=False)
    step: int | None = None
    recovery_digest: str | None = attrs.field(default=None, repr=False)
    is_known: bool = False
    passkey: PasskeyUse | None = None


@frozen
class Session:
    """A signed-in browser. Only the ``digest`` of its 256-bit token is stored."""

    digest: bytes = attrs.field(repr=False)
    member_id: int
    created_ms: int
    seen_ms: int
    address: str = ""
    agent: str = ""

    def is_over(self, now_ms: int) -> bool:
        """Return whether the session was unused for too long, or lasted for too long."""
        return now_ms >= self.seen_ms + IDLE_MS or now_ms >= self.created_ms + ABSOLUTE_MS

    @property
    def id(self) -> str:
        """The session's name in lists: the start of the digest."""
        return self.digest.hex()[:16]


@frozen
class InviteLink:
    """A link for one use. With a ``member_id`` it resets that member's passphrase, otherwise it creates a member."""

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
        return self.digest.hex()[:16]


@frozen
class Identity:
    """A person as an OpenID Connect provider knows it. If ``member_id`` is None, the member was removed."""

    issuer: str
    subject: str
    member_id: int | None = None
