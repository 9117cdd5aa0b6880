"""The audit log: who changed what, written in the transaction of the change.

Rows stay as they are, except that names of forgotten end users are replaced.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import orjson

from gateway.frozen import frozen
from gateway.wording import mask_keys

ActorKind = Literal["token", "member", "file", "gateway"]
"""The admin token's bearer (the ``gateway`` command), a signed-in member, the configuration file, or the gateway."""
KINDS: tuple[ActorKind, ...] = get_args(ActorKind)

SECRET_FIELDS = frozenset({"api_key", "api_keys", "headers", "passphrase", "proxy", "secret", "webhook_url"})
"""Fields whose values are secret or grant access: only the fact of a change is logged."""
MASKED_CHANGE = "changed"
"""Replaces a pair of values that is secret or too long."""
MAX_DETAIL_BYTES = 4_096
"""The maximum length of a logged pair of values, in bytes."""


@frozen
class Actor:
    """The author of a change.

    Attributes:
        scope: the only account that the actor may see and change; None for administrators, who may change all.
        may_read_bodies: whether the actor may read the kept bodies of that account. Administrators need no such right.
    """

    kind: ActorKind
    name: str = ""
    member_id: int | None = None
    account_id: int | None = None
    scope: int | None = None
    address: str = ""
    may_read_bodies: bool = False

    def may_see(self, account_id: int) -> bool:
        return self.scope is None or self.scope == account_id

    def build_audit_row(
        self, action: str, subject: str, at_ms: int, *, account_id: int | None = None, detail: str = "{}"
    ) -> "AuditRow":
        """Return the audit row of an action, to be written in the transaction of the change."""
        return AuditRow(
            sequence=0,
            at_ms=at_ms,
            actor_kind=self.kind,
            actor=self.name,
            member_id=self.member_id,
            address=self.address,
            action=action,
            account_id=account_id,
            subject=mask_keys(subject),
            detail=detail,
        )


OPERATOR = Actor("token")
FILE = Actor("file")
GATEWAY = Actor("gateway")


@frozen
class AuditRow:
    """One change. ``sequence`` is the order of writing, 0 before it is stored.

    Attributes:
        action: ``noun.verbed``: ``key.created``, ``channel.edited``, ``account.credited``, ``member.signed_in``.
        subject: the name of what changed: ``acme/test``.
        detail: JSON of each changed field, before and after: ``{"rpm": [60, 120]}``. Never a secret.
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


def build_change(old_fields: Mapping[str, Any], new_fields: Mapping[str, Any]) -> str:
    """Return the fields that differ, as JSON: ``{"rpm": [60, 120], "proxy": "changed"}``. A missing field is null."""
    names = dict.fromkeys((*new_fields, *old_fields))
    pairs = {name: [old_fields.get(name), new_fields.get(name)] for name in names}
    return orjson.dumps({name: _build_pair(name, pair) for name, pair in pairs.items() if pair[0] != pair[1]}).decode()


def _build_pair(name: str, pair: list[Any]) -> list[Any] | str:
    return MASKED_CHANGE if name in SECRET_FIELDS or len(orjson.dumps(pair)) > MAX_DETAIL_BYTES else pair


@frozen
class AuditFilter:
    """A filter for rows. None does not restrict.

    ``actor`` is a member's name, or the kind of an actor without a name: ``token``, ``file``, ``gateway``. ``action``
    is an action, or its noun: ``key`` matches ``key.created``, ``key.edited``, … ``before`` is a sequence: only older
    rows match.
    """

    account_id: int | None = None
    actor: str | None = None
    action: str | None = None
    before: int | None = None
