"""Opens and closes the credit leases of this node on PostgreSQL, and ends those of dead nodes."""

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from gateway.background import JobRunner
from gateway.billing.live_limits import LiveLimits
from gateway.billing.write_queue import WriteQueue
from gateway.cluster.credit.authority import PostgresCreditAuthority
from gateway.cluster.credit.balances import LeasedBalances
from gateway.cluster.credit.grant_gate import GrantGate
from gateway.cluster.credit.keeper import CreditKeeper
from gateway.cluster.credit.orphans import OrphanWorker
from gateway.cluster.credit.stored_orphans import end_orphans, list_orphaned_nodes, reverse_orphan_charges
from gateway.cluster.credit.unposted import find_unposted_charges
from gateway.cluster.membership.registered_node import RegisteredNode
from gateway.cluster.membership.times import TIMES
from gateway.domain.balance import UtcDay, parse_day
from gateway.domain.ledger import OnCrash
from gateway.errors import StoreUnavailable
from gateway.events import Events
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.postgres.address import Address

if TYPE_CHECKING:
    from gateway.domain.account_zone import AccountZone
    from gateway.domain.limit import Limit
    from gateway.domain.limit_balance import LimitBook

log = structlog.stdlib.get_logger(__name__)


class NodeCredit:
    """The leases of a node, from its start to its end.

    ``wait_s``: how long requests wait for a silent store. ``gate``: see ``PostgresCreditAuthority``.
    """

    def __init__(
        self,
        node: RegisteredNode,
        address: Address,
        ledger: LedgerRepository,
        queue: WriteQueue,
        *,
        clock: Callable[[], float],
        wait_s: float = TIMES.credit_wait_s,
        gate: GrantGate | None = None,
    ) -> None:
        self._node = node
        events = Events()
        self._authority = PostgresCreditAuthority(address, node.id, lambda: node.live_count, events, gate=gate)
        self._clock = clock
        self._queue = queue
        self._jobs = JobRunner()
        find_own_unposted = partial(find_unposted_charges, queue, ledger)
        self.keeper = CreditKeeper(
            self._authority,
            events,
            find_own_unposted,
            today=self._find_today,
            now=time.monotonic,
            advance_clock=node.clock.advance_to,
            wait_s=wait_s,
        )
        self.balances = LeasedBalances(clock, self.keeper)

    async def open(self, database: Database, recover: Callable[[], Awaitable[None]]) -> None:
        """Open missing balances, then settle what this node's last process has left.

        ``recover`` stores the rows of that process. Then the charges made for the node while it was lost are reversed,
        and the leases of the process end.
        """
        if database.credit is not None:
            await database.write(database.credit.open_missing_balances)
        await recover()
        await reverse_orphan_charges(database, self._node.id)
        await self._authority.end_leases()

    def watch(self, database: Database, after_s: float, verdict: OnCrash, limits: LiveLimits) -> None:
        """Start ending the leases of dead nodes. ``after_s`` and ``verdict``: see ``OrphanWorker``."""
        store = _OrphanRepository(database, self._node.id, self._clock, limits)
        worker = OrphanWorker(store, self._node, after_s, verdict, lambda: not self._queue and not self._queue.failing)
        self._jobs.start("end_orphans", worker.run)

    async def close(self) -> None:
        """End every lease, unless a row could not be stored: its cost must still be deducted from a lease."""
        await self._jobs.stop()
        try:
            await self._release()
        except StoreUnavailable as error:
            log.warning("credit_not_released", error=error.message)  # the next start or ``OrphanWorker`` ends them
        await self._authority.close()

    async def _release(self) -> None:
        if self._queue:
            raise StoreUnavailable(f"{len(self._queue)} records are not stored")
        await self._authority.end_leases()

    def make_limit_book(self, limit: "Limit", now_s: float, account_zone: "AccountZone | None" = None) -> "LimitBook":
        """Return the balances of a limit, which spend from leases.

        ``account_zone``: the time zone in which windows begin; None: that of the limit.
        """
        from gateway.domain.leased_limit_balance import LeasedLimitBook  # noqa: PLC0415 - only if there are limits

        return LeasedLimitBook(self.keeper, limit, now_s, account_zone)

    def make_session_book(self, limit: "Limit", now_s: float) -> "LimitBook":
        """Return the balances of sessions with a budget, which spend from leases."""
        from gateway.domain.leased_session_balance import LeasedSessionBook  # noqa: PLC0415 - only with budgets

        return LeasedSessionBook(self.keeper, limit, now_s)

    def _find_today(self) -> UtcDay:
        return parse_day(self._clock())


class _OrphanRepository:
    """An ``OrphanStore`` in the database: the leases of all nodes."""

    def __init__(self, database: Database, node: str, clock: Callable[[], float], limits: LiveLimits) -> None:
        self._database = database
        self._node = node
        self._clock = clock
        self._limits = limits

    async def list_orphaned_nodes(self, after_s: float) -> Sequence[str]:
        return await list_orphaned_nodes(self._database, after_s)

    async def end_leases(self, node: str, verdict: OnCrash) -> int:
        return await end_orphans(self._database, node, verdict, self._clock(), spending=self._limits.spending)

    async def reverse_charges(self) -> int:
        return await reverse_orphan_charges(self._database, self._node)
