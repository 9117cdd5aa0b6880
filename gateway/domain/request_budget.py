"""Budgets that requests bring along: of a single request, or shared by all requests of a session. Nano-USD."""

import re
from decimal import Decimal
from typing import Protocol

from gateway.domain.attribution import BUDGET_HEADER
from gateway.domain.balance import UtcDay
from gateway.domain.limit import Limit
from gateway.domain.limit_balance import LimitBalance, LimitBook, SubjectBalance
from gateway.domain.limit_window import parse_window
from gateway.domain.price import NANOS_PER_USD, usd
from gateway.errors import BudgetExceeded, InvalidRequest, QuotaExceeded
from gateway.frozen import frozen

SESSION_BUDGET = Limit("session budget", "session", window=parse_window("lifetime"))
"""The limit under whose name the spending of sessions is counted. Each session has a cap of its own."""
_HEADER_TEXT = re.compile(
    r"\s*(?P<usd>\d{1,9}(?:\.\d{1,9})?)\s*(?:;\s*session\s*=\s*(?P<session>[^;]{0,255}[^;\s])\s*)?", re.ASCII
)
DEFAULT_STATUS = 403
"""The HTTP status of a refusal, unless the key has another one."""


@frozen
class SessionState:
    """What is stored of a session.

    Attributes:
        subject: the id of its account, a colon and its name, as in limits of sessions.
        limit_nanos: its budget; None without one.
        status: the HTTP status of a refusal; None: the default.
        ended_ms: when it was ended, in Unix milliseconds; None: it was not.
    """

    subject: str
    limit_nanos: int | None = None
    status: int | None = None
    ended_ms: int | None = None

    @property
    def account_id(self) -> int:
        return int(self.subject.partition(":")[0])

    @property
    def session(self) -> str:
        return self.subject.partition(":")[2]


@frozen
class BudgetHeader:
    """The header: the budget in nano-USD, and the session that shares it; empty if the header names none."""

    limit_nanos: int
    session: str


def parse_budget(text: str) -> BudgetHeader:
    """Parse ``2.00`` or ``0.05; session=run1``. Raises ``InvalidRequest``."""
    match = _HEADER_TEXT.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"{BUDGET_HEADER} must be an amount in dollars, such as '0.05' or '0.05; session=run1'", param=BUDGET_HEADER
        )
    return BudgetHeader(int(Decimal(match["usd"]) * NANOS_PER_USD), match["session"] or "")


class BudgetBalance(SubjectBalance, Protocol):
    """The balance of a session: that of a single process, or a node's part of it (``leased_session_balance``).

    Attributes:
        limit_nanos: the budget; None if the session has none, or while that is not known.
    """

    limit_nanos: int | None

    @property
    def budget_left_nanos(self) -> int | None:
        """What the session may still spend; None without a budget, or if that is not known."""
        ...

    def set_limit(self, limit_nanos: int, status: int | None) -> None:
        """Set the budget, and the HTTP status of refusals (None: the default)."""
        ...


class SessionBook(LimitBook):
    """The balances of all sessions, if one process counts them alone; nodes of a cluster have leased balances."""

    __slots__ = ()

    def build_balance(self, subject: str) -> "SessionBalance":
        return SessionBalance(self, subject)


class SessionBalance(LimitBalance):
    """The balance of a session.

    Attributes:
        limit_nanos: the budget; None if the session has none, or while that is not known.
        status: the HTTP status of a refusal.
    """

    __slots__ = ("limit_nanos", "status")

    def __init__(self, book: LimitBook, subject: str) -> None:
        super().__init__(book, subject)
        self.limit_nanos: int | None = None
        self.status = DEFAULT_STATUS

    @property
    def name(self) -> str:
        return self.subject.partition(":")[2]

    @property
    def budget_left_nanos(self) -> int | None:
        limit_nanos = self.limit_nanos
        return None if limit_nanos is None else max(0, limit_nanos - self.spent_nanos - self.held_nanos)

    def set_limit(self, limit_nanos: int, status: int | None) -> None:
        """Set the budget. What exceeds a lowered one becomes an overrun."""
        self.limit_nanos = limit_nanos
        self.status = status or DEFAULT_STATUS
        self.recount_overrun()

    def find_room(self, day: UtcDay) -> int | None:  # noqa: ARG002 - a session has no periods
        if self.start_s != self.book.start_s:
            self.move()
        if not self.complete:
            return min(0, -self.held_nanos)
        return None if self.limit_nanos is None else self.limit_nanos - self.spent_nanos - self.held_nanos

    def _record_overrun(self) -> int:
        if not self.complete or self.limit_nanos is None:
            return 0
        excess = max(0, self.spent_nanos + self.held_nanos - self.limit_nanos - self.overrun_nanos)
        self.overrun_nanos += excess
        return excess

    def name_limit(self) -> str:
        return f"budget of the session {self.name!r} (${usd(self.limit_nanos or 0)})"

    def find_status(self, day: UtcDay) -> int:  # noqa: ARG002 - a session has no periods
        return self.status

    def complete_error(self, error: QuotaExceeded) -> QuotaExceeded:
        return _make_error(error, self.spent_nanos, self.limit_nanos or 0)


class OwnBalance:
    """The balance of a single request with a budget of its own."""

    leased = False

    def __init__(self, limit_nanos: int, status: int | None) -> None:
        self.limit_nanos = limit_nanos
        self.held_nanos = self.spent_nanos = 0
        self._status = status or DEFAULT_STATUS

    def find_room(self, day: UtcDay) -> int:  # noqa: ARG002 - as in ``AnyBalance``
        return self.limit_nanos - self.spent_nanos - self.held_nanos

    def find_balance(self, day: UtcDay) -> int | None:  # noqa: ARG002 - as in ``AnyBalance``
        return self.limit_nanos - self.spent_nanos

    def find_reset(self, day: UtcDay) -> int | None:  # noqa: ARG002 - as in ``AnyBalance``
        return None

    def restore(self, nanos: int, day: UtcDay) -> None:  # noqa: ARG002 - as in ``AnyBalance``
        self.held_nanos += nanos

    def settle(self, held_nanos: int, cost_nanos: int, day: UtcDay) -> int:  # noqa: ARG002 - as in ``AnyBalance``
        self.held_nanos -= held_nanos
        self.spent_nanos += cost_nanos
        return max(0, self.spent_nanos - max(self.limit_nanos, self.spent_nanos - cost_nanos))

    def name_limit(self) -> str:
        return f"budget of this request (${usd(self.limit_nanos)})"

    def describe_spending(self, day: UtcDay) -> str:  # noqa: ARG002 - as in ``AnyBalance``
        return ""

    def find_status(self, day: UtcDay) -> int:  # noqa: ARG002 - as in ``AnyBalance``
        return self._status

    def complete_error(self, error: QuotaExceeded) -> QuotaExceeded:
        return _make_error(error, self.spent_nanos, self.limit_nanos)


def _make_error(error: QuotaExceeded, spent_nanos: int, limit_nanos: int) -> BudgetExceeded:
    refusal = BudgetExceeded(error.message, status=error.status, room_nanos=error.room_nanos)
    refusal.spent_nanos, refusal.limit_nanos = spent_nanos, limit_nanos
    return refusal
