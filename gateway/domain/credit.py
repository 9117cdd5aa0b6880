"""Credit leases: the part of a limit that one of several nodes may spend without asking, in nano-USD.

The store sets credit aside for a node and counts it against the limit as if it were spent. The node admits requests
from it in memory. Two invariants hold on every node at every moment:

- ``held + used <= granted``, except for what a provider charged beyond a reservation;
- the store has set aside for the node at least ``granted - used``, plus the amount settled but not posted yet.

So all amounts spent or held anywhere stay within the limit, whatever fails. This does not depend on clocks: credit is
taken in the store first and then in the node, and given back in the node first and then in the store.
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from gateway.domain.balance import BalanceOwner, UtcDay
from gateway.frozen import frozen, quick_frozen

BalanceId = tuple[BalanceOwner, int]
"""The owner of a balance: a key, an account, or a subject of a limit, and its id (``build_limit_id``)."""
_ID_BYTES = 8


def build_limit_id(counter: str, subject: str) -> BalanceId:
    """Return the id of the balance of a limit's subject: the same at every node, and of 63 bits."""
    digest = blake2b(f"{counter}\0{subject}".encode(), digest_size=_ID_BYTES).digest()
    return "limit", int.from_bytes(digest) >> 1


@quick_frozen
class LimitTerms:
    """What the store must know of a limit to grant one of its subjects credit.

    Attributes:
        counter: the name under which spending is counted (``Limit.counter``).
        cap_nanos: what the subject may spend in a window.
        since_s: the start of the window, or of the first slice that counts, in Unix seconds.
        is_rolling: whether all slices since then count together; otherwise each start is a window of its own.
    """

    counter: str
    subject: str
    cap_nanos: int
    since_s: int
    is_rolling: bool


@quick_frozen
class CreditRequest:
    """A node's request for credit: ``min_nanos`` for its smallest reservation, ``needed_nanos`` for all.

    ``desired_nanos`` is the most that the node takes: it includes credit for the next requests. ``terms`` is None
    unless the balance is that of a limit's subject.
    """

    balance: BalanceId
    min_nanos: int
    needed_nanos: int
    desired_nanos: int
    terms: LimitTerms | None = None


@quick_frozen
class CreditGrant:
    """The store's answer for one balance.

    Attributes:
        limited: False if the balance has no spending limit and needs no lease.
        granted_nanos: the amount by which the node's lease has grown.
        room_nanos: the part of the limit left after all leases; None if there is no limit.
        others_nanos: the outstanding amount of other nodes, if nothing was granted.
        since_day: the first day of the quota's current period, in days since 1970; 0 without one.
        outstanding_nanos: the part of the node's lease that is not posted yet; 0 without a limit.
        holders: the number of other nodes, not known to be dead, with an outstanding amount, if nothing was granted.
        first_slice_s: the start of the first slice with spending that counts in a rolling window; 0 for others.
        cap_nanos: what a subject of a limit may spend: for a session its budget in the store; 0 for keys and accounts.
    """

    balance: BalanceId
    limited: bool
    granted_nanos: int
    room_nanos: int | None
    others_nanos: int
    since_day: int = 0
    outstanding_nanos: int = 0
    holders: int = 0
    first_slice_s: int = 0
    cap_nanos: int = 0


@quick_frozen
class StoredLease:
    """A node's lease of one balance. ``late_nanos`` is the amount posted in the previous period."""

    balance: BalanceId
    granted_nanos: int
    posted_nanos: int
    late_nanos: int

    @property
    def outstanding_nanos(self) -> int:
        return self.granted_nanos - self.posted_nanos - self.late_nanos


@quick_frozen
class LeaseClaim:
    """A node's own figures of its lease.

    ``needed_nanos`` is held by requests, or spent and not stored yet. ``idle_nanos`` is the credit that the node has
    beyond that, and has given up for now. ``terms`` is None unless the balance is that of a limit's subject.
    """

    needed_nanos: int
    idle_nanos: int
    terms: LimitTerms | None = None


@quick_frozen
class CreditFigures:
    """The figures of one balance in the store. ``held_nanos`` is set aside for nodes and jobs."""

    spent_nanos: int
    credit_nanos: int
    held_nanos: int


@frozen
class CreditRecalled:
    """Another node asks for the idle credit of these balances."""

    balances: Collection[BalanceId]


@frozen
class CreditReturned:
    """These balances have more credit: another node has given some back after a recall, or has credited them."""

    balances: Collection[BalanceId]


@frozen
class RecallAnswered:
    """Another node has answered a recall of these balances."""

    node: str
    balances: Collection[BalanceId]


class CreditAuthority(Protocol):
    """Grants one node credit from the shared limits.

    Every method raises ``StoreUnavailable`` if the outcome is unknown. The node then has to read its leases. What other
    nodes do is published as the events ``CreditRecalled``, ``CreditReturned`` and ``RecallAnswered``.
    """

    async def take(self, requests: Sequence[CreditRequest], day: UtcDay) -> Sequence[CreditGrant]:
        """Answer all of ``requests``, one for each balance, in one transaction, as of ``day``."""
        ...

    async def return_credit(self, amounts: Mapping[BalanceId, int], reported_ids: Collection[BalanceId] = ()) -> None:
        """Return ``amounts``, which the node has given up. Tell other nodes about the balances in ``reported_ids``."""
        ...

    async def report_kept(self, balances: Collection[BalanceId]) -> None:
        """Tell the other nodes that this node has no idle credit of the recalled ``balances``."""
        ...

    async def recall(self, balances: Collection[BalanceId]) -> None:
        """Ask every other node for its idle credit of ``balances``."""
        ...

    async def take_overdrafts(self, balances: Collection[BalanceId]) -> bool:
        """Let only this node exceed ``balances``, for one request. Return False if another node has that right."""
        ...

    async def end_overdrafts(self, balances: Collection[BalanceId]) -> None:
        """End this node's overdrafts of ``balances``: other nodes may exceed them again."""
        ...

    async def find_leases(self) -> Sequence[StoredLease]: ...

    async def end_leases(self) -> None:
        """End every lease of the node. Posted amounts stay spent; the remaining credit becomes available again."""
        ...
