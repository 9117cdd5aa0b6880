"""The journal of a node without a disk of its own: the database records starts, a temporary file records ends."""

from pathlib import Path

from gateway.background import JobRunner
from gateway.cluster.journal.request_notes import NoteWriter
from gateway.domain.request_log import RequestStart
from gateway.storage.journal import RequestJournal


class StoreJournal(RequestJournal):
    """A journal that survives the loss of its file: the database has a note of every started request.

    The file has requests that have ended and are not stored yet. If the process restarts with the same file, their
    costs are exact; without it they end according to their notes. ``path``: the path of the file.
    """

    def __init__(self, path: Path, writer: NoteWriter) -> None:
        super().__init__(path)
        self._writer = writer
        self._jobs = JobRunner()

    def run(self) -> None:
        self._jobs.start("write_notes", self._writer.run)

    async def stop(self) -> None:
        await self._jobs.stop()
        await self._writer.close()

    def start_at_once(self, start: RequestStart) -> bool:  # noqa: ARG002 - the disk's journal records it at once
        return False

    async def start(self, start: RequestStart) -> bool:
        await self._writer.write(start)
        return True

    def withdraw(self, request_id: str) -> None:
        self._writer.withdraw(request_id)

    def start_soon(self, start: RequestStart) -> None:
        self._writer.write_soon(start)
