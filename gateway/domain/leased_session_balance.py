"""A node's lease of the budget of a session. Nano-USD, without a clock.

The store has the budget in force. A node may know a budget that is a quarter of a second old. So the store's answers
decide how much credit there is.
"""

import attrs

from gateway.domain.credit import CreditGrant, CreditRequest
from gateway.domain.leased_limit_balance import LeasedLimitBalance, LeasedLimitBook
from gateway.domain.limit_balance import LimitBalance
from gateway.domain.request_budget import DEFAULT_STATUS, SessionBalance


class LeasedSessionBook(LeasedLimitBook):
    """The sessions on one node of a cluster."""

    __slots__ = ()

    @property
    def _balance_class(self) -> type[LeasedLimitBalance]:
        return LeasedSessionBalance


@attrs.define(eq=False)
class LeasedSessionBalance(LeasedLimitBalance):
    """A node's lease of the balance of a session.

    Attributes:
        limit_nanos: the budget as this node knows it; None if the session has none, or while that is not known.
        status: the HTTP status of a refusal.
        store_cap_nanos: the budget when the store last answered; None before.
        read_since_request: whether the budget was read after the store was last asked for credit.
        is_cap_lowered: whether the store's last answer was given under a lower budget than the answer before.
    """

    limit_nanos: int | None = attrs.field(default=None, init=False)
    status: int = attrs.field(default=DEFAULT_STATUS, init=False)
    store_cap_nanos: int | None = attrs.field(default=None, init=False)
    read_since_request: bool = attrs.field(default=False, init=False)
    is_cap_lowered: bool = attrs.field(default=False, init=False)

    @property
    def leased(self) -> bool:
        """Whether the session has a budget. Without one its costs are only counted."""
        return self.limit_nanos is not None

    @property
    def cap_nanos(self) -> int:
        return self.limit_nanos or 0

    @property
    def answered_cap_nanos(self) -> int:
        return self.cap_nanos if self.store_cap_nanos is None else self.store_cap_nanos

    @property
    def budget_left_nanos(self) -> int | None:
        return None if self.limit_nanos is None or self.store_nanos is None else self.left_nanos

    def set_limit(self, limit_nanos: int, status: int | None) -> None:
        """Set the budget. Idle credit that was granted under another one goes back to the store."""
        former_nanos, self.limit_nanos = self.limit_nanos, limit_nanos
        self.status = status or DEFAULT_STATUS
        self.read_since_request = True
        if former_nanos is None:  # what the session has spent before is not part of any lease
            self.beyond_nanos = max(0, -self.room_nanos)
            self.lease_unknown = self.lease_unknown or self.used_nanos != 0 or self.granted_nanos != 0
        if limit_nanos != former_nanos or limit_nanos < self.answered_cap_nanos:
            if self.store_nanos is not None:
                self.store_nanos += limit_nanos - self.answered_cap_nanos
                self.store_cap_nanos = limit_nanos
            self.recount_overrun()

    def build_request(self, min_nanos: int, needed_nanos: int, desired_nanos: int) -> CreditRequest:
        self.read_since_request = False
        return super().build_request(min_nanos, needed_nanos, desired_nanos)

    def is_outdated(self, request: CreditRequest) -> bool:
        """Return whether the limit was lowered, as for other limits.

        Also true if a lower budget was read while the store granted credit of a higher one, or if the store answered
        under a lower budget than before: reading that budget later does not show that it was lowered.
        """
        is_lowered = self.read_since_request and self.answered_cap_nanos > self.cap_nanos
        return is_lowered or self.is_cap_lowered or super().is_outdated(request)

    def note_answer(self, answer: CreditGrant) -> None:
        super().note_answer(answer)
        self.is_cap_lowered = answer.cap_nanos < self.answered_cap_nanos
        self.store_cap_nanos = answer.cap_nanos

    def _build_total(self) -> LimitBalance:
        total = SessionBalance(self.book, self.subject)
        total.limit_nanos, total.status = self.answered_cap_nanos, self.status
        return total

    def find_status(self, day: object) -> int:  # noqa: ARG002 - a session has no periods
        return self.status
