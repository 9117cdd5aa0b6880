"""The part of the roof under which the books are kept: the store, its ledger, and what is in memory of them."""

from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import structlog

from gateway.billing.accounting import AccountingService
from gateway.billing.balances import Balances
from gateway.billing.flush_worker import LedgerFlusher
from gateway.billing.recovery import open_bank, recover
from gateway.billing.write_queue import WriteQueue
from gateway.config.merge import FileConfig, find_sources, parse_stored, settle
from gateway.config.reload import LiveConfig, log_ignored
from gateway.options import AppOptions
from gateway.retention_clock import WARN_AFTER_S, RetentionClock
from gateway.storage.data_folder import DATABASE, JOURNAL, check_database_present
from gateway.storage.database import Database, open_database
from gateway.storage.identity import check_secrets
from gateway.storage.integrity_check import check_before_start
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository
from gateway.storage.retention import RetentionRepository
from gateway.storage.settings import SettingRepository
from gateway.storage.startup_state import StartupState, find_leftovers

CHECK_S = 0.2
CHECK_KILLED_S = 10.0
"""How long a start may look for damage before it serves; the rest is looked through meanwhile. The latter is for a
folder whose last process was killed."""

log = structlog.stdlib.get_logger(__name__)


@attrs.frozen
class Books:
    """The store and what is kept in memory of it."""

    database: Database
    journal: RequestJournal
    outbox: WriteQueue
    bank: Balances
    accounting: AccountingService
    flush: LedgerFlusher
    left: StartupState
    expiry: RetentionClock

    async def check_writable(self) -> None:
        """Raise ``StoreUnavailable`` where a request could not be recorded now."""
        self.outbox.check_room()
        self.journal.check_writable()
        await self.database.check_writable()


async def open_books(site: AppOptions, stack: AsyncExitStack) -> Books:
    """Open the store, bring in what a crash has left, read every balance. ``stack`` closes it, rows stored first."""
    database = await _open_database(site)
    stack.push_async_callback(database.close)
    master_key = bytes.fromhex(site.config.store.master_key)
    await check_secrets(site.folder, database, master_key=master_key, renew=site.renew_secrets)
    ledger, outbox = LedgerRepository(database), WriteQueue()
    journal = RequestJournal(site.folder.private_file(JOURNAL))
    stack.callback(journal.close)
    flush = LedgerFlusher(outbox, ledger, journal)
    stack.push_async_callback(flush.finish)
    expiry = await _open_expiry_clock(site, database)
    now_ms = int(site.clock() * 1000)
    # A command that only looks must not decide about money by a configuration that may be another than the gateway's.
    on_crash = site.config.ledger.on_crash if site.declare else None
    await recover(journal.leftovers, ledger, journal, on_crash=on_crash, now_ms=now_ms)
    journal.renew()
    bank = await open_bank(ledger, site.clock)
    accounting = AccountingService(bank, ledger, outbox, clock=site.clock)
    stack.push_async_callback(accounting.close)
    left = await find_leftovers(database)
    return Books(database, journal, outbox, bank, accounting, flush, left, expiry)


async def open_live_config(site: AppOptions, books: Books) -> LiveConfig:
    """Merge the configuration of the file with the stored settings. Raises ``StoreUnavailable``."""
    sources = find_sources(site.config) if site.sources is None else site.sources
    stored = await SettingRepository(books.database).list_settings() if books.left.settings else ()
    settled = settle(FileConfig(site.config, sources), parse_stored(stored))
    log_ignored(settled)
    return LiveConfig(settled)


async def _open_expiry_clock(site: AppOptions, database: Database) -> RetentionClock:
    """The clock that records are deleted by; says so if it is far from the newest of them."""
    newest_ms = await RetentionRepository(database).find_newest_ms()
    expiry = RetentionClock(site.clock, None if newest_ms is None else newest_ms / 1000)
    days = round(abs(expiry.ahead_s) / 86_400, 1)
    if expiry.ahead_s > WARN_AFTER_S:
        reason = f"The clock is {days} days after the newest record: nothing is deleted for its age for a day"
        log.warning("clock_ahead", reason=reason)
    elif expiry.ahead_s < -WARN_AFTER_S:
        log.warning("clock_behind", reason=f"The clock is {days} days before the newest record: one of them is wrong")
    return expiry


async def _open_database(site: AppOptions) -> Database:
    """The database, after a look at whether it is there, whole, and a gateway's own."""
    folder = site.folder
    url = site.config.store.url or f"sqlite:///{folder.path / DATABASE}"
    path = Path(url.removeprefix("sqlite:///"))
    check_database_present(folder.path, path)
    if folder.killed:
        # A copy of the folder, or sqlite3 itself, may have left a log out that it had folded in: it need not be a loss.
        for expected in (path.with_name(f"{path.name}-wal"), folder.path / JOURNAL):
            if not expected.exists():
                log.warning("store_file_missing", path=str(expected), reason="what it alone knew of is lost")
    await check_before_start(path, CHECK_KILLED_S if folder.killed else CHECK_S)
    if not site.config.store.url:
        folder.private_file(DATABASE)
    return await open_database(url)
