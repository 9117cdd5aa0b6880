"""Stores the last rows of a node again after its store was replaced by one that may lack them."""

import asyncio

import structlog

from gateway.billing.flush_worker import MAX_ROWS
from gateway.cluster.journal.kept_journal import KeptJournal, read_ended_requests
from gateway.storage.journal import RequestJournal
from gateway.storage.ledger import LedgerRepository

log = structlog.stdlib.get_logger(__name__)


async def post_kept(journal: RequestJournal, ledger: LedgerRepository) -> None:
    """Store the rows of the last minutes that the store has lost. No-op if the journal keeps no stored rows.

    Raises ``OSError`` if a file of the journal cannot be read.
    """
    if not isinstance(journal, KeptJournal):
        return
    row_count = 0
    for path in journal.keep_all():
        rows = journal.select_stored(await asyncio.to_thread(read_ended_requests, path))
        for start in range(0, len(rows), MAX_ROWS):
            await ledger.post_again(rows[start : start + MAX_ROWS])
        row_count += len(rows)
    log.warning("records_posted_again", rows=row_count)
