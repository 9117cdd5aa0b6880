"""What a write owes to credit leases, if several nodes use the database: part of the same transaction."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import Executable, Row

from gateway.domain.balance import Quota
from gateway.domain.credit import BalanceId, CreditFigures
from gateway.domain.ledger import LedgerEntry
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import VideoJob
from gateway.storage.async_engine import AsyncConnection


class StoredCredit(Protocol):
    """The balances and leases that a node's writes change."""

    async def find_figures(
        self, balances: Sequence[BalanceId], connection: AsyncConnection | None = None
    ) -> Mapping[BalanceId, CreditFigures]:
        """Return what the store has of some balances, as part of a write or not; of one without a limit since ever."""
        ...

    async def list_problems(
        self, beside: Sequence[Executable] = ()
    ) -> tuple[Sequence[str], Sequence[Sequence[Row[Any]]]]:
        """Return what is wrong with balances, leases and jobs, and the rows of other statements, in one snapshot."""
        ...

    async def post(self, connection: AsyncConnection, rows: Sequence[RequestRecord]) -> None:
        """Count the charges of ``rows`` as spent of the node's leases. The last statement before the commit."""
        ...

    async def refund(self, connection: AsyncConnection, rows: Sequence[RequestRecord]) -> None:
        """Take back the charges of ``rows``, which no lease has any more: their node was declared dead."""
        ...

    async def open_missing(self, connection: AsyncConnection) -> None:
        """Make the balance of every account and key that has a limit and none yet."""
        ...

    async def limit(self, connection: AsyncConnection, balance: BalanceId, quota: Quota) -> None:
        """Make, change or delete the balance of an account or key that has ``quota`` from now on."""
        ...

    async def remove(self, connection: AsyncConnection, owner: BalanceId) -> None:
        """Delete the balance of an account that is about to be deleted, and those of its keys; or that of a key."""
        ...

    async def add_credit(self, connection: AsyncConnection, entry: LedgerEntry) -> None:
        """Count a credit, before its entry is stored."""
        ...

    async def reserve_job(self, connection: AsyncConnection, job: VideoJob) -> None:
        """Move what a new job holds from the node's leases to the job."""
        ...

    async def finish_job(self, connection: AsyncConnection, job: VideoJob, row: RequestRecord) -> None:
        """Free what a job holds, and count its charge."""
        ...
