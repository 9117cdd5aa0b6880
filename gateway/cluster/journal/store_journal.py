"""The journal of a node without a disk of its own: starts go to the database, ends to a file as far as that lasts."""

from pathlib import Path

from gateway.background import JobRunner
from gateway.cluster.journal.request_notes import NoteWriter
from gateway.domain.request_log import RequestStart
from gateway.storage.journal import RequestJournal


class StoreJournal(RequestJournal):
    """A journal that survives the loss of its file: the database has a note of every request that was started.

    The file has requests that have ended and are not stored yet. If the process starts again with the same file, they
    are exact; without it, they end as their notes say. ``path``: of the file.
    """

    def __init__(self, path: Path, writer: NoteWriter) -> None:
        super().__init__(path)
        self._writer = writer
        self._jobs = JobRunner()

    def run(self) -> None:
        """Write notes from now on."""
        self._jobs.start("write_notes", self._writer.run)

    async def stop(self) -> None:
        """Write no more notes."""
        await self._jobs.stop()
        await self._writer.close()

    def start_at_once(self, start: RequestStart) -> bool:  # noqa: ARG002 - the disk records it at once
        return False

    async def start(self, start: RequestStart) -> bool:
        """Return True once the note of a request is committed. Raises ``StoreUnavailable``."""
        await self._writer.write(start)
        return True

    def withdraw(self, request_id: str) -> None:
        self._writer.withdraw(request_id)

    def start_soon(self, start: RequestStart) -> None:
        self._writer.write_soon(start)
