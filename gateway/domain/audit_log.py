"""The audit trail: who changed what, on record in the commit of the change itself. Rows are only ever added."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import attrs
import orjson

ActorKind = Literal["token", "member", "file", "gateway"]
"""Who acts: the bearer of the admin token (the ``gateway`` command), a member who is signed in, the configuration file,
or the gateway itself."""
KINDS: tuple[ActorKind, ...] = get_args(ActorKind)

SECRET = frozenset({"api_key", "api_keys", "headers", "passphrase", "proxy", "secret", "webhook_url"})
"""Fields of which is on record only that they were changed: what is in them opens something, or may."""
CHANGED = "changed"
"""What stands for a pair of values that is secret, or too long."""
LONGEST = 4_096
"""Bytes of a pair of values that is written out."""


@attrs.frozen
class Actor:
    """Who asks for a change.

    Attributes:
        name: a member's; empty for others.
        account_id: a member's own account.
        scope: the account whose things it may see and change; None: every account's. Administrators have none.
        address: where it calls from, if that is known.
    """

    kind: ActorKind
    name: str = ""
    member_id: int | None = None
    account_id: int | None = None
    scope: int | None = None
    address: str = ""

    def may_see(self, account_id: int) -> bool:
        """Whether what is that account's is there for it at all."""
        return self.scope is None or self.scope == account_id

    def did(
        self, action: str, subject: str, at_ms: int, *, account_id: int | None = None, detail: str = "{}"
    ) -> "AuditRow":
        """The row of what it did: to be written in the commit of the change."""
        return AuditRow(
            sequence=0,
            at_ms=at_ms,
            actor_kind=self.kind,
            actor=self.name,
            member_id=self.member_id,
            address=self.address,
            action=action,
            account_id=account_id,
            subject=subject,
            detail=detail,
        )


OPERATOR = Actor("token")
FILE = Actor("file")
GATEWAY = Actor("gateway")


@attrs.frozen
class AuditRow:
    """One change. ``sequence`` is the order of writing, 0 until it is stored.

    Attributes:
        action: ``noun.verbed``: ``key.created``, ``channel.edited``, ``account.credited``, ``member.signed_in``.
        account_id: whose it was, None where it is nobody's (a channel).
        subject: what it was, as people call it: ``acme/test``.
        detail: what changed, as JSON: ``{"rpm": [60, 120]}`` is before and after. Never a secret.
    """

    sequence: int
    at_ms: int
    actor_kind: ActorKind
    actor: str
    member_id: int | None
    address: str
    action: str
    account_id: int | None
    subject: str
    detail: str = "{}"


def build_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The fields in which ``after`` differs, as JSON: ``{"rpm": [60, 120], "proxy": "changed"}``.

    Both are as JSON shows them. A field that one of them has not is null there.
    """
    names = dict.fromkeys((*after, *before))
    pairs = {name: [before.get(name), after.get(name)] for name in names}
    return orjson.dumps({name: _build_pair(name, pair) for name, pair in pairs.items() if pair[0] != pair[1]}).decode()


def _build_pair(name: str, pair: list[Any]) -> list[Any] | str:
    return CHANGED if name in SECRET or len(orjson.dumps(pair)) > LONGEST else pair


@attrs.frozen
class AuditFilter:
    """Which rows to list; None does not restrict.

    Attributes:
        actor: a member's name; or ``token``, ``file``, ``gateway``, who have none.
        action: one, or a noun: ``key`` is ``key.created``, ``key.edited``, …
        before: a sequence: only older ones.
    """

    account_id: int | None = None
    actor: str | None = None
    action: str | None = None
    before: int | None = None
