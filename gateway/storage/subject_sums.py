"""The sums of users, sessions and tags, as part of the transactions of their rows."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.domain.attribution import MAX_VALUES
from gateway.domain.request_log import RequestRecord
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bulk import Inserts

if TYPE_CHECKING:
    from gateway.storage.subject_bounds import SubjectBounds


class SubjectSums:
    """Adds rows to the sums of their subjects: at most ``find_max_values()`` users, sessions and values of a tag a day.

    Rows without a subject cost nothing: the module that sums is imported with the first row that has a subject.
    """

    def __init__(self, find_max_values: Callable[[], int] = lambda: MAX_VALUES) -> None:
        self._find_max_values = find_max_values
        self._bounds: SubjectBounds | None = None

    def list_inserts(self, rows: Sequence[RequestRecord]) -> Inserts | None:
        """Return the additions to the sums of ``rows``; None if ``add`` must look up a value."""
        attributed_rows = [row for row in rows if row.end_user or row.session or row.tags]
        return self._open().list_inserts(attributed_rows) if attributed_rows else ()

    async def add(self, connection: AsyncConnection, rows: Sequence[RequestRecord], *, reverses: bool = False) -> None:
        """Add ``rows`` to the sums, or with ``reverses`` subtract them, as part of the current transaction."""
        attributed_rows = [row for row in rows if row.end_user or row.session or row.tags]
        if attributed_rows:
            await self._open().add(connection, attributed_rows, reverses=reverses)

    def _open(self) -> "SubjectBounds":
        if self._bounds is None:
            from gateway.storage.subject_bounds import SubjectBounds  # noqa: PLC0415 - only if requests have subjects

            self._bounds = SubjectBounds(self._find_max_values)
        return self._bounds
