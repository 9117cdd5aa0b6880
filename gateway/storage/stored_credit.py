"""The interface by which the writes of a node change balances and credit leases, in the same transactions."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import Executable, Row

from gateway.domain.balance import Quota
from gateway.domain.credit import BalanceId, CreditFigures, LeaseClaim
from gateway.domain.ledger import LedgerEntry
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import VideoJob
from gateway.storage.async_engine import AsyncConnection


class StoredCredit(Protocol):
    """The balances and leases that a node's writes change."""

    async def find_figures(
        self, balances: Sequence[BalanceId], connection: AsyncConnection | None = None
    ) -> Mapping[BalanceId, CreditFigures]:
        """Return the figures of ``balances``. Without ``connection`` they are read in a transaction of their own."""
        ...

    async def list_problems(
        self, more_queries: Sequence[Executable] = ()
    ) -> tuple[Sequence[str], Sequence[str], Sequence[Sequence[Row[Any]]]]:
        """Return the errors in balances, leases and jobs, the exceeded limits, and the rows of ``more_queries``.

        All are of one snapshot.
        """
        ...

    async def post(self, connection: AsyncConnection, rows: Sequence[RequestRecord]) -> None:
        """Count the charges of ``rows`` as spent from the node's leases.

        The call comes last before the commit, because its statement locks the balances.
        """
        ...

    async def restore_leases(self, claims: Mapping[BalanceId, LeaseClaim]) -> None:
        """Make ``claims`` the leases of this node, and record what exceeds a limit."""
        ...

    async def record_overruns(self, connection: AsyncConnection, rows: Sequence[RequestRecord]) -> None:
        """Record by how much the limits of ``rows``, which were stored late, are exceeded."""
        ...

    async def refund(self, connection: AsyncConnection, rows: Sequence[RequestRecord]) -> None:
        """Reverse the charges of ``rows`` that belong to no lease any more, because their node was declared dead."""
        ...

    async def open_missing_balances(self, connection: AsyncConnection) -> None:
        """Create the missing balances of accounts and keys that have a limit."""
        ...

    async def set_limit(self, connection: AsyncConnection, balance: BalanceId, quota: Quota) -> None:
        """Create, change or delete the balance of an account or key whose new quota is ``quota``."""
        ...

    async def end_balances(self, connection: AsyncConnection, owner: BalanceId) -> None:
        """Delete the balances of an account and its keys before they are deleted, or that of a key."""
        ...

    async def add_credit(self, connection: AsyncConnection, entry: LedgerEntry) -> None:
        """Count a credit entry before it is stored."""
        ...

    async def reserve_job(self, connection: AsyncConnection, job: VideoJob) -> None:
        """Move the reservation of a new job from the node's leases to the job."""
        ...

    async def finish_jobs(self, connection: AsyncConnection, ends: Sequence[tuple[VideoJob, RequestRecord]]) -> None:
        """Release the reservations of jobs, and count their charges."""
        ...
