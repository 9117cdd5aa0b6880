"""The PostgreSQL database of the run, as tests of credit leases use it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import attrs

from gateway.cluster.credit.rows import Connection
from gateway.domain.balance import QuotaPeriod, UtcDay
from gateway.domain.credit import BalanceId
from tests.support.credit_nodes import insert
from tests.support.postgres import SharedPostgres

PERIODS: dict[QuotaPeriod, int | None] = {"none": None, "lifetime": 0, "daily": 1, "monthly": 2}
_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> $1"


@attrs.define(eq=False)
class CreditStore:
    """``connection`` is the test's own."""

    url: str
    connection: Connection

    async def add_owner(self, balance: BalanceId, limit: int | None, period: QuotaPeriod) -> None:
        """Add an account or a key of account 1."""
        owner, number = balance
        own = {"id": number, "name": f"{owner}{number}", "quota_nanos": limit, "quota_period": period}
        if owner == "key":
            own |= {"account_id": 1, "digest": bytes([number])}
            if not await self.connection.fetchval("SELECT count(*) FROM accounts WHERE id = 1"):
                await self.add_owner(("account", 1), None, "none")
        await insert(self.connection, f"{owner}s", **own)

    async def open(self, balance: BalanceId, period: QuotaPeriod, day: UtcDay) -> None:
        place = 0 if balance[0] == "account" else 1, balance[1]
        await self.connection.execute(
            "SELECT open_balance($1, $2, $3, $4, $5)", *place, PERIODS[period], day.number, day.month_number
        )

    async def cut_others(self) -> None:
        """End every other connection to the database."""
        await self.connection.fetch(_CUT, self.connection.get_server_pid())


@asynccontextmanager
async def open_credit_store(shared: SharedPostgres) -> AsyncIterator[CreditStore]:
    """Connect to the empty database of the run; end every other connection when the test has ended."""
    url = await shared.empty()
    connection = await asyncpg.connect(url)
    store = CreditStore(url, connection)
    try:
        yield store
        await store.cut_others()
    finally:
        connection.terminate()
