"""Opens billing: recovers the records that a crash left behind, then reads every balance."""

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from sqlalchemy import select

from gateway.billing.accounting import AccountingService
from gateway.billing.balances import Balances
from gateway.billing.flush_worker import COMMIT_DELAY_S, NODE_COMMIT_DELAY_S, LedgerFlusher
from gateway.billing.live_limits import LiveLimits
from gateway.billing.quota import QuotaService
from gateway.billing.recovery import load_balances, recover
from gateway.billing.settlement import Settlement
from gateway.config.reload import build_limits
from gateway.deferred import CreatedOnce, defer_function
from gateway.domain.account import Caller
from gateway.domain.balance import Owner
from gateway.domain.request_log import RequestRecord
from gateway.frozen import frozen
from gateway.options import AppOptions
from gateway.server.context import BillingServices, StorageServices
from gateway.services.base import BaseServices
from gateway.services.limits import open_limiter
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.schema import accounts, keys
from gateway.storage.videos import VideoRepository
from gateway.videos.reservations import JobReservations

if TYPE_CHECKING:  # imported by the first quote, or an extra
    from gateway.billing.quotes import Holds
    from gateway.cluster.credit.ledger_check import LedgerCheck
    from gateway.cluster.credit.node_credit import NodeCredit
    from gateway.cluster.membership.node import ClusterNode
    from gateway.domain.account_zone import AccountZone

_make_holds = defer_function("billing.quotes:Holds")


@frozen
class OpenedLedger:
    """The balances and the queue of records; quota and settlement are built on them.

    Attributes:
        reservations: the reservations of open video jobs.
        ended_requests: settled records for the metrics, which remove them.
        credit: the leases of this node of a cluster; None for a single gateway.
        limits: the limits beyond those of keys and accounts.
    """

    balances: Balances
    accounting: AccountingService
    flusher: LedgerFlusher
    reservations: JobReservations
    ended_requests: deque[RequestRecord]
    credit: "NodeCredit | None"
    limits: LiveLimits


async def open_ledger(base: BaseServices, stack: AsyncExitStack) -> OpenedLedger:
    """Open the balances. When ``stack`` closes, the records still in the queue are stored.

    Raises ``DatabaseStartupError``.
    """
    options, storage = base.options, base.storage
    storage.database.bound_subjects(lambda: base.live_config.config.attribution.max_values)
    ledger = LedgerRepository(storage.database, storage.unstorable, storage.notes)
    commit_delay_s = COMMIT_DELAY_S if storage.node is None else NODE_COMMIT_DELAY_S
    flusher = LedgerFlusher(storage.write_queue, ledger, storage.journal, commit_delay_s=commit_delay_s)
    credit = None if storage.node is None else _open_credit(options, storage, ledger, storage.node)
    if credit is not None:
        stack.push_async_callback(credit.close)
    stack.push_async_callback(flusher.finish)
    limits = await _open_limits(base, credit)
    balances = await _recover(options, storage, ledger, credit, limits)
    limits.attach(balances)
    storage.journal.renew()
    ended_requests: deque[RequestRecord] = deque()
    reservations = JobReservations(
        VideoRepository(storage.database),
        balances,
        storage.write_queue,
        keep_record=ended_requests.append,
        clock=storage.deployment.find_job_clock(),
        is_shared=credit is not None,
        wait_s=0.0 if credit is None else credit.keeper.wait_s,
    )
    check_leases = None if credit is None else credit.keeper.check
    accounting = AccountingService(
        balances,
        ledger,
        storage.write_queue,
        clock=options.clock,
        jobs=reservations,
        check_leases=check_leases,
        limits=limits,
    )
    stack.push_async_callback(accounting.close)
    return OpenedLedger(balances, accounting, flusher, reservations, ended_requests, credit, limits)


async def _open_limits(base: BaseServices, credit: "NodeCredit | None") -> LiveLimits:
    limits = LiveLimits(base.storage.database, base.storage.write_queue, base.options.clock, credit)
    limits.replace(build_limits(base.live_config.effective))
    base.live_config.followers.append(lambda effective: limits.replace(build_limits(effective)))
    await limits.load_sessions()
    return limits


