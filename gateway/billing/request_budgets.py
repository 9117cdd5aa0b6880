"""The budgets of sessions and of single requests, as their headers name them, and sessions that were ended.

What a session has spent is counted like that of a limit's subject, in the commit of each row. Its budget is stored
before a request is admitted under it. The sessions used last are in memory; another one is looked up with its next
request.
"""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from gateway.domain.account import ApiKey
from gateway.domain.attribution import BUDGET_HEADER
from gateway.domain.audit_log import AuditRow
from gateway.domain.limit_balance import LimitBalance, LimitBook
from gateway.domain.price import usd
from gateway.domain.request_budget import SESSION_BUDGET, OwnBalance, SessionBalance, SessionState
from gateway.errors import BudgetExceeded, InvalidRequest, SessionEnded
from gateway.request_context import RequestContext
from gateway.storage.session_states import SessionStateRepository

MAX_SESSIONS = 10_000
"""Sessions in memory; of those that no request uses, the one used the longest ago is dropped."""
_FORBIDDEN = 403

T = TypeVar("T")


class RequestBudgets:
    """The budgets that requests have brought along. ``clock``: Unix seconds.

    ``is_on_node``: this is a node of a cluster, which refuses the requests of sessions with a budget.
    """

    def __init__(
        self,
        states: SessionStateRepository,
        clock: Callable[[], float],
        max_sessions: int = MAX_SESSIONS,
        *,
        is_on_node: bool = False,
    ) -> None:
        self.book = LimitBook(SESSION_BUDGET, clock())
        self.states = states
        self._clock = clock
        self._max_sessions = max_sessions
        self._is_on_node = is_on_node
        self._ended: dict[str, bool] = {}
        """Whether each session in memory was ended, the least recently used first. Others have to be looked up."""
        self._own: WeakKeyDictionary[RequestContext, OwnBalance] = WeakKeyDictionary()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One for each session that is looked up or changed."""
        self._running: set[asyncio.Task[Any]] = set()

    def set_own(self, ctx: RequestContext, limit_nanos: int) -> None:
        """Give a request a budget of its own."""
        self._own[ctx] = OwnBalance(limit_nanos, ctx.caller.key.quota.status)

    def find_own(self, ctx: RequestContext) -> OwnBalance | None:
        """Return the balance of a request with a budget of its own; None without one."""
        return self._own.get(ctx)

    def share_own(self, ctx: RequestContext, part: RequestContext) -> None:
        """Let ``part`` of a request take from the request's own budget, if that has one."""
        own = self._own.get(ctx)
        if own is not None:
            self._own[part] = own

    async def load_newest(self) -> None:
        """Read the sessions that were changed last. Raises ``StoreUnavailable``."""
        for state in await self.states.list_newest(self._max_sessions):
            self._adopt(state)

    async def open(self, account_id: int, session: str, limit_nanos: int, key: ApiKey) -> None:
        """Open the budget of a session, or change it; it is stored when this returns.

        Raises ``BudgetExceeded`` if ``key`` allows no such amount, ``SessionEnded``, ``StoreUnavailable``.
        """
        subject = _build_subject(account_id, session)
        balance = self._find(subject)
        if balance is None or limit_nanos != balance.limit_nanos or not self.is_known(account_id, session):
            await self._run(self._change(subject, limit_nanos, key))

    async def _change(self, subject: str, limit_nanos: int, key: ApiKey) -> None:
        async with self._lock(subject):
            await self._look_up(subject)
            self._check(subject)
            balance = self._find(subject)
            former_nanos = None if balance is None else balance.limit_nanos
            if limit_nanos == former_nanos:
                return
            if former_nanos is None or limit_nanos > former_nanos:
                _check_raise(balance, subject, limit_nanos, key)
            state = SessionState(subject, limit_nanos, key.quota.status)
            await self.states.put_budget(state, int(self._clock() * 1000))
            self._adopt(state)

    async def end(self, account_id: int, session: str, audit: AuditRow) -> SessionState:
        """End a session: from now on its requests are refused. Return its state. Raises ``StoreUnavailable``."""
        subject = _build_subject(account_id, session)

        async def work() -> SessionState:
            async with self._lock(subject):
                state = await self.states.end(subject, int(self._clock() * 1000), audit)
                self._adopt(state)
                return state

        return await self._run(work())

    async def check(self, account_id: int, session: str) -> None:
        """Raise ``SessionEnded`` if the session was ended, ``InvalidRequest`` if a node cannot serve its requests.

        Looks the session up if need be: ``StoreUnavailable``.
        """
        subject = _build_subject(account_id, session)
        if subject not in self._ended:
            async with self._lock(subject):
                await self._look_up(subject)
        self._check(subject)

    async def reload(self, subject: str) -> bool:
        """Read a session that another process may have changed; return whether it was ended.

        Raises ``StoreUnavailable``.
        """
        async with self._lock(subject):
            self._ended.pop(subject, None)
            await self._look_up(subject)
            return self._ended[subject]

    async def retire(self, before_ms: int) -> int:
        """Delete the budgets of sessions without stored requests that were set before ``before_ms``.

        Those that running requests use stay, and so do ended sessions. Return the number. Raises ``StoreUnavailable``.
        """
        total, is_done = 0, False
        while not is_done:
            subjects = await self.states.list_unused(before_ms)
            retired = [subject for subject in subjects if await self._retire(subject, before_ms)]
            total, is_done = total + len(retired), not retired
        return total

    async def _retire(self, subject: str, before_ms: int) -> bool:
        async with self._lock(subject):
            balance = self._find(subject)
            if balance is not None and balance.users:
                return False
            self._ended.pop(subject, None)  # first: its next request waits for the lock, and looks the session up
            self.book.balances.pop(subject, None)
            return await self.states.delete_unused(subject, before_ms)

    def forget(self) -> None:
        """Look up every session anew."""
        self._ended.clear()

    def is_known(self, account_id: int, session: str) -> bool:
        """Return whether the session is in memory."""
        return _build_subject(account_id, session) in self._ended

    def list_balances(self, account_id: int, session: str, *, must_count: bool = False) -> tuple[LimitBalance, ...]:
        """Return the balance of a request's session, if the session has a budget.

        ``must_count``: the costs of a session that is not in memory are counted, because it may have one. A node has
        such costs only of requests that an earlier process has begun.
        """
        if not session or (self._is_on_node and not must_count):
            return ()
        subject = _build_subject(account_id, session)
        balance = self._find(subject)
        if balance is None and must_count and subject not in self._ended:
            balance = self.book.balances[subject] = SessionBalance(self.book, subject)
        if balance is None:
            return ()
        if balance.start_s != self.book.start_s:
            balance.move()
        return (balance,)

    def find_left(self, ctx: RequestContext) -> int | None:
        """Return what a request's session may still spend, in nano-USD; None if the session has no budget."""
        balance = self._find(_build_subject(ctx.caller.account.id, ctx.attribution.session))
        if balance is None or balance.limit_nanos is None:
            return None
        return max(0, balance.limit_nanos - balance.spent_nanos - balance.held_nanos)

    def _find(self, subject: str) -> SessionBalance | None:
        balance = self.book.balances.get(subject)
        return balance if isinstance(balance, SessionBalance) else None

    def _check(self, subject: str) -> None:
        """Note that a session in memory is used. Raises ``SessionEnded``, ``InvalidRequest``."""
        is_ended = self._ended[subject] = self._ended.pop(subject)
        if is_ended:
            raise SessionEnded(subject.partition(":")[2])
        if self._is_on_node and (balance := self._find(subject)) is not None and balance.limit_nanos is not None:
            raise InvalidRequest(
                f"{BUDGET_HEADER}: the session {subject.partition(':')[2]!r} has a budget of "
                f"${usd(balance.limit_nanos)}, and a cluster of several nodes cannot hold it; name another session",
                param=BUDGET_HEADER,
            )

    def _lock(self, subject: str) -> asyncio.Lock:
        """Return the lock of a session; it exists while tasks hold it or wait for it."""
        lock = self._locks.get(subject)
        if lock is None:
            lock = self._locks[subject] = asyncio.Lock()
        return lock

    async def _look_up(self, subject: str) -> None:
        if subject not in self._ended:
            self._adopt(await self.states.find(subject))

    def _adopt(self, state: SessionState) -> None:
        """Put a session as it is stored into memory."""
        balances, subject = self.book.balances, state.subject
        self._ended.pop(subject, None)
        self._make_room()
        self._ended[subject] = state.ended_ms is not None
        balance = self._find(subject)
        if state.limit_nanos is not None:
            balance = balances[subject] = balance or SessionBalance(self.book, subject)
            balance.set_limit(state.limit_nanos, state.status)
        elif balance is not None and not balance.users:  # its row was deleted, or it only counted
            del balances[subject]

    def _make_room(self) -> None:
        """Drop the sessions used the longest ago until there is room for another, except for those in use."""
        balances, excess = self.book.balances, len(self._ended) + 1 - self._max_sessions
        if excess > 0:
            unused = (subject for subject in self._ended if subject not in balances or not balances[subject].users)
            for subject in list(islice(unused, excess)):
                del self._ended[subject]
                balances.pop(subject, None)

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end, even if the caller is cancelled: memory and store must not differ."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._note_done)
        return await asyncio.shield(task)

    def _note_done(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # keeps asyncio from logging the exception: the caller may be cancelled


def _build_subject(account_id: int, session: str) -> str:
    return f"{account_id}:{session}"


def _check_raise(balance: SessionBalance | None, subject: str, limit_nanos: int, key: ApiKey) -> None:
    most_nanos = key.max_session_nanos
    former_nanos = None if balance is None else balance.limit_nanos
    if most_nanos is None and former_nanos is None:
        return
    if most_nanos is not None and limit_nanos <= most_nanos:
        return
    spent_nanos = 0 if balance is None else balance.spent_nanos
    allowed = "is not set" if most_nanos is None else f"is ${usd(most_nanos)}"
    refusal = BudgetExceeded(
        f"{BUDGET_HEADER}: the budget of the session {subject.partition(':')[2]!r} cannot become ${usd(limit_nanos)}: "
        f"max_session_usd of this API key {allowed}; the budget is ${usd(former_nanos or 0)}, and "
        f"${usd(spent_nanos)} is spent",
        status=key.quota.status or _FORBIDDEN,
    )
    refusal.spent_nanos, refusal.limit_nanos = spent_nanos, former_nanos or 0
    raise refusal
