"""Notes of the started requests of a node without a disk of its own, in the transactions that post rows."""

from collections.abc import Collection
from typing import Protocol

from gateway.domain.request_log import RequestRecord
from gateway.storage.async_engine import AsyncConnection


class StoredNotes(Protocol):
    """The notes in the database, which replace the journal's entries of started requests."""

    async def delete(self, connection: AsyncConnection, ids: Collection[str]) -> None:
        """Delete the notes of requests whose rows are stored in the same transaction."""
        ...

    async def store_refused_row(self, connection: AsyncConnection, row: RequestRecord, reason: str) -> None:
        """Keep a row that the database refuses, unchanged, in place of its note."""
        ...