def open_billing(
    base: BaseServices, ledger: OpenedLedger, stack: AsyncExitStack, *, refresh: Callable[[Caller], Caller]
) -> BillingServices:
    """Open quota and settlement. ``refresh`` returns the current caller for a request that has waited."""
    storage = base.storage
    limiter, shared_limits = open_limiter(base.options, stack, storage.node)
    quota = QuotaService(ledger.balances, limiter, storage.journal, storage.write_queue, refresh=refresh)
    settlement = Settlement(
        quota,
        storage.journal,
        storage.write_queue,
        find_abandoned=base.live_config.find_abandoned,
        ended=ledger.ended_requests,
    )
    node_id = None if storage.node is None else storage.node.id
    open_holds: CreatedOnce[Holds] = CreatedOnce(lambda: _make_holds(ledger.balances.release, node_id))
    stack.callback(open_holds.if_made, lambda made_holds: made_holds.close())
    return BillingServices(
        ledger.balances,
        ledger.accounting,
        ledger.flusher,
        quota,
        settlement,
        ledger.reservations,
        base.options.config.limits_store,
        keeper=None if ledger.credit is None else ledger.credit.keeper,
        shared_limits=shared_limits,
        ledger_check=None if ledger.credit is None else _make_check(ledger.accounting),
        open_holds=open_holds,
        limits=ledger.limits,
    )


async def _recover(
    options: AppOptions,
    storage: StorageServices,
    ledger: LedgerRepository,
    credit: "NodeCredit | None",
    limits: LiveLimits,
) -> Balances:
    """Store the records that an earlier process left, and return the balances. Raises ``DatabaseStartupError``."""
    # Other commands than ``serve`` may use another configuration, which must not decide about money.
    on_crash = options.config.ledger.on_crash if options.declare else None
    zones = await _load_zones(storage.database, limits, is_node=credit is not None)
    journal, now_ms = storage.journal, int(options.clock() * 1000)
    leftovers = journal.leftovers

    def post_leftovers() -> Awaitable[None]:
        return recover(leftovers, ledger, journal, on_crash=on_crash, now_ms=now_ms, list_charges=limits.list_charges)

    if credit is None:
        await _recover_alone(options, storage.database, post_leftovers)
        return await load_balances(ledger, options.clock, await _list_existing(storage.database), zones)
    await credit.open(storage.database, post_leftovers)
    credit.watch(storage.database, options.config.cluster.orphan_after_s, options.config.ledger.on_crash, limits)
    return credit.balances


async def _load_zones(database: Database, limits: LiveLimits, *, is_node: bool) -> "Mapping[int, AccountZone]":
    """Return the time zones of accounts, by account. Raises the errors of ``load_zones``."""
    if not await database.read_long(select(accounts.c.id).where(accounts.c.zones.is_not(None)).limit(1)):
        return {}
    from gateway.services.account_zones import load_zones  # noqa: PLC0415 - only with time zones

    return await load_zones(database, limits, is_node=is_node)


async def _list_existing(database: Database) -> dict[Owner, Collection[int]]:
    """Return the ids of the existing keys and accounts."""
    id_rows = [await database.read_long(select(table.c.id)) for table in (keys, accounts)]
    return {"key": {row.id for row in id_rows[0]}, "account": {row.id for row in id_rows[1]}}


def _make_check(accounting: AccountingService) -> "LedgerCheck":
    from gateway.cluster.credit.ledger_check import LedgerCheck  # noqa: PLC0415 - only in a cluster

    return LedgerCheck(accounting.reconcile)


def _open_credit(
    options: AppOptions, storage: StorageServices, ledger: LedgerRepository, node: "ClusterNode"
) -> "NodeCredit":
    from gateway.cluster.credit.grant_gate import GrantGate  # noqa: PLC0415 - its driver is an extra
    from gateway.cluster.credit.node_credit import NodeCredit  # noqa: PLC0415 - its driver is an extra
    from gateway.cluster.membership.times import TIMES  # noqa: PLC0415 - only in a cluster

    wait_s = (options.cluster_times or TIMES).credit_wait_s
    credit = NodeCredit(
        node, node.address, ledger, storage.write_queue, clock=options.clock, wait_s=wait_s, gate=GrantGate(node)
    )
    node.call_when_fenced(credit.keeper.end_waits)
    return credit


async def _recover_alone(options: AppOptions, database: Database, recover: Callable[[], Awaitable[None]]) -> None:
    """Recover as a single gateway, after deleting the balances of a former cluster: writes no longer update them.

    The leases of dead nodes stay: their journals may still have charges to store. Only the lease of this data folder's
    own node ends, because ``recover`` stores its journal. The lease stays after other commands than ``serve``.

    Raises ``DatabaseStartupError`` if a node of the cluster is running.
    """
    if database.kind != "postgresql":
        await recover()
        return
    from gateway.cluster.credit.store import clear_credit, delete_leases  # noqa: PLC0415 - its driver is an extra
    from gateway.cluster.membership.times import TIMES  # noqa: PLC0415 - only in a cluster

    dead_s = (options.cluster_times or TIMES).dead_s
    await database.write(lambda connection: clear_credit(connection, dead_s))
    await recover()
    if options.declare and (node := options.folder.find_node_id()) is not None:
        await database.write(lambda connection: delete_leases(connection, node=node))
