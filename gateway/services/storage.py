"""Opens the store: the database, the journal, and the work that an earlier process left in them."""

import hmac
from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog

from gateway.billing.write_queue import WriteQueue
from gateway.config.loader import read_words_file
from gateway.config.merge import FileConfig, find_sources, merge_stored_settings, parse_stored_settings
from gateway.config.reload import LiveConfig, log_ignored_settings
from gateway.deployment import Deployment, SingleProcess
from gateway.options import AppOptions
from gateway.retention_clock import WARN_AFTER_S, RetentionClock
from gateway.server.context import StorageServices
from gateway.storage.data_folder import DATABASE, JOURNAL, TIMELINE, UNSTORABLE, check_database_present, find_database
from gateway.storage.database import Database
from gateway.storage.identity import check_secrets
from gateway.storage.integrity_check import check_integrity
from gateway.storage.journal import RequestJournal
from gateway.storage.open import open_database
from gateway.storage.settings import SettingRepository
from gateway.storage.startup_state import find_leftovers, find_newest_ms
from gateway.storage.unstorable import UnstorableFile

CHECK_TIMEOUT_S = 0.2
CRASH_CHECK_TIMEOUT_S = 10.0
"""Time limits of the database check at startup, the second one if the folder's last process was killed.

A worker checks the remainder.
"""

_HASHED_USERS = b"hashed users"
"""Purpose of the key of end users' hashes, which is derived from the folder's secret."""

log = structlog.stdlib.get_logger(__name__)


async def open_storage(
    options: AppOptions, count_active: Callable[[], int], stack: AsyncExitStack, startup_stack: AsyncExitStack
) -> StorageServices:
    """Open the database and the journal. Raises ``DatabaseStartupError``, ``DataFolderDamaged``.

    ``count_active`` returns the number of active requests. While ``startup_stack`` is open, no other node of a cluster
    starts.
    """
    deployment: Deployment
    write_queue: WriteQueue
    if options.config.cluster.enabled:
        from gateway.cluster.open import open_node  # noqa: PLC0415 - its driver is an extra

        database, deployment, write_queue = await open_node(options, count_active, stack, startup_stack)
    else:
        deployment, write_queue = SingleProcess(options.clock), WriteQueue()
        database = await _open_database(options)
        stack.push_async_callback(database.close)
    master_key = bytes.fromhex(options.config.store.master_key)
    await check_secrets(options.folder, database, master_key=master_key, renew=options.renew_secrets)
    notes = None
    if deployment.node is None:
        journal = RequestJournal(options.folder.private_file(JOURNAL))
    else:
        from gateway.cluster.open_journal import open_journal  # noqa: PLC0415 - its driver is an extra

        journal, notes = await open_journal(options, stack, database, deployment.node)
    stack.callback(journal.close)
    retention_clock = await _open_retention_clock(deployment.clock, database)
    leftovers = await find_leftovers(database)
    unstorable = UnstorableFile(options.folder.path / UNSTORABLE)
    return StorageServices(database, journal, write_queue, leftovers, retention_clock, unstorable, deployment, notes)


async def open_live_config(options: AppOptions, storage: StorageServices) -> LiveConfig:
    """Merge the configuration file with the stored settings. Raises ``ConfigError``."""
    sources = find_sources(options.config) if options.sources is None else options.sources
    stored_settings = await SettingRepository(storage.database).list_settings() if storage.leftovers.settings else ()
    effective = merge_stored_settings(FileConfig(options.config, sources), parse_stored_settings(stored_settings))
    log_ignored_settings(effective)
    hash_key = hmac.digest(options.folder.secret("pepper"), _HASHED_USERS, "sha256")
    return LiveConfig(effective, read_words_file(effective.config), hash_key)


async def _open_retention_clock(now: Callable[[], float], database: Database) -> RetentionClock:
    """Return the clock for retention. Log a warning if it is far from the time of the newest record."""
    newest_ms = await find_newest_ms(database)
    clock = RetentionClock(now, None if newest_ms is None else newest_ms / 1000)
    days = round(abs(clock.ahead_s) / 86_400, 1)
    if clock.ahead_s > WARN_AFTER_S:
        reason = f"The clock is {days} days after the newest record: nothing is deleted for its age for a day"
        log.warning("clock_ahead", reason=reason)
    elif clock.ahead_s < -WARN_AFTER_S:
        log.warning("clock_behind", reason=f"The clock is {days} days before the newest record: one of them is wrong")
    return clock


async def _open_database(options: AppOptions) -> Database:
    """Open the database. Raises ``DatabaseStartupError``, ``DataFolderDamaged``.

    A SQLite file is checked first: it must not be missing if the folder was in use, nor be damaged, nor be that of
    another program.
    """
    folder = options.folder
    if options.config.store.is_postgres:
        return await open_database(options.config.store.url, folder.path / TIMELINE)
    path = find_database(folder.path, options.config.store.url)
    check_database_present(folder.path, path)
    if folder.was_killed:
        # Copying the folder, or sqlite3 itself, may have merged the log into the database: a missing log may be no
        # loss.
        for companion_path in (path.with_name(f"{path.name}-wal"), folder.path / JOURNAL):
            if not companion_path.exists():
                log.warning(
                    "store_file_missing", path=str(companion_path), reason="what only this file recorded is lost"
                )
    await check_integrity(path, CRASH_CHECK_TIMEOUT_S if folder.was_killed else CHECK_TIMEOUT_S)
    if not options.config.store.url:
        folder.private_file(DATABASE)
    return await open_database(f"sqlite:///{path}")
