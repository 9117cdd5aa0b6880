"""A node's lease of what a subject of a limit may spend, and the book of such balances. Nano-USD, without a clock.

The store knows what all nodes have spent and set aside. The store's last answer says what is left of the whole
balance. Refusals are described from that answer, as in a single process.
"""

from typing import Protocol

import attrs

from gateway.domain.account_zone import AccountZone
from gateway.domain.balance import UtcDay
from gateway.domain.credit import BalanceId, CreditGrant, CreditRequest, LeaseClaim, LimitTerms, build_limit_id
from gateway.domain.leased_balance import LeasedBalance
from gateway.domain.limit import Limit
from gateway.domain.limit_balance import LimitBalance, LimitBook, SubjectBalance
from gateway.errors import StoreUnavailable

IDLE_SUBJECT_S = 2.0
"""The time without a request after which a subject's idle credit is given back, in seconds."""
MAX_IDLE_SUBJECTS = 10_000
"""Maximum number of idle subjects per limit that a node keeps: their balances have nothing that must be remembered."""


class LeaseKeeper(Protocol):
    """The leases of this node."""

    def find(self, balance: BalanceId) -> LeasedBalance | None: ...

    def return_idle(self, balance: LeasedBalance) -> None: ...


class LeasedLimitBook(LimitBook):
    """A limit on one node of a cluster. ``keeper`` has the leases of the node."""

    __slots__ = ("_keeper",)

    def __init__(
        self, keeper: LeaseKeeper, limit: Limit, now_s: float, account_zone: AccountZone | None = None
    ) -> None:
        self._keeper = keeper
        super().__init__(limit, now_s, account_zone)

    def make_balance(self, subject: str) -> SubjectBalance:
        balance_id = build_limit_id(self.counter, subject)
        balance = self._keeper.find(balance_id)
        if balance is None:
            return self._balance_class(balance_id[0], owner_id=balance_id[1], book=self, subject=subject)
        if not isinstance(balance, LeasedLimitBalance) or (balance.book.counter, balance.subject) != (
            self.counter,
            subject,
        ):
            raise StoreUnavailable("Two subjects of limits have the same id", retry_after_s=5)
        balance.book = self
        balance.recount_overrun()  # its idle credit may have been granted under another cap
        return balance

    @property
    def _balance_class(self) -> "type[LeasedLimitBalance]":
        return LeasedLimitBalance

    @property
    def max_kept(self) -> int:
        return min(self.limit.max_subjects, MAX_IDLE_SUBJECTS)

    def return_idle(self, balance: LeasedBalance) -> None:
        """Return the idle credit of a balance to the store, because its cap has changed."""
        self._keeper.return_idle(balance)


@attrs.define(eq=False)
class LeasedLimitBalance(LeasedBalance):
    """A node's lease of the balance of a limit's subject.

    Attributes:
        users: the number of requests that have a reservation with this balance.
        start_s: the window of the book when the balance was last used.
        store_nanos: what was neither spent nor set aside when the store last answered; None before.
        first_slice_s: see ``CreditGrant``.
    """

    book: LeasedLimitBook = attrs.field(kw_only=True)
    subject: str = attrs.field(kw_only=True)
    users: int = attrs.field(default=0, init=False)
    start_s: int = attrs.field(default=-1, init=False)
    store_nanos: int | None = attrs.field(default=None, init=False)
    first_slice_s: int = attrs.field(default=0, init=False)
    overrun_nanos: int = attrs.field(default=0, init=False)

    @property
    def idle_s(self) -> float:
        return IDLE_SUBJECT_S

    @property
    def leased(self) -> bool:
        return True

    @property
    def complete(self) -> bool:
        return True

    @property
    def cap_nanos(self) -> int:
        """What the subject may spend in a window."""
        return self.book.cap_nanos or 0

    @property
    def answered_cap_nanos(self) -> int:
        """The cap that the store's last answer was given under."""
        return self.cap_nanos

    @property
    def left_nanos(self) -> int:
        """What the subject may still spend, as of the store's last answer."""
        return max(0, (self.store_nanos or 0) + self.room_nanos)

    @property
    def spent_nanos(self) -> int:
        """What the subject has spent and other nodes have set aside for it, as of the store's last answer."""
        return self.cap_nanos - self.held_nanos - self.left_nanos

    def set_book(self, book: LimitBook) -> None:
        if isinstance(book, LeasedLimitBook):  # always: a node has no other books
            self.book = book

    def move(self) -> None:
        """Move to the book's window: a refusal in the former one does not matter any more."""
        self.start_s, self.refusal = self.book.start_s, None

    def forget(self) -> None:
        """Do nothing: the store counts what is spent."""

    def recount_overrun(self) -> None:
        """Return the idle credit after the cap has changed: it was granted under the former one."""
        self.refusal = None
        self.book.return_idle(self)

    def build_request(self, min_nanos: int, needed_nanos: int, desired_nanos: int) -> CreditRequest:
        return CreditRequest(self.id, min_nanos, needed_nanos, desired_nanos, self._build_terms())

    def _build_terms(self) -> LimitTerms:
        book = self.book
        since_s = book.start_s - book.rolling_s
        return LimitTerms(book.counter, self.subject, self.cap_nanos, since_s, book.rolling_s > 0)

    def is_outdated(self, request: CreditRequest) -> bool:
        return request.terms is not None and request.terms.cap_nanos > self.cap_nanos

    def note_answer(self, answer: CreditGrant) -> None:
        self.store_nanos, self.first_slice_s = answer.room_nanos or 0, answer.first_slice_s

    def claim(self, unposted_nanos: int) -> LeaseClaim:
        """Return the claim as ``LeasedBalance`` does, but without idle credit: the store does not know the cap."""
        return attrs.evolve(super().claim(unposted_nanos), idle_nanos=0, terms=self._build_terms())

    def describe(self, day: UtcDay) -> LimitBalance:  # noqa: ARG002 - the book has the window
        book, refusal = self.book, self.refusal
        total = self._build_total()
        left_nanos = self.left_nanos if refusal is None else refusal.left_nanos
        total.held_nanos = self.held_nanos + (0 if refusal is None else refusal.held_nanos)
        spent_nanos = max(0, self.answered_cap_nanos - total.held_nanos - left_nanos)
        first_s = min(self.first_slice_s or book.start_s, book.start_s) if book.rolling_s else book.start_s
        total.adopt({first_s: spent_nanos}, min(first_s, book.start_s - book.rolling_s))
        return total

    def _build_total(self) -> LimitBalance:
        """Return a balance with the limit of the subject, and without any amount."""
        return self.book.build_balance(self.subject)

    def find_balance(self, day: UtcDay) -> int | None:
        """Return the unspent part of the limit as of the last refusal; None if the store has refused nothing."""
        return None if self.refusal is None else self.describe(day).find_balance(day)

    def find_reset(self, day: UtcDay) -> int | None:
        return self.describe(day).find_reset(day)

    def name_limit(self) -> str:
        return self._build_total().name_limit()

    def describe_spending(self, day: UtcDay) -> str:
        return self.describe(day).describe_spending(day)

    def find_status(self, day: UtcDay) -> int:
        return self.describe(day).find_status(day)
