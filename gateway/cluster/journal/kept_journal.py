"""The journal of a node, with the rows that were stored less than two minutes ago.

A standby server that replaces a lost one may lack the last commits. Their rows are posted again from this journal.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from gateway.domain.request_log import RequestRecord
from gateway.storage.journal import ROTATE_BYTES, RequestJournal, parse_journal

RETENTION_S = 120.0

log = structlog.stdlib.get_logger(__name__)


class KeptJournal(RequestJournal):
    """A journal whose replaced files stay for ``RETENTION_S`` seconds under another name.

    The rows are not written twice: a second name for the file costs nothing per request.

    ``path``: the journal. ``rotate_bytes``: the growth after which it is rewritten. ``now``: seconds of a monotonic
    clock.
    """

    def __init__(
        self, path: Path, *, rotate_bytes: int = ROTATE_BYTES, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self._kept_files: deque[tuple[Path, float]] = deque()
        self._file_count = 0
        for old_file in path.parent.glob(f"{path.name}.kept-*"):
            old_file.unlink(missing_ok=True)
        super().__init__(path, rotate_bytes=rotate_bytes)

    def keep_all(self) -> Sequence[Path]:
        """Rewrite the journal; return the files with all rows stored in the last ``RETENTION_S`` seconds."""
        self.renew()
        return [path for path, _ in self._kept_files]

    def select_stored(self, rows: Sequence[RequestRecord]) -> Sequence[RequestRecord]:
        return [row for row in rows if row.id not in self._open_notes]

    def close(self) -> None:
        super().close()
        self._delete_old_files(float("inf"))

    def _write_anew(self) -> int:
        self._delete_old_files(self._now() - RETENTION_S)
        self._file_count += 1
        kept_file = self._path.with_name(f"{self._path.name}.kept-{self._file_count}")
        try:
            os.link(self._path, kept_file)
            self._kept_files.append((kept_file, self._now()))
        except FileNotFoundError:  # the first journal of this folder
            pass
        except OSError as error:  # a file system without hard links
            log.warning("journal_not_kept", error=str(error))
        return super()._write_anew()

    def _delete_old_files(self, before_s: float) -> None:
        while self._kept_files and self._kept_files[0][1] < before_s:
            self._kept_files.popleft()[0].unlink(missing_ok=True)


def read_ended_requests(path: Path) -> Sequence[RequestRecord]:
    """Return the rows of ended requests in a journal file."""
    return [request.row for request in parse_journal(path.read_bytes())[0] if request.ended]
