"""The two files that the results of a running batch are appended to: answers and errors.

They are flushed to the disk before the batch's row tells of their lines. A crash can leave a part of a line, which the
next start cuts off.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.domain.batch import BatchTally, LineResult
from gateway.domain.client_file import find_digits
from gateway.formats.openai.batches import parse_result
from gateway.storage.data_folder import sync_folder
from gateway.storage.file_folder import FileFolder

_OWNER_ONLY = 0o600
ParseResult = Callable[[bytes], tuple[str, BatchTally] | None]


class ResultFiles:
    """The files of one batch. ``parse`` is that of its results' format.

    Every method blocks, and raises ``OSError``.
    """

    def __init__(self, folder: FileFolder, batch_id: str, parse: ParseResult = parse_result) -> None:
        self._folder = folder
        name = f"batch-{find_digits(batch_id)}"
        self.output = _ResultFile(folder.path / f"{name}.output", parse)
        self.errors = _ResultFile(folder.path / f"{name}.errors", parse)

    def recover(self) -> tuple[set[str], BatchTally]:
        """Return the ``custom_id`` of every line with a result, and their sum."""
        done, tally = set[str](), BatchTally()
        for file in (self.output, self.errors):
            for custom_id, more in file.recover():
                done.add(custom_id)
                tally = tally.add(more)
        return done, tally

    def append(self, results: Sequence[LineResult]) -> None:
        """Write results durably. After an error the same call can be repeated."""
        self.output.append([result.line for result in results if result.in_output])
        self.errors.append([result.line for result in results if not result.in_output])
        self.output.mark()
        self.errors.mark()

    def remove(self) -> None:
        """Delete both."""
        for file in (self.output, self.errors):
            file.path.unlink(missing_ok=True)


class _ResultFile:
    """One of the two. ``_size``: its bytes without those of an append that failed."""

    def __init__(self, path: Path, parse: ParseResult) -> None:
        self.path = path
        self._parse = parse
        self._size = self._written = 0

    def recover(self) -> list[tuple[str, BatchTally]]:
        """Cut a part of a line off the end; return what ``parse_result`` returns of every other."""
        found: list[tuple[str, BatchTally]] = []
        self._size = 0
        if not self.path.exists():
            return found
        with self.path.open("r+b") as file:
            for line in file:
                result = self._parse(line) if line.endswith(b"\n") else None
                if result is None:
                    break
                found.append(result)
                self._size += len(line)
            file.truncate(self._size)
            os.fsync(file.fileno())
        self._written = self._size
        return found

    def append(self, lines: Sequence[bytes]) -> None:
        self._written = self._size
        if not lines:
            return
        new = not self.path.exists()
        with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY), "r+b") as file:
            file.truncate(self._size)
            file.seek(self._size)
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self.path.parent)
        self._written = self._size + sum(map(len, lines))

    def mark(self) -> None:
        """Keep what was appended last."""
        self._size = self._written
