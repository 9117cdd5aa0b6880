"""What people write about themselves: to sign in, to come by a link; and what administrators write about members."""

from typing import Any

import attrs

from gateway.domain.account import Status
from gateway.domain.account_spec import build_time
from gateway.domain.member import MAX_PASSPHRASE, Member, Role
from gateway.parsing import between, must

MAX_TYPED = 64
"""Characters of a name."""
_TYPED = must("1 to 64 characters", lambda value: 0 < len(value) <= MAX_TYPED)
_CODE = must("at most 64 characters", lambda value: len(value) <= MAX_TYPED)
_TOKEN = must("what a link ends in", lambda value: 0 < len(value) <= 128)  # noqa: PLR2004
_PASSPHRASE = must(f"at most {MAX_PASSPHRASE} characters", lambda value: len(value) <= MAX_PASSPHRASE)
"""Looked at before anything is hashed: a megabyte takes its time."""
_NO = must("false", lambda value: value is False)
_HOURS = between(1, 720)
MASKED = False
"""``repr`` of what no message may show; a name too, into whose field a passphrase was typed before now."""


@attrs.frozen
class SignInSpec:
    """What opens a session. ``code``: of an authenticator or a recovery code, where the member has a second factor."""

    name: str = attrs.field(metadata=_TYPED, repr=MASKED)
    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)
    code: str | None = attrs.field(default=None, metadata=_CODE, repr=MASKED)


@attrs.frozen
class SetupSpec:
    """What makes the first administrator: ``token`` is what the link ends in that ``gateway serve`` prints."""

    token: str = attrs.field(metadata=_TOKEN, repr=MASKED)
    name: str = attrs.field(metadata=_TYPED, repr=MASKED)
    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)


@attrs.frozen
class TokenSpec:
    """What a link ends in."""

    token: str = attrs.field(metadata=_TOKEN, repr=MASKED)


@attrs.frozen
class LinkUseSpec:
    """What a link is used with. ``name``: of a new member; ``code``: of one who has a second factor."""

    token: str = attrs.field(metadata=_TOKEN, repr=MASKED)
    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)
    name: str | None = attrs.field(default=None, metadata=_TYPED, repr=MASKED)
    code: str | None = attrs.field(default=None, metadata=_CODE, repr=MASKED)


@attrs.frozen
class PassphraseSpec:
    """Another passphrase, for whoever knows the current one."""

    current: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)
    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)


@attrs.frozen
class ConsentSpec:
    """The passphrase again, for what a stolen session must not do."""

    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)


@attrs.frozen
class CodeSpec:
    """The first code of a new second factor."""

    code: str = attrs.field(metadata=_CODE, repr=MASKED)


@attrs.frozen
class RemovalSpec:
    """What takes a second factor away."""

    passphrase: str = attrs.field(metadata=_PASSPHRASE, repr=MASKED)
    code: str = attrs.field(metadata=_CODE, repr=MASKED)


@attrs.frozen
class InviteSpec:
    """Whom a link lets in, and for how many hours it is good."""

    account: str
    role: Role = "member"
    hours: int = attrs.field(default=72, metadata=_HOURS)


@attrs.frozen
class MemberSpec:
    """What an administrator changes of a member. ``second_factor`` false takes it away."""

    name: str | None = attrs.field(default=None, metadata=_TYPED)
    role: Role | None = None
    status: Status | None = None
    second_factor: bool | None = attrs.field(default=None, metadata=_NO)


def build_member(member: Member) -> dict[str, Any]:
    """A member as JSON shows it to itself."""
    signed_in_ms = member.signed_in_ms
    return {
        "id": member.id,
        "name": member.name,
        "role": member.role,
        "second_factor": member.has_second_factor,
        "recovery_left": len(member.recovery),
        "created_at": build_time(member.created_ms // 1000),
        "signed_in_at": None if signed_in_ms is None else build_time(signed_in_ms // 1000),
    }
