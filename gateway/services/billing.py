"""Open billing: recover what a crash left, then read every balance."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import attrs
from sqlalchemy import select

from gateway.billing.accounting import AccountingService
from gateway.billing.flush_worker import LedgerFlusher
from gateway.billing.quota import QuotaService
from gateway.billing.recovery import open_bank, recover
from gateway.billing.settlement import Settlement
from gateway.domain.balance import Owner
from gateway.server.context import BillingServices, Services
from gateway.services.limits import open_limiter
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.schema import accounts, keys

if TYPE_CHECKING:  # its driver is an extra
    from gateway.cluster.credit.ledger_check import LedgerCheck
    from gateway.cluster.credit.node_credit import NodeCredit
    from gateway.cluster.membership.registered_node import RegisteredNode


async def open_billing(
    services: Services, stack: AsyncExitStack, node: "RegisteredNode | None" = None
) -> BillingServices:
    """Open billing. When ``stack`` closes, it stores the records that are still queued.

    ``node`` is this gateway as one of several on the database; None: it is the only one.

    Raises ``StoreUnavailable``, ``DatabaseStartupError``.
    """
    options, storage = services.options, services.storage
    ledger = LedgerRepository(storage.database, storage.unstorable, storage.notes)
    journal, write_queue = storage.journal, storage.write_queue
    flusher = LedgerFlusher(write_queue, ledger, journal)
    credit = None if node is None else _find_credit(services, ledger, node)
    if credit is not None:
        stack.push_async_callback(credit.close)
    stack.push_async_callback(flusher.finish)
    now_ms = int(options.clock() * 1000)
    # Another command than serve may read another configuration: it must not decide about money by it.
    on_crash = options.config.ledger.on_crash if options.declare else None
    post_left = partial(recover, journal.leftovers, ledger, journal, on_crash=on_crash, now_ms=now_ms)
    if credit is None:
        await _recover_alone(services, post_left)
        balances = await open_bank(ledger, options.clock, await _list_living(storage.database))
    else:
        await credit.open(storage.database, post_left)
        balances = credit.balances
        credit.watch(storage.database, options.config.cluster.orphan_after_s, options.config.ledger.on_crash)
    journal.renew()
    accounting = AccountingService(balances, ledger, write_queue, clock=options.clock)
    if credit is not None:
        balances.load_day = None  # the store knows every day
        accounting.check_leases = credit.keeper.check
    stack.push_async_callback(accounting.close)
    limiter, shared_limits = open_limiter(options, stack, node)
    quota = QuotaService(balances, limiter, journal, write_queue)
    settlement = Settlement(quota, journal, write_queue)
    settlement.find_abandoned = services.live_config.find_abandoned
    billing = BillingServices(balances, accounting, flusher, quota, settlement, shared_limits=shared_limits)
    if credit is None:
        return billing
    return attrs.evolve(billing, keeper=credit.keeper, ledger_check=_make_check(accounting))


async def _list_living(database: Database) -> dict[Owner, Collection[int]]:
    """Return the ids of the keys and accounts that exist. Raises ``StoreUnavailable``."""
    found = [await database.read_long(select(table.c.id)) for table in (keys, accounts)]
    return {"key": {row.id for row in found[0]}, "account": {row.id for row in found[1]}}


def _make_check(accounting: AccountingService) -> "LedgerCheck":
    from gateway.cluster.credit.ledger_check import LedgerCheck  # noqa: PLC0415 - of a cluster

    return LedgerCheck(accounting.reconcile)


def _find_credit(services: Services, ledger: LedgerRepository, node: "RegisteredNode") -> "NodeCredit":
    from gateway.cluster.credit.node_credit import NodeCredit  # noqa: PLC0415 - its driver is an extra

    options, storage = services.options, services.storage
    return NodeCredit(node, options.config.store.url, ledger, storage.write_queue, clock=options.clock)


async def _recover_alone(services: Services, recover: Callable[[], Awaitable[None]]) -> None:
    """Recover, after deleting the balances that a cluster has left on PostgreSQL: no write counts in them from now on.

    The leases of its dead nodes stay: these are still to store what their journals have. Only the node of this data
    folder has nothing to store once ``recover`` returns; after a command it may have.

    Raises ``DatabaseStartupError`` if a node of the cluster runs.
    """
    database, options = services.storage.database, services.options
    if database.kind != "postgresql":
        await recover()
        return
    from gateway.cluster.credit.store import clear_credit, delete_leases  # noqa: PLC0415 - it is an extra
    from gateway.cluster.membership.death_watch import DEAD_S  # noqa: PLC0415 - of a cluster

    await database.write(partial(clear_credit, dead_s=DEAD_S))
    await recover()
    if options.declare and (node := options.folder.find_node_id()) is not None:
        await database.write(partial(delete_leases, node=node))
