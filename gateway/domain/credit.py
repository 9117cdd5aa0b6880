"""Credit leases: what one of several nodes may spend of a limit without asking, in nano-USD. Plain arithmetic.

The store sets credit aside for a node and counts it against the limit as if it were spent; the node admits requests
from it in memory. Two things hold on every node at every moment:

- ``held + used <= granted``, except for what a provider charged beyond a reservation;
- what the store has set aside for the node is at least ``granted - used`` and what is settled but not posted yet.

So everything that is spent or held anywhere is within the limit, whatever fails. No clock occurs in the argument:
credit is taken in the store first and then in the node, and given back in the node first and then in the store.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from gateway.domain.balance import Owner, UtcDay
from gateway.frozen import quick_frozen

BalanceId = tuple[Owner, int]
"""Whose balance it is: a key's or an account's, by its id."""


@quick_frozen
class CreditWant:
    """What a node asks for one balance: at least the smallest waiting reservation, what all need, and some more."""

    balance: BalanceId
    least_nanos: int
    need_nanos: int
    want_nanos: int


@quick_frozen
class CreditGrant:
    """The store's answer for one balance.

    Attributes:
        limited: False if the balance has no spending limit, and needs no lease.
        granted_nanos: what the node's lease has grown by.
        room_nanos: what of the limit is left beside all leases; None without a limit.
        others_nanos: what other nodes have outstanding, if nothing was granted.
        since_day: the first day of the window that it is of, as a number since 1970; 0 without one.
        outstanding_nanos: what the node's lease has now that is not posted; 0 without a limit.
        holders: how many other nodes that are not known to be dead have something outstanding, if nothing was granted.
    """

    balance: BalanceId
    limited: bool
    granted_nanos: int
    room_nanos: int | None
    others_nanos: int
    since_day: int = 0
    outstanding_nanos: int = 0
    holders: int = 0


@quick_frozen
class StoredLease:
    """A node's lease of one balance as the store has it.

    ``posted_nanos`` is what of ``granted_nanos`` has become charges in this window, ``late_nanos`` in the one before.
    """

    balance: BalanceId
    granted_nanos: int
    posted_nanos: int
    late_nanos: int

    @property
    def outstanding_nanos(self) -> int:
        return self.granted_nanos - self.posted_nanos - self.late_nanos


@quick_frozen
class CreditFigures:
    """What the store has of one balance: what was spent and credited in its period, and what is set aside.

    ``held_nanos`` is what nodes and jobs have, and what nodes have spent and not posted yet.
    """

    spent_nanos: int
    credit_nanos: int
    held_nanos: int


class CreditAuthority(Protocol):
    """Who judges how much of each limit is left, on behalf of one node.

    Every method raises ``StoreUnavailable`` if the outcome is unknown: the node then has to read its leases.

    ``recalled``: called with the balances whose idle credit another node asks for. ``returned``: called with the
    balances of which there is more: another node has given credit back on such a call, or has credited them.
    ``answered``: called with another node and the balances whose idle credit it has returned, if it had any.
    """

    recalled: Callable[[Collection[BalanceId]], None]
    returned: Callable[[Collection[BalanceId]], None]
    answered: Callable[[str, Collection[BalanceId]], None]

    async def take(self, wants: Sequence[CreditWant], day: UtcDay) -> Sequence[CreditGrant]:
        """Answer all of ``wants``, one for each balance, in one transaction, as of ``day``."""
        ...

    async def give_back(self, amounts: Mapping[BalanceId, int], reported: Collection[BalanceId] = ()) -> None:
        """Take back what the node has already given up; tell the others that there is more of those ``reported``."""
        ...

    async def report_kept(self, balances: Collection[BalanceId]) -> None:
        """Tell the other nodes that nothing is idle of what they have recalled."""
        ...

    async def recall(self, balances: Collection[BalanceId]) -> None:
        """Ask every other node for its idle credit."""
        ...

    async def claim(self, balances: Collection[BalanceId]) -> bool:
        """Make the node the only one that may exceed all of ``balances``, for one request; False: another node may."""
        ...

    async def end_claim(self, balances: Collection[BalanceId]) -> None:
        """Let other nodes exceed those of ``balances`` that this one has claimed."""
        ...

    async def find_leases(self) -> Sequence[StoredLease]:
        """Return every lease of the node."""
        ...

    async def fold(self) -> None:
        """End every lease of the node: what it has posted stays spent, and the rest is free."""
        ...
