"""Open billing: recover what a crash left, then read every balance."""

import time
from contextlib import AsyncExitStack

from gateway.billing.accounting import AccountingService
from gateway.billing.flush_worker import LedgerFlusher
from gateway.billing.quota import QuotaService
from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.billing.recovery import open_bank, recover
from gateway.billing.settlement import Settlement
from gateway.server.context import BillingServices, Services
from gateway.storage.ledger import LedgerRepository


async def open_billing(services: Services, stack: AsyncExitStack) -> BillingServices:
    """Open billing. When ``stack`` closes, it stores the records that are still queued. Raises ``StoreUnavailable``."""
    options, storage = services.options, services.storage
    ledger = LedgerRepository(storage.database, storage.unstorable)
    journal, write_queue = storage.journal, storage.write_queue
    flusher = LedgerFlusher(write_queue, ledger, journal)
    stack.push_async_callback(flusher.finish)
    now_ms = int(options.clock() * 1000)
    # Another command than serve may read another configuration: it must not decide about money by it.
    on_crash = options.config.ledger.on_crash if options.declare else None
    await recover(journal.leftovers, ledger, journal, on_crash=on_crash, now_ms=now_ms)
    journal.renew()
    balances = await open_bank(ledger, options.clock)
    accounting = AccountingService(balances, ledger, write_queue, clock=options.clock)
    stack.push_async_callback(accounting.close)
    quota = QuotaService(balances, InMemoryRateLimiter(time.monotonic), journal, write_queue)
    settlement = Settlement(quota, journal, write_queue)
    settlement.find_abandoned = services.live_config.find_abandoned
    return BillingServices(balances, accounting, flusher, quota, settlement)
