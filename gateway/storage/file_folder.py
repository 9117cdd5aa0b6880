"""The bytes of clients' files: ``<folder>/<first two digits>/<32 digits>.bin``, written whole or not at all.

The results of running batches are appended to files next to these folders.
"""

import asyncio
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from gateway.domain.client_file import find_digits
from gateway.domain.media import CleanupResult, Media
from gateway.errors import NotFound, StoreUnavailable
from gateway.storage.data_folder import sync_folder
from gateway.storage.file_draft import DRAFT, FileDraft, find_path
from gateway.storage.media_files import STALE_DRAFT_S, MediaFiles
from gateway.storage.result_lines import FolderLines, copy_durably

MEDIA_TYPE = "application/octet-stream"
STORED_NAME = re.compile(
    r"(?:(?P<digits>[0-9a-f]{32})\.bin|batch-(?P<batch>[0-9a-f]{32})(?:\.\d+)?\.(?:output|errors))\Z", re.ASCII
)

_ID_BYTES = 16

log = structlog.stdlib.get_logger(__name__)


class FileFolder:
    """A folder that contains only clients' files. ``clock`` is that of the file system."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._media = MediaFiles(folder, clock=clock)
        self._clock = clock
        self.path = folder.resolve()

    def check_room(self) -> None:
        self._media.check_room()

    def open_draft(self) -> FileDraft:
        return self._media.open_draft()

    async def keep(self, draft: FileDraft, object_id: str) -> int:
        return (await asyncio.to_thread(draft.keep_as, name_file(object_id), MEDIA_TYPE)).size

    async def find(self, object_id: str) -> Media:
        return await asyncio.to_thread(self._find, object_id)

    def _find(self, object_id: str) -> Media:
        path = self._find_path(object_id)
        try:
            status = path.lstat()
        except FileNotFoundError:
            raise NotFound("The gateway no longer has the content of this file", should_retry=False) from None
        except OSError as error:
            raise StoreUnavailable("The gateway cannot read its files at the moment", retry_after_s=5) from error
        return Media(object_id, MEDIA_TYPE, status.st_size, status.st_mtime, path)

    async def remove(self, object_id: str) -> None:
        try:
            await asyncio.to_thread(self._find_path(object_id).unlink, missing_ok=True)
        except OSError as error:
            log.warning("file_not_removed", error=error.strerror or str(error))

    @asynccontextmanager
    async def open_local(self, object_id: str) -> AsyncIterator[Path]:
        yield (await self.find(object_id)).path

    def open_lines(self, name: str, parse: Callable[[bytes], Any]) -> FolderLines:
        return FolderLines(self.path / name, parse)

    def copy_lines(self, earlier_names: Sequence[str], name: str) -> None:
        """Copy the first file of ``earlier_names`` that exists to ``name``, unless ``name`` exists. Blocks."""
        source = next((path for path in map(self.path.joinpath, earlier_names) if path.exists()), None)
        target = self.path / name
        if source is not None and not target.exists():
            copy_durably(source, target, self.path / f"{DRAFT}{secrets.token_hex(_ID_BYTES)}")

    def adopt(self, name: str, object_id: str) -> int:
        """Store the appended file ``name`` as the bytes of ``object_id``; return its size.

        Blocks. An interrupted call can be repeated. Raises ``OSError``: ``FileNotFoundError`` if neither file exists.
        """
        path, target = self.path / name, self._find_path(object_id)
        if path.exists():
            target.parent.mkdir(exist_ok=True, mode=0o700)
            os.utime(path)  # otherwise a sweep could delete old bytes whose row is not written yet
            path.rename(target)
            sync_folder(target.parent)
            sync_folder(self.path)
        return target.stat().st_size

    async def sweep(self, kept_ids: set[str]) -> CleanupResult:
        """Delete old drafts and the bytes of ids not in ``kept_ids``. Files younger than an hour stay.

        Return how much was deleted and how much is left.
        """
        digits = {find_digits(kept_id) for kept_id in kept_ids}
        return await asyncio.to_thread(self._sweep, digits, self._clock() - STALE_DRAFT_S)

    def _sweep(self, digits: set[str], before_s: float) -> CleanupResult:
        files = freed_bytes = left_bytes = 0
        for entry in self._list_entries():
            match = STORED_NAME.match(entry.name)
            is_known = (match["digits"] or match["batch"]) in digits if match else not entry.name.startswith(DRAFT)
            try:
                status = entry.stat(follow_symlinks=False)
                if is_known or status.st_mtime >= before_s:
                    left_bytes += status.st_size
                    continue
                os.unlink(entry.path)  # noqa: PTH108 - a directory entry has its path as a string
            except OSError as error:
                log.warning("file_not_removed", error=error.strerror or str(error))
                continue
            files, freed_bytes = files + 1, freed_bytes + status.st_size
        return CleanupResult(files, freed_bytes, left_bytes)

    def _list_entries(self) -> Iterator["os.DirEntry[str]"]:
        with os.scandir(self.path) as shards:
            for shard in shards:
                if not shard.is_dir(follow_symlinks=False):
                    yield shard
                    continue
                with os.scandir(shard.path) as entries:
                    yield from entries

    def _find_path(self, object_id: str) -> Path:
        return find_path(self.path, name_file(object_id))


def name_file(object_id: str) -> str:
    """Return the name of the file with the bytes of ``object_id``."""
    return f"{find_digits(object_id)}.bin"


def make_client_id(prefix: str) -> str:
    """Return ``prefix`` and 32 random hexadecimal digits."""
    return f"{prefix}{secrets.token_hex(_ID_BYTES)}"
