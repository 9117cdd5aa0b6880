"""Credit leases: what one of several nodes may spend of a limit without asking, in nano-USD. Plain arithmetic.

The store sets credit aside for a node and counts it against the limit as if it were spent; the node admits requests
from it in memory. Two things hold on every node at every moment:

- ``held + used <= granted``, except for what a provider charged beyond a reservation;
- what the store has set aside for the node is at least ``granted - used`` and what is settled but not posted yet.

So everything that is spent or held anywhere is within the limit, whatever fails. No clock occurs in the argument:
credit is taken in the store first and then in the node, and given back in the node first and then in the store.
"""

import attrs

from gateway.domain.balance import Owner
from gateway.domain.frozen import frozen

BalanceId = tuple[Owner, int]
"""Whose balance it is: a key's or an account's, by its id."""


@frozen
class CreditWant:
    """What a node asks for one balance: at least the smallest waiting reservation, what all need, and some more."""

    balance: BalanceId
    least_nanos: int
    need_nanos: int
    want_nanos: int


@frozen
class CreditGrant:
    """The store's answer for one balance.

    Attributes:
        limited: False if the balance has no spending limit, and needs no lease.
        granted_nanos: what the node's lease has grown by.
        room_nanos: what of the limit is left beside all leases; None without a limit.
        others_nanos: what other nodes have outstanding, if nothing was granted.
    """

    balance: BalanceId
    limited: bool
    granted_nanos: int
    room_nanos: int | None
    others_nanos: int


@frozen
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


@attrs.define(eq=False)
class Lease:
    """A node's own side of its lease of one balance.

    Attributes:
        granted_nanos: all that was ever granted and not given back.
        used_nanos: all that was settled here.
        held_nanos: the open reservations.
    """

    granted_nanos: int = 0
    used_nanos: int = 0
    held_nanos: int = 0

    @property
    def room_nanos(self) -> int:
        """What may still be reserved. Negative after an overrun."""
        return self.granted_nanos - self.used_nanos - self.held_nanos

    def hold(self, nanos: int) -> bool:
        """Reserve ``nanos`` if the lease covers them; return whether it does."""
        if nanos > self.room_nanos:
            return False
        self.held_nanos += nanos
        return True

    def settle(self, held_nanos: int, cost_nanos: int) -> None:
        """Spend ``cost_nanos`` and release what was reserved for it."""
        self.held_nanos -= held_nanos
        self.used_nanos += cost_nanos

    def detach(self, nanos: int) -> None:
        """Hand a reservation over to a durable job: the store counts it there from now on."""
        self.held_nanos -= nanos
        self.granted_nanos -= nanos

    def release(self, nanos: int) -> int:
        """Give up to ``nanos`` of the room back; return how much. The store is to be asked next."""
        given = max(0, min(nanos, self.room_nanos))
        self.granted_nanos -= given
        return given

    def correct(self, stored: StoredLease, unposted_nanos: int) -> None:
        """Take over what the store has, after an answer was lost.

        ``unposted_nanos`` is what was settled here and is not in the store.
        """
        self.granted_nanos = stored.outstanding_nanos + self.used_nanos - unposted_nanos
