"""The budgets of sessions and of single requests, as their headers name them, and sessions that were ended.

What a session has spent is counted in the commit of each row, as for the subject of a limit. Its budget is stored
before a request is admitted under it. The sessions used last are in memory; another one is looked up with its next
request. On a node of a cluster, ``cluster/sessions.py`` reads again those that other nodes have changed, and the
database has the budget that credit is granted under.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from gateway.domain.account import ApiKey
from gateway.domain.attribution import BUDGET_HEADER
from gateway.domain.audit_log import AuditRow
from gateway.domain.limit_balance import LimitBook
from gateway.domain.price import usd
from gateway.domain.request_budget import (
    DEFAULT_STATUS,
    SESSION_BUDGET,
    BudgetBalance,
    OwnBalance,
    SessionBook,
    SessionState,
)
from gateway.errors import BudgetExceeded, SessionEnded, StoreUnavailable
from gateway.request_context import RequestContext
from gateway.storage.session_states import SessionStateRepository

MAX_SESSIONS = 10_000
"""Sessions in memory; of those that no request uses, the one used the longest ago is dropped."""

T = TypeVar("T")


class RequestBudgets:
    """The budgets that requests have brought along.

    ``book``: the balances of sessions on a node of a cluster; None for those of a single process.
    """

    def __init__(
        self,
        states: SessionStateRepository,
        clock: Callable[[], float],
        max_sessions: int = MAX_SESSIONS,
        *,
        book: LimitBook | None = None,
    ) -> None:
        self.book = SessionBook(SESSION_BUDGET, clock()) if book is None else book
        self.states = states
        self._clock = clock
        self._max_sessions = max_sessions
        self._ended: dict[str, bool] = {}
        """Whether each session in memory was ended, the least recently used first. Others have to be looked up."""
        self._own: WeakKeyDictionary[RequestContext, OwnBalance] = WeakKeyDictionary()
        self._opened: WeakKeyDictionary[RequestContext, int] = WeakKeyDictionary()
        """The budgets that requests have given to their sessions."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One for each session that is looked up or changed."""
        self._running: set[asyncio.Task[Any]] = set()

    def set_own(self, ctx: RequestContext, limit_nanos: int) -> None:
        """Give a request a budget of its own."""
        self._own[ctx] = OwnBalance(limit_nanos, ctx.caller.key.quota.status)

    def find_own_balance(self, ctx: RequestContext) -> OwnBalance | None:
        """Return the balance of a request with a budget of its own; None without one."""
        return self._own.get(ctx)

    def share_own(self, ctx: RequestContext, part: RequestContext) -> None:
        """Let ``part`` of a request use the request's own budget, if there is one."""
        own = self._own.get(ctx)
        if own is not None:
            self._own[part] = own

    async def load_newest(self) -> None:
        """Read the sessions that were changed last."""
        for state in await self.states.list_newest(self._max_sessions):
            self._adopt(state)

    async def open(self, account_id: int, session: str, limit_nanos: int, key: ApiKey) -> None:
        """Open the budget of a session, or change it; the budget is stored when this returns.

        Raises ``BudgetExceeded`` if ``key`` allows no such amount, and ``SessionEnded``.
        """
        subject = _build_subject(account_id, session)
        balance = self._find(subject)
        if balance is None or limit_nanos != balance.limit_nanos or not self.is_known(account_id, session):
            await self._run(self._change(subject, limit_nanos, key))

    async def open_for(self, ctx: RequestContext, limit_nanos: int) -> None:
        """Open a session's budget for a request. If it is deleted before a reservation, ``check_request`` reopens it.

        Raises the errors of ``open``.
        """
        await self.open(ctx.caller.account.id, ctx.attribution.session, limit_nanos, ctx.caller.key)
        self._opened[ctx] = limit_nanos

    async def check_request(self, ctx: RequestContext) -> None:
        """Check the session of a request that is about to reserve, and reopen a budget that was deleted meanwhile.

        Raises the errors of ``check`` and ``open``.
        """
        account_id, session = ctx.caller.account.id, ctx.attribution.session
        await self.check(account_id, session)
        limit_nanos = self._opened.get(ctx)
        balance = self._find(_build_subject(account_id, session))
        if limit_nanos is not None and (balance is None or balance.limit_nanos is None):
            await self.open(account_id, session, limit_nanos, ctx.caller.key)

    async def _change(self, subject: str, limit_nanos: int, key: ApiKey) -> None:
        async with self._lock(subject):
            await self._look_up(subject)
            self._check(subject)
            balance = self._find(subject)
            if balance is not None and limit_nanos == balance.limit_nanos:
                return
            may_replace = partial(_may_become, limit_nanos, key.max_session_nanos)
            state = SessionState(subject, limit_nanos, key.quota.status)
            state = await self.states.put_budget(state, int(self._clock() * 1000), may_replace)
            self._adopt(state)
            self._check(subject)
            if state.limit_nanos != limit_nanos:
                spent_nanos = await self._find_spent_nanos(subject)
                raise _make_raise_refusal(state, limit_nanos, spent_nanos, key)

    async def _find_spent_nanos(self, subject: str) -> int:
        """Return what a session has spent, in nano-USD; on a node, without what waits to be stored."""
        balance = self._find(subject)
        if balance is None:
            return 0
        if balance.leased or not balance.complete:
            return await self.states.find_spent_nanos(subject)
        return balance.spent_nanos

    async def end(self, account_id: int, session: str, audit: AuditRow) -> SessionState:
        """End a session: from now on its requests are refused. Return its state."""
        subject = _build_subject(account_id, session)

        async def work() -> SessionState:
            async with self._lock(subject):
                state = await self.states.end(subject, int(self._clock() * 1000), audit)
                self._adopt(state)
                return state

        return await self._run(work())

    async def check(self, account_id: int, session: str) -> None:
        """Raise ``SessionEnded`` if the session was ended."""
        subject = _build_subject(account_id, session)
        if subject not in self._ended:
            async with self._lock(subject):
                await self._look_up(subject)
        self._check(subject)

    async def reload(self, subject: str) -> bool:
        """Read a session that another process may have changed; return whether it was ended.

        If the store does not answer, the session is looked up with its next request.
        """
        async with self._lock(subject):
            try:
                state = await self.states.find(subject)
            except StoreUnavailable:
                self._ended.pop(subject, None)  # its next request looks the session up
                raise
            self._adopt(state)
            return self._ended[subject]

    async def retire(self, before_ms: int) -> int:
        """Delete the budgets of sessions without stored requests that were set before ``before_ms``.

        Those that running requests use stay, and so do ended sessions. What is spent under budgets that are gone is
        deleted, too. Return the number of deleted budgets and sums.
        """
        total, is_done = 0, False
        while not is_done:
            subjects = await self.states.list_unused(before_ms)
            retired = [subject for subject in subjects if await self._retire(subject, before_ms)]
            total, is_done = total + len(retired), not retired
        return total + await self._delete_sums()

    async def _delete_sums(self) -> int:
        """Delete the sums of unused sessions that have neither state nor requests; return the number of sums."""
        total, balances, subjects = 0, self.book.balances, await self.states.list_unneeded_sums()
        while subjects:
            unused = [subject for subject in subjects if subject not in balances or not balances[subject].users]
            for subject in unused:  # their spending is read again
                self._ended.pop(subject, None)
                balances.pop(subject, None)
            total += await self.states.delete_unneeded_sums(unused)
            subjects = await self.states.list_unneeded_sums(subjects[-1])
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
        """Drop all sessions from memory, except balances that requests use. A session is looked up when used again."""
        self._ended.clear()
        balances = self.book.balances
        for subject in [subject for subject, balance in balances.items() if not balance.users]:
            del balances[subject]

    def is_known(self, account_id: int, session: str) -> bool:
        """Return whether the session is in memory."""
        return _build_subject(account_id, session) in self._ended

    def holds(self, subject: str) -> bool:
        """Return whether anything of the session is in memory. ``subject``: as in ``SessionState``."""
        return subject in self._ended or subject in self.book.balances

    def list_balances(self, account_id: int, session: str, *, must_count: bool = False) -> tuple[BudgetBalance, ...]:
        """Return the balance of a request's session, if the session has a budget.

        ``must_count``: the costs of a session that is not in memory are counted, because it may have a budget.
        """
        if not session:
            return ()
        subject = _build_subject(account_id, session)
        balance = self._find(subject)
        if balance is None and must_count and subject not in self._ended:
            balance = self._make(subject)
        if balance is None:
            return ()
        if balance.start_s != self.book.start_s:
            balance.move()
        return (balance,)

    def find_left_nanos(self, ctx: RequestContext) -> int | None:
        """Return what a request's session may still spend, in nano-USD; None if the session has no budget."""
        balance = self._find(_build_subject(ctx.caller.account.id, ctx.attribution.session))
        return None if balance is None else balance.budget_left_nanos

    def _find(self, subject: str) -> BudgetBalance | None:
        return cast("BudgetBalance | None", self.book.balances.get(subject))

    def _make(self, subject: str) -> BudgetBalance:
        balance = self.book.balances[subject] = self.book.make_balance(subject)
        return cast("BudgetBalance", balance)

    def _check(self, subject: str) -> None:
        """Note that a session in memory is used. Raises ``SessionEnded``."""
        is_ended = self._ended[subject] = self._ended.pop(subject)
        if is_ended:
            raise SessionEnded(subject.partition(":")[2])

    def _lock(self, subject: str) -> asyncio.Lock:
        """Return the lock of a session; it exists while tasks hold it or wait for it."""
        lock = self._locks.get(subject)
        if lock is None:
            lock = self._locks[subject] = asyncio.Lock()
        return lock

    async def _look_up(self, subject: str) -> None:
        if subject not in self._ended:
            self._adopt(await self.states.look_up(subject))

    def _adopt(self, state: SessionState) -> None:
        """Copy the stored state of a session into memory."""
        balances, subject = self.book.balances, state.subject
        self._ended.pop(subject, None)
        self._make_room()
        self._ended[subject] = state.ended_ms is not None
        balance = self._find(subject)
        if state.limit_nanos is not None:
            balance = balance or self._make(subject)
            balance.set_limit(state.limit_nanos, state.status)
        elif balance is not None and not balance.users:  # its row was deleted, or it only counted
            del balances[subject]

    def _make_room(self) -> None:
        """Make room in memory for another session: drop those used the longest ago that no request uses."""
        balances, excess = self.book.balances, len(self._ended) + 1 - self._max_sessions
        if excess > 0:
            unused = (subject for subject in self._ended if subject not in balances or not balances[subject].users)
            for subject in list(islice(unused, excess)):
                del self._ended[subject]
                balances.pop(subject, None)

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end, even if its request is cancelled: memory and store must not differ."""
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


def _may_become(limit_nanos: int, max_nanos: int | None, former: SessionState) -> bool:
    """Return whether a key whose ``max_session_usd`` is ``max_nanos`` may give a session the budget ``limit_nanos``."""
    if former.ended_ms is not None:
        return False
    if former.limit_nanos is not None and limit_nanos <= former.limit_nanos:
        return True
    return former.limit_nanos is None if max_nanos is None else limit_nanos <= max_nanos


def _make_raise_refusal(former: SessionState, limit_nanos: int, spent_nanos: int, key: ApiKey) -> BudgetExceeded:
    max_nanos, former_nanos = key.max_session_nanos, former.limit_nanos or 0
    allowed = "is not set" if max_nanos is None else f"is ${usd(max_nanos)}"
    refusal = BudgetExceeded(
        f"{BUDGET_HEADER}: the budget of the session {former.session!r} cannot become ${usd(limit_nanos)}: "
        f"max_session_usd of this API key {allowed}; the budget is ${usd(former_nanos)}, and "
        f"${usd(spent_nanos)} is spent",
        status=key.quota.status or DEFAULT_STATUS,
    )
    refusal.spent_nanos, refusal.limit_nanos = spent_nanos, former_nanos
    return refusal
