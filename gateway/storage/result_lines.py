"""A file to which the results of a running batch are appended.

The file is flushed to the disk before the batch's row counts its lines. A crash can leave an incomplete line, which the
next start cuts off.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gateway.storage.data_folder import sync_folder

_OWNER_ONLY_MODE = 0o600


class FolderLines:
    """The lines of a file. Methods block, and raise ``OSError``.

    ``_size`` excludes the last append until ``make_permanent``: the next append replaces it.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], Any]) -> None:
        self.path = path
        self._parse = parse
        self._size = self._written_bytes = 0

    @property
    def name(self) -> str:
        return self.path.name

    def recover(self) -> list[Any]:
        lines: list[Any] = []
        self._size = 0
        if not self.path.exists():
            return lines
        with self.path.open("r+b") as file:
            for line in file:
                result = self._parse(line) if line.endswith(b"\n") else None
                if result is None:
                    break
                lines.append(result)
                self._size += len(line)
            file.truncate(self._size)
            os.fsync(file.fileno())
        self._written_bytes = self._size
        return lines

    def append(self, lines: Sequence[bytes]) -> None:
        self._written_bytes = self._size
        if not lines:
            return
        is_new = not self.path.exists()
        with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY_MODE), "r+b") as file:
            file.truncate(self._size)
            file.seek(self._size)
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.path.parent)
        self._written_bytes = self._size + sum(map(len, lines))

    def make_permanent(self) -> None:
        self._size = self._written_bytes

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def copy_durably(source: Path, target: Path, draft: Path) -> None:
    """Copy a file through ``draft``, completely or not at all. Raises ``OSError``."""
    shutil.copyfile(source, draft)
    draft.chmod(_OWNER_ONLY_MODE)
    with draft.open("rb") as draft_file:
        os.fsync(draft_file.fileno())
    draft.rename(target)
    sync_folder(target.parent)
