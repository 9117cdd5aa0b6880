"""Open the credit leases of this gateway as one of several nodes on a PostgreSQL database."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import structlog

from gateway.billing.credit_keeper import CreditKeeper
from gateway.billing.leased_balances import LeasedBalances
from gateway.billing.unposted import find_unposted
from gateway.billing.write_queue import WriteQueue
from gateway.domain.balance import UtcDay, parse_day
from gateway.errors import StoreUnavailable
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.credit_authority import PostgresCreditAuthority
from gateway.storage.postgres.stored_credit import PostgresCredit, open_missing

log = structlog.stdlib.get_logger(__name__)


class LeaseHolder(Protocol):
    """A node of a cluster: its id, and how many nodes live."""

    @property
    def id(self) -> str: ...

    @property
    def live(self) -> int: ...


class NodeCredit:
    """The leases of a node, from its start to its end.

    Args:
        node: whose leases they are.
        url: of the database.
        ledger: has the rows that are stored.
        queue: has those that are not.
        clock: Unix seconds.

    Attributes:
        keeper: asks the store for credit.
        balances: what requests reserve from.
    """

    def __init__(
        self, node: LeaseHolder, url: str, ledger: LedgerRepository, queue: WriteQueue, *, clock: Callable[[], float]
    ) -> None:
        self._node = node
        self._authority = PostgresCreditAuthority(Address(url, node.id), node.id, lambda: node.live)
        self._clock = clock
        unposted = partial(find_unposted, queue, ledger)
        self.keeper = CreditKeeper(self._authority, unposted, today=self._find_today, now=time.monotonic)
        self.balances = LeasedBalances(clock, self.keeper)

    async def open(self, database: Database, recover: Callable[[], Awaitable[None]]) -> None:
        """Count what every write spends from now on, ``recover`` what the last process left, and end its leases.

        Raises ``StoreUnavailable``.
        """
        database.credit = PostgresCredit(database, self._node.id, self._find_today)
        await database.write(partial(open_missing, day=self._find_today()))
        await recover()
        await self._authority.fold()

    async def close(self) -> None:
        """End every lease, after the last row is stored."""
        try:
            await self._authority.fold()
        except StoreUnavailable as error:
            log.warning("credit_not_released", error=error.message)  # the next start ends them
        await self._authority.close()

    def _find_today(self) -> UtcDay:
        return parse_day(self._clock())
