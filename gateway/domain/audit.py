"""The audit trail: who changed what, on record in the commit of the change itself. Rows are only ever added."""

from collections.abc import Sequence
from typing import Literal, Protocol

import attrs

ActorKind = Literal["token", "member", "file", "gateway"]
"""Who acts: the bearer of the admin token (the ``gateway`` command), a member who is signed in, the configuration file,
or the gateway itself."""


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


@attrs.frozen
class AuditFilter:
    """Which rows to list; None does not restrict. ``before`` is a sequence: only older ones."""

    account_id: int | None = None
    actor: str | None = None
    action: str | None = None
    before: int | None = None


class AuditTrail(Protocol):
    """Where audit rows are read; whoever changes something writes them with it."""

    async def list_audit(self, wanted: AuditFilter, limit: int) -> Sequence[AuditRow]:
        """The newest ``limit`` rows that match, the newest first. An ``action`` may be a noun: ``key`` is ``key.*``."""
        ...

    async def add_audit(self, row: AuditRow) -> None:
        """A row about what is not in the store."""
        ...
