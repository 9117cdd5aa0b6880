"""Charges that were settled by this process and are not stored yet."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from gateway.billing.write_queue import WriteQueue
from gateway.domain.credit import BalanceId, build_limit_id
from gateway.domain.limit import parse_charges
from gateway.domain.request_log import RequestRecord
from gateway.storage.ledger import LedgerRepository


def list_charged_balances(row: RequestRecord) -> list[BalanceId]:
    """Return the balances that the cost of ``row`` is charged to."""
    balances: list[BalanceId] = [("account", row.account_id), ("key", row.key_id)]
    if row.limit_charges:
        balances += list_limit_balances(row.limit_charges)
    return balances


def list_limit_balances(limit_charges: str) -> list[BalanceId]:
    """Return the balances of the subjects that a record's ``limit_charges`` name."""
    return [build_limit_id(counter, subject) for counter, subject, _ in parse_charges(limit_charges)]


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
                    for balance in list_charged_balances(row):
                        sums[balance] += row.cost_nanos
            return sums

        yield add_up
