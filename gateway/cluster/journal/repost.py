"""Stores again what a node stored last: its store has been replaced by one that may lack it."""

import asyncio

import structlog

from gateway.billing.flush_worker import BATCH
from gateway.cluster.journal.kept_journal import KeptJournal, read_settled
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository

log = structlog.stdlib.get_logger(__name__)


async def post_kept(journal: RequestJournal, ledger: LedgerRepository) -> None:
    """Store every row that was stored in the last minute, unless it is there. Raises ``StoreUnavailable``.

    A journal that keeps nothing has none.
    """
    if not isinstance(journal, KeptJournal):
        return
    posted = 0
    for path in journal.keep_all():
        rows = journal.select_stored(await asyncio.to_thread(read_settled, path))
        for first in range(0, len(rows), BATCH):
            await ledger.post_again(rows[first : first + BATCH])
        posted += len(rows)
    log.warning("records_posted_again", rows=posted)
