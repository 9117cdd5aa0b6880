"""The budgets of sessions and of single requests, as their headers name them.

What a session has spent is counted like that of a limit's subject, in the commit of each row. Its budget is in memory:
after a restart, or when very many other sessions came since, the next request with the header sets the budget again.
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

from gateway.domain.account import ApiKey
from gateway.domain.attribution import BUDGET_HEADER
from gateway.domain.limit_balance import LimitBalance, LimitBook
from gateway.domain.price import usd
from gateway.domain.request_budget import SESSION_BUDGET, OwnBalance, SessionBalance
from gateway.errors import BudgetExceeded
from gateway.request_context import RequestContext

MAX_SESSIONS = 10_000
"""Sessions whose budgets are kept in memory; of those that no request uses, the one used the longest ago is dropped."""
_FORBIDDEN = 403


class RequestBudgets:
    """The budgets that requests have brought along. ``clock``: Unix seconds."""

    def __init__(self, clock: Callable[[], float], max_sessions: int = MAX_SESSIONS) -> None:
        self.book = LimitBook(SESSION_BUDGET, clock())
        self._max_sessions = max_sessions
        self._own: WeakKeyDictionary[RequestContext, OwnBalance] = WeakKeyDictionary()

    def set_own(self, ctx: RequestContext, limit_nanos: int) -> None:
        """Give a request a budget of its own."""
        self._own[ctx] = OwnBalance(limit_nanos, ctx.caller.key.quota.status)

    def find_own(self, ctx: RequestContext) -> OwnBalance | None:
        """Return the balance of a request with a budget of its own; None without one."""
        return self._own.get(ctx)

    def open(self, account_id: int, session: str, limit_nanos: int, key: ApiKey) -> None:
        """Open the budget of a session, or change it. Raises ``BudgetExceeded`` if ``key`` allows no such amount."""
        balance = self._find(account_id, session)
        if balance is not None and limit_nanos == balance.limit_nanos:
            return
        if balance is None or limit_nanos > balance.limit_nanos:
            _check_raise(balance, session, limit_nanos, key)
        if balance is None:
            self._make_room()
            subject = f"{account_id}:{session}"
            self.book.balances[subject] = SessionBalance(self.book, subject, session, limit_nanos, key.quota.status)
        else:
            balance.set_limit(limit_nanos)

    def list_balances(self, account_id: int, session: str) -> tuple[LimitBalance, ...]:
        """Return the balance of a request's session, if the session has a budget."""
        balance = self._find(account_id, session) if session else None
        if balance is None:
            return ()
        if balance.start_s != self.book.start_s:
            balance.move()
        return (balance,)

    def find_left(self, ctx: RequestContext) -> int | None:
        """Return what a request's session may still spend, in nano-USD; None if the session has no budget."""
        balance = self._find(ctx.caller.account.id, ctx.attribution.session)
        if balance is None:
            return None
        return max(0, balance.limit_nanos - balance.spent_nanos - balance.held_nanos)

    def _find(self, account_id: int, session: str) -> SessionBalance | None:
        balances, subject = self.book.balances, f"{account_id}:{session}"
        balance = balances.pop(subject, None)
        if not isinstance(balance, SessionBalance):
            return None
        balances[subject] = balance  # the most recently used one is the last
        return balance

    def _make_room(self) -> None:
        balances = self.book.balances
        if len(balances) >= self._max_sessions:
            unused = next((subject for subject, balance in balances.items() if not balance.users), None)
            if unused is not None:
                del balances[unused]


def _check_raise(balance: SessionBalance | None, session: str, limit_nanos: int, key: ApiKey) -> None:
    most_nanos = key.max_session_nanos
    if most_nanos is None and balance is None:
        return
    if most_nanos is not None and limit_nanos <= most_nanos:
        return
    spent_nanos, former_nanos = (0, 0) if balance is None else (balance.spent_nanos, balance.limit_nanos)
    allowed = "is not set" if most_nanos is None else f"is ${usd(most_nanos)}"
    refusal = BudgetExceeded(
        f"{BUDGET_HEADER}: the budget of the session {session!r} cannot become ${usd(limit_nanos)}: max_session_usd of "
        f"this API key {allowed}; the budget is ${usd(former_nanos)}, and ${usd(spent_nanos)} is spent",
        status=key.quota.status or _FORBIDDEN,
    )
    refusal.spent_nanos, refusal.limit_nanos = spent_nanos, former_nanos
    raise refusal
