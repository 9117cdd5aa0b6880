"""Requests of members about themselves (sign-in, links, a new passphrase), and of administrators about members."""

from typing import Any

import attrs

from gateway.domain.account import Status
from gateway.domain.account_spec import build_time
from gateway.domain.member import MAX_PASSPHRASE, Member, Role
from gateway.frozen import frozen
from gateway.parsing import between, must

MAX_TYPED_CHARS = 64
"""Maximum characters of a name or code that people type."""
_TYPED_TEXT = must("1 to 64 characters", lambda value: 0 < len(value) <= MAX_TYPED_CHARS)
_CODE = must("at most 64 characters", lambda value: len(value) <= MAX_TYPED_CHARS)
_TOKEN = must("what a link ends in", lambda value: 0 < len(value) <= 128)  # noqa: PLR2004
_PASSPHRASE = must(f"at most {MAX_PASSPHRASE} characters", lambda value: len(value) <= MAX_PASSPHRASE)
"""Checked before anything is hashed: hashing a megabyte takes long."""
_FALSE_ONLY = must("false", lambda value: value is False)
_HOURS = between(1, 720)
MASKED = False
"""``repr`` of a field that no message may show; also of a name: users type a passphrase there."""


@frozen
class SignInSpec:
    """Signs in. ``code`` is one of an authenticator, or a recovery code, if the member has a second factor."""

    name: str = attrs.field(metadata=_TYPED_TEXT, repr=MASKED)
    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)
    code: str | None = attrs.field(default=None, metadata=_CODE, repr=MASKED)


@frozen
class SetupSpec:
    """Creates the first administrator. ``token`` is the end of the link that ``gateway serve`` prints."""

    token: str = attrs.field(metadata=_TOKEN, repr=MASKED)
    name: str = attrs.field(metadata=_TYPED_TEXT, repr=MASKED)
    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)


@frozen
class TokenSpec:
    """The token at the end of a link."""

    token: str = attrs.field(metadata=_TOKEN, repr=MASKED)


@frozen
class LinkUseSpec:
    """Uses a link. A new member needs a ``name``, a member with a second factor a ``code``."""

    token: str = attrs.field(metadata=_TOKEN, repr=MASKED)
    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)
    name: str | None = attrs.field(default=None, metadata=_TYPED_TEXT, repr=MASKED)
    code: str | None = attrs.field(default=None, metadata=_CODE, repr=MASKED)


@frozen
class PassphraseSpec:
    """Changes the passphrase of a member who knows the current one."""

    current: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)
    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)


@frozen
class ConsentSpec:
    """Repeats the passphrase, for what a stolen session must not do."""

    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)


@frozen
class CodeSpec:
    """Confirms a new second factor by its first code."""

    code: str = attrs.field(metadata=_CODE, repr=MASKED)


@frozen
class RemovalSpec:
    """Removes a second factor."""

    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)
    code: str = attrs.field(metadata=_CODE, repr=MASKED)


@frozen
class InviteSpec:
    """Invites a person; the link is valid for some hours."""

    account: str
    role: Role = "member"
    hours: int = attrs.field(default=72, metadata=_HOURS)


@frozen
class MemberSpec:
    """An administrator's change of a member.

    Attributes:
        second_factor: False removes the authenticator, its recovery codes and all passkeys.
        passkeys: False removes all passkeys.
        may_read_bodies: whether the member may read the kept bodies of its account's requests.
    """

    name: str | None = attrs.field(default=None, metadata=_TYPED_TEXT)
    role: Role | None = None
    status: Status | None = None
    second_factor: bool | None = attrs.field(default=None, metadata=_FALSE_ONLY)
    passkeys: bool | None = attrs.field(default=None, metadata=_FALSE_ONLY)
    may_read_bodies: bool | None = None


def build_member_fields(member: Member) -> dict[str, Any]:
    """Return a member as JSON, as the member may see it."""
    signed_in_ms = member.signed_in_ms
    return {
        "id": member.id,
        "name": member.name,
        "role": member.role,
        "second_factor": member.has_second_factor,
        "authenticator": member.totp is not None,
        "recovery_left": len(member.recovery),
        "passkeys": member.passkeys,
        "may_read_bodies": member.may_read_bodies,
        "created_at": build_time(member.created_ms // 1000),
        "signed_in_at": None if signed_in_ms is None else build_time(signed_in_ms // 1000),
    }
