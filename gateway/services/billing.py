"""Open billing: recover what a crash left, then read every balance."""

from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import select

from gateway.billing.abandoned import Abandoned
from gateway.billing.accounting import AccountingService
from gateway.billing.balances import Balances
from gateway.billing.flush_worker import LedgerFlusher
from gateway.billing.quota import QuotaService
from gateway.billing.recovery import open_bank, recover
from gateway.billing.settlement import Settlement
from gateway.domain.account import Caller
from gateway.domain.balance import Owner
from gateway.domain.request_log import RequestRecord
from gateway.frozen import frozen
from gateway.options import AppOptions
from gateway.server.context import BillingServices, StorageServices
from gateway.services.limits import open_limiter
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.schema import accounts, keys
from gateway.storage.videos import VideoRepository
from gateway.videos.reservations import JobReservations

if TYPE_CHECKING:  # its driver is an extra
    from gateway.cluster.credit.ledger_check import LedgerCheck
    from gateway.cluster.credit.node_credit import NodeCredit
    from gateway.cluster.membership.registered_node import RegisteredNode


@frozen
class OpenedLedger:
    """What knows the balances and stores records; quota and settlement are built on it.

    Attributes:
        reservations: those of open video jobs.
        ended: every settled record, for the metrics, which remove it.
        credit: the leases of this gateway as one of several nodes; None: it is alone.
    """

    balances: Balances
    accounting: AccountingService
    flusher: LedgerFlusher
    reservations: JobReservations
    ended: deque[RequestRecord]
    credit: "NodeCredit | None"


async def open_ledger(options: AppOptions, storage: StorageServices, stack: AsyncExitStack) -> OpenedLedger:
    """Open the balances. When ``stack`` closes, it stores the records that are still queued.

    Raises ``StoreUnavailable``, ``DatabaseStartupError``.
    """
    ledger = LedgerRepository(storage.database, storage.unstorable, storage.notes)
    flusher = LedgerFlusher(storage.write_queue, ledger, storage.journal)
    credit = None if storage.node is None else _find_credit(options, storage, ledger, storage.node)
    if credit is not None:
        stack.push_async_callback(credit.close)
    stack.push_async_callback(flusher.finish)
    balances = await _recover(options, storage, ledger, credit)
    storage.journal.renew()
    ended: deque[RequestRecord] = deque()
    reservations = JobReservations(
        VideoRepository(storage.database),
        balances,
        storage.write_queue,
        keep_record=ended.append,
        clock=storage.deployment.find_job_clock(options.clock),
        shared=credit is not None,
    )
    check_leases = None if credit is None else credit.keeper.check
    accounting = AccountingService(
        balances, ledger, storage.write_queue, clock=options.clock, jobs=reservations, check_leases=check_leases
    )
    stack.push_async_callback(accounting.close)
    return OpenedLedger(balances, accounting, flusher, reservations, ended, credit)


def open_billing(
    options: AppOptions,
    storage: StorageServices,
    ledger: OpenedLedger,
    stack: AsyncExitStack,
    *,
    find_abandoned: Callable[[], Abandoned],
    refresh: Callable[[Caller], Caller],
) -> BillingServices:
    """Open quota and settlement. ``refresh`` returns the present caller of a request that has waited."""
    limiter, shared_limits = open_limiter(options, stack, storage.node)
    quota = QuotaService(ledger.balances, limiter, storage.journal, storage.write_queue, refresh=refresh)
    settlement = Settlement(
        quota, storage.journal, storage.write_queue, find_abandoned=find_abandoned, ended=ledger.ended
    )
    return BillingServices(
        ledger.balances,
        ledger.accounting,
        ledger.flusher,
        quota,
        settlement,
        ledger.reservations,
        keeper=None if ledger.credit is None else ledger.credit.keeper,
        shared_limits=shared_limits,
        ledger_check=None if ledger.credit is None else _make_check(ledger.accounting),
    )


async def _recover(
    options: AppOptions, storage: StorageServices, ledger: LedgerRepository, credit: "NodeCredit | None"
) -> Balances:
    """Store what an earlier process left, and return the balances. Raises as ``open_ledger``."""
    # Another command than serve may read another configuration: it must not decide about money by it.
    on_crash = options.config.ledger.on_crash if options.declare else None
    journal, now_ms = storage.journal, int(options.clock() * 1000)
    post_left = partial(recover, journal.leftovers, ledger, journal, on_crash=on_crash, now_ms=now_ms)
    if credit is None:
        await _recover_alone(options, storage.database, post_left)
        return await open_bank(ledger, options.clock, await _list_living(storage.database))
    await credit.open(storage.database, post_left)
    credit.watch(storage.database, options.config.cluster.orphan_after_s, options.config.ledger.on_crash)
    return credit.balances


async def _list_living(database: Database) -> dict[Owner, Collection[int]]:
    """Return the ids of the keys and accounts that exist. Raises ``StoreUnavailable``."""
    found = [await database.read_long(select(table.c.id)) for table in (keys, accounts)]
    return {"key": {row.id for row in found[0]}, "account": {row.id for row in found[1]}}


def _make_check(accounting: AccountingService) -> "LedgerCheck":
    from gateway.cluster.credit.ledger_check import LedgerCheck  # noqa: PLC0415 - of a cluster

    return LedgerCheck(accounting.reconcile)


def _find_credit(
    options: AppOptions, storage: StorageServices, ledger: LedgerRepository, node: "RegisteredNode"
) -> "NodeCredit":
    from gateway.cluster.credit.node_credit import NodeCredit  # noqa: PLC0415 - its driver is an extra

    return NodeCredit(node, options.config.store.url, ledger, storage.write_queue, clock=options.clock)


async def _recover_alone(options: AppOptions, database: Database, recover: Callable[[], Awaitable[None]]) -> None:
    """Recover, after deleting the balances that a cluster has left on PostgreSQL: no write counts in them from now on.

    The leases of its dead nodes stay: these are still to store what their journals have. Only the node of this data
    folder has nothing to store once ``recover`` returns; after a command it may have.

    Raises ``DatabaseStartupError`` if a node of the cluster runs.
    """
    if database.kind != "postgresql":
        await recover()
        return
    from gateway.cluster.credit.store import clear_credit, delete_leases  # noqa: PLC0415 - it is an extra
    from gateway.cluster.membership.death_watch import DEAD_S  # noqa: PLC0415 - of a cluster

    await database.write(partial(clear_credit, dead_s=DEAD_S))
    await recover()
    if options.declare and (node := options.folder.find_node_id()) is not None:
        await database.write(partial(delete_leases, node=node))
