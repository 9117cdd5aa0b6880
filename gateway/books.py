"""The part of the roof under which the books are kept: the store, its ledger, and what is in memory of them."""

from contextlib import AsyncExitStack

import attrs

from gateway.flow.accounting import Accounting
from gateway.flow.admission import Bank
from gateway.flow.outbox import Outbox
from gateway.flow.recovery import open_bank, recover
from gateway.jobs.flush_ledger import FlushLedger
from gateway.site import Site
from gateway.store.engine import Database, open_database
from gateway.store.journal import FileJournal
from gateway.store.ledger import SqlLedger
from gateway.store.leftovers import Leftovers, find_leftovers


@attrs.frozen
class Books:
    """The store and what is kept in memory of it."""

    database: Database
    journal: FileJournal
    outbox: Outbox
    bank: Bank
    accounting: Accounting
    flush: FlushLedger
    left: Leftovers

    async def check_writable(self) -> None:
        """Raise ``StoreUnavailable`` where a request could not be recorded now."""
        self.outbox.check_room()
        self.journal.check_writable()
        await self.database.check_writable()


async def open_books(site: Site, stack: AsyncExitStack) -> Books:
    """Open the store, bring in what a crash has left, read every balance. ``stack`` closes it, rows stored first."""
    url = site.config.store.url or f"sqlite:///{site.folder.private_file('gateway.db')}"
    database = await open_database(url)
    stack.push_async_callback(database.close)
    ledger, outbox = SqlLedger(database), Outbox()
    journal = FileJournal(site.folder.private_file("requests.journal"))
    stack.callback(journal.close)
    flush = FlushLedger(outbox, ledger, journal)
    stack.push_async_callback(flush.finish)
    now_ms = int(site.clock() * 1000)
    # A command that only looks must not decide about money by a configuration that may be another than the gateway's.
    on_crash = site.config.ledger.on_crash if site.declare else None
    await recover(journal.leftovers, ledger, journal, on_crash=on_crash, now_ms=now_ms)
    journal.renew()
    bank = await open_bank(ledger, site.clock)
    accounting = Accounting(bank, ledger, outbox, clock=site.clock)
    left = await find_leftovers(database)
    return Books(database, journal, outbox, bank, accounting, flush, left)
