"""Puts limits into force while the gateway runs. Their other modules are imported with the first limit or budget."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import delete, select

from gateway.billing.balances import Balances
from gateway.billing.limit_spec import LimitSpec
from gateway.billing.write_queue import WriteQueue
from gateway.deferred import load
from gateway.domain.request_log import RequestRecord
from gateway.storage.database import Database
from gateway.storage.schema import limit_fills, session_states

if TYPE_CHECKING:
    from gateway.billing.limits import SpendingLimits
    from gateway.billing.request_budgets import RequestBudgets
    from gateway.domain.account_zone import AccountZone
    from gateway.domain.limit import Limit
    from gateway.domain.limit_balance import LimitBook


class BookMaker(Protocol):
    """Makes the balances of a limit, and those of sessions, on a node of a cluster. Times are Unix seconds."""

    def make_limit_book(
        self, limit: "Limit", now_s: float, account_zone: "AccountZone | None" = None
    ) -> "LimitBook": ...

    def make_session_book(self, limit: "Limit", now_s: float) -> "LimitBook": ...


class LiveLimits:
    """The limits in force, of the file and of the database. ``books`` makes a node's balances; None without a cluster.

    Attributes:
        spending: the balances of the subjects; None before the first limit or budget.
        budgets: the budgets that requests bring along, and the ended sessions; None before the first one.
    """

    def __init__(
        self, database: Database, queue: WriteQueue, clock: Callable[[], float], books: BookMaker | None = None
    ) -> None:
        self._books = books
        self._database = database
        self._queue = queue
        self._clock = clock
        self._balances: Balances | None = None
        self._zones: dict[int, tuple[Collection[int], AccountZone]] = {}
        """The keys and the time zone of each account that has one."""
        self._specs: tuple[LimitSpec, ...] = ()
        self._has_limits = asyncio.Event()
        self.spending: SpendingLimits | None = None
        self.budgets: RequestBudgets | None = None

    def list_charges(self, row: RequestRecord) -> str:
        """Return the ``limit_charges`` of a row whose request ended with its process; empty if no limit is in force."""
        in_force = self._specs or self.budgets is not None
        return self.spending.list_charges(row) if self.spending is not None and in_force else ""

    async def retire(self, now_s: float) -> int:
        """Delete the sums of windows that ended long ago; return their number."""
        return 0 if self.spending is None else await self.spending.retire(now_s)

    async def retire_sessions(self, before_ms: int) -> int:
        """Delete budgets of sessions without requests that were set before ``before_ms`` (Unix ms), and their sums.

        Return the number of deleted rows.
        """
        return 0 if self.budgets is None else await self.budgets.retire(before_ms)

    def set_zone(self, account_id: int, key_ids: Collection[int], zone: "AccountZone") -> None:
        """Let limits follow the time zone of an account. ``key_ids`` are the account's keys."""
        self._zones[account_id] = key_ids, zone
        if self.spending is not None:
            self.spending.set_zone(account_id, key_ids, zone)

    def drop_account(self, account_id: int) -> None:
        """Forget the time zone of an account that was deleted."""
        self._zones.pop(account_id, None)
        if self.spending is not None:
            self.spending.drop_account(account_id)

    def attach(self, balances: Balances) -> None:
        """Let requests that reserve in ``balances`` reserve under the limits, too."""
        self._balances = balances
        self._apply()

    async def load_sessions(self) -> None:
        """Load the newest budgets and ends of sessions, if any is stored."""
        if await self._database.read(select(session_states.c.subject).limit(1)):
            await self.open_budgets().load_newest()

    def open_budgets(self) -> "RequestBudgets":
        """Return the budgets of requests; the first call makes them."""
        if self.budgets is None:
            spending = self._open_spending()
            states = load("storage.session_states:SessionStateRepository")(self._database)
            limit = load("domain.request_budget:SESSION_BUDGET")
            book = None if self._books is None else self._books.make_session_book(limit, self._clock())
            self.budgets = spending.budgets = load("billing.request_budgets:RequestBudgets")(
                states, self._clock, book=book
            )
            self._apply()
        return self.budgets

    def _open_spending(self) -> "SpendingLimits":
        if self.spending is None:
            counters = load("storage.limit_counters:LimitCounters")(self._database)
            books = () if self._books is None else (self._books.make_limit_book,)
            spending: SpendingLimits = load("billing.limits:SpendingLimits")(counters, self._queue, self._clock, *books)
            for account_id, (key_ids, zone) in self._zones.items():
                spending.set_zone(account_id, key_ids, zone)
            self.spending = spending
        return self.spending

    def _apply(self) -> None:
        if self._balances is not None:
            self._balances.limits = self.spending if self._specs or self.budgets is not None else None

    def replace(self, specs: Sequence[LimitSpec]) -> None:
        """Put ``specs`` into force in place of all limits. What running requests have reserved does not change."""
        if tuple(specs) == self._specs:
            return
        self._specs = tuple(specs)
        reservations = None if self._balances is None else self._balances.reservations
        self._open_spending().replace([spec.limit() for spec in specs], reservations)
        self._has_limits.set()
        self._apply()

    async def fill(self) -> None:
        """Count, for each new limit, what was spent before it. Runs forever; in a cluster, only on the leader."""
        is_filled = bool(await self._database.read(select(limit_fills.c.counter).limit(1)))
        if is_filled and not self._has_limits.is_set():  # so none was in force: any later one is new
            await self._database.change(delete(limit_fills))
        await self._has_limits.wait()
        make = load("billing.limit_filler:LimitFiller")
        is_shared = self._books is not None
        await make(self._database, self._queue, self._open_spending(), self._clock, is_shared=is_shared).run()
