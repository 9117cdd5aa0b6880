"""The two files that the results of a running batch are appended to: answers and errors.

They are flushed to the disk before the batch's row tells of their lines. A crash can leave a part of a line, which the
next start cuts off.

A node of a cluster that takes a batch over goes on in copies: the node before it may not be dead, and still write.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.domain.batch import BatchTally, LineResult
from gateway.domain.client_file import find_digits
from gateway.formats.openai.batches import parse_result
from gateway.storage.data_folder import sync_folder
from gateway.storage.file_folder import FileFolder
from gateway.storage.media_files import DRAFT

_OWNER_ONLY = 0o600
ParseResult = Callable[[bytes], tuple[str, BatchTally] | None]


class ResultFiles:
    """The files of one batch. ``parse`` is that of its results' format, ``moves`` the number of its take-overs.

    Every method blocks, and raises ``OSError``.
    """

    def __init__(self, folder: FileFolder, batch_id: str, parse: ParseResult = parse_result, moves: int = 0) -> None:
        self._folder = folder
        self._moves = moves
        self._name = f"batch-{find_digits(batch_id)}"
        self.output = _ResultFile(self._find_path("output", moves), parse)
        self.errors = _ResultFile(self._find_path("errors", moves), parse)

    def take_over(self) -> None:
        """Begin with what the node before has written. Does nothing the second time."""
        for kind, file in (("output", self.output), ("errors", self.errors)):
            earlier = (self._find_path(kind, moves) for moves in range(self._moves - 1, -1, -1))
            before = next((path for path in earlier if path.exists()), None)
            if before is not None and not file.path.exists():
                _copy(before, file.path)

    def _find_path(self, kind: str, moves: int) -> Path:
        return self._folder.path / (f"{self._name}.{moves}.{kind}" if moves else f"{self._name}.{kind}")

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


def _copy(source: Path, target: Path) -> None:
    """Copy a file durably; the copy is there as a whole or not at all."""
    draft = target.with_name(f"{DRAFT}{target.name}")
    shutil.copyfile(source, draft)
    draft.chmod(_OWNER_ONLY)
    with draft.open("rb") as copied:
        os.fsync(copied.fileno())
    draft.rename(target)
    sync_folder(target.parent)


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
