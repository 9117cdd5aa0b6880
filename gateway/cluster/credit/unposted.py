"""Charges that were settled by this process and are not stored yet."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from gateway.billing.write_queue import WriteQueue
from gateway.domain.credit import BalanceId
from gateway.storage.ledger import LedgerRepository


@asynccontextmanager
async def find_unposted_charges(
    queue: WriteQueue, ledger: LedgerRepository
) -> AsyncIterator[Callable[[], Mapping[BalanceId, int]]]:
    """Keep rows from being stored; yield a function that adds up the charges not stored at that moment."""
    async with queue.writing:
        # After a failed batch some rows may be stored: the answer to its commit may have been lost.
        stored_ids = (
            await ledger.find_stored_ids([row.id for row in queue.list_rows()]) if queue.failing else frozenset()
        )

        def add_up() -> Mapping[BalanceId, int]:
            sums: Counter[BalanceId] = Counter()
            for row in queue.list_rows():
                if row.id not in stored_ids:
                    sums["account", row.account_id] += row.cost_nanos
                    sums["key", row.key_id] += row.cost_nanos
            return sums

        yield add_up
