"""Media files: ``<folder>/<first two digits>/<32 digits>.<extension>``, written completely or not at all.

A file is first written as ``draft-…`` in the folder, flushed to the disk, and then renamed. A sweep deletes the drafts
left by a crash. A file's modification time is the time when it was stored.
"""

import asyncio
import heapq
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISREG

import structlog

from gateway.domain.media import CleanupResult, Media, find_media_type
from gateway.errors import StoreUnavailable
from gateway.storage.file_draft import DRAFT, OWNER_ONLY_FOLDER_MODE, FileDraft, convert_disk_errors, find_path

MIN_FREE_BYTES = 64 * 1024 * 1024
"""Free space reserved for the database on the same disk, so that it can record charges."""
STALE_DRAFT_S = 3600.0
"""Seconds without a write after which a draft counts as left by a crash."""
ROOM_TTL_S = 1.0
FILES_PER_BATCH = 200
_SHARD = re.compile(r"[0-9a-f]{2}")

log = structlog.stdlib.get_logger(__name__)

StoredFile = tuple[float, int, str]
"""A file as seen by a sweep: when it was stored (Unix seconds), its size in bytes, its path."""


class MediaFiles:
    """The media folder, created if it does not exist. Raises ``OSError`` if that fails.

    ``folder`` contains only media. With less than ``min_free_bytes`` free on the disk, ``check_room`` refuses new
    files; ``put`` still stores what was paid for. ``clock`` is Unix seconds, the clock of the file system.
    """

    def __init__(
        self, folder: Path, *, min_free_bytes: int = MIN_FREE_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=OWNER_ONLY_FOLDER_MODE)
        self._folder = folder.resolve()
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._room_seen_s = float("-inf")
        self._sweep_lock = asyncio.Lock()  # two concurrent sweeps would free the same space twice

    async def put(self, data: bytes) -> Media:
        return await asyncio.to_thread(self._put, data)

    def _put(self, data: bytes) -> Media:
        # The request was accepted while there was room, and is already paid for: it may use the last bytes.
        draft = FileDraft(self._folder, lambda: None)
        draft.write_now(data)
        return draft.keep_now()

    def open_draft(self) -> FileDraft:
        return FileDraft(self._folder, self.check_room)

    def check_room(self) -> None:
        now_s = self._clock()
        if 0 <= now_s - self._room_seen_s < ROOM_TTL_S:
            return
        with convert_disk_errors():
            disk = os.statvfs(self._folder)
        if disk.f_bavail * disk.f_frsize < self._min_free_bytes:
            raise StoreUnavailable("The gateway has no room for media at the moment", retry_after_s=60)
        self._room_seen_s = now_s

    async def find(self, media_id: str) -> Media | None:
        media_type = find_media_type(media_id)
        return await asyncio.to_thread(self._find, media_id, media_type) if media_type is not None else None

    def _find(self, media_id: str, media_type: str) -> Media | None:
        path = find_path(self._folder, media_id)
        try:
            if not S_ISDIR(path.parent.lstat().st_mode):  # a symbolic link may point anywhere
                return None
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            log.warning("media_read_failed", error=error.strerror or str(error))
            raise StoreUnavailable("The gateway cannot read its media at the moment", retry_after_s=5) from error
        if not S_ISREG(status.st_mode):
            return None
        return Media(media_id, media_type, status.st_size, status.st_mtime, path)

    async def remove(self, media_id: str) -> bool:
        media = await self.find(media_id)
        if media is None:
            return False
        with convert_disk_errors():
            await asyncio.to_thread(media.path.unlink, missing_ok=True)
        return True

    async def sweep(self, *, before_s: float, max_bytes: int) -> CleanupResult:
        """Delete files stored before ``before_s``, then the oldest until at most ``max_bytes`` remain.

        Return how much was deleted and how much is left. Drafts that a crash has left are deleted, too.
        """
        async with self._sweep_lock:
            return await self._sweep(before_s, max_bytes)

    async def _sweep(self, before_s: float, max_bytes: int) -> CleanupResult:
        cleanup = _FileCleanup()
        shards = await asyncio.to_thread(cleanup.sweep_drafts, self._folder, self._clock() - STALE_DRAFT_S)
        for shard in shards:
            await asyncio.to_thread(cleanup.sweep_old, shard, before_s)
        if cleanup.left_bytes > max_bytes:
            oldest_files = OldestFiles(cleanup.left_bytes - max_bytes)
            for shard in shards:
                await asyncio.to_thread(cleanup.collect, shard, oldest_files)
            files_to_delete = oldest_files.list_surplus()
            for start in range(0, len(files_to_delete), FILES_PER_BATCH):
                await asyncio.to_thread(cleanup.remove_all, files_to_delete[start : start + FILES_PER_BATCH])
        if cleanup.error:
            log.warning("media_sweep_failed", error=cleanup.error)
        return CleanupResult(cleanup.files, cleanup.freed_bytes, cleanup.left_bytes)


class OldestFiles:
    """Collects the oldest of the files that are added: no more than are needed for ``excess_bytes`` together."""

    def __init__(self, excess_bytes: int) -> None:
        self._excess_bytes = excess_bytes
        self._bytes = 0
        self._heap: list[StoredFile] = []

    def add(self, stored_file: StoredFile) -> None:
        stored_s, size, path = stored_file
        heapq.heappush(self._heap, (-stored_s, size, path))
        self._bytes += size
        while self._heap and self._bytes - self._heap[0][1] >= self._excess_bytes:  # the remaining files suffice
            self._bytes -= heapq.heappop(self._heap)[1]

    def list_surplus(self) -> list[StoredFile]:
        return sorted((-negative_s, size, path) for negative_s, size, path in self._heap)


class _FileCleanup:
    """One sweep and its totals."""

    def __init__(self) -> None:
        self.files = self.freed_bytes = self.left_bytes = 0
        self.error = ""

    def sweep_drafts(self, folder: Path, before_s: float) -> list[Path]:
        shards = []
        for entry in self._list(folder):
            if _SHARD.fullmatch(entry.name):
                shards.append(folder / entry.name)
            elif (
                entry.name.startswith(DRAFT) and (stored_file := self._read_entry(entry)) and stored_file[0] < before_s
            ):
                self._remove(stored_file)
        return shards

    def sweep_old(self, shard: Path, before_s: float) -> None:
        """Delete files that were stored before ``before_s``, and sum the sizes of the remaining ones."""
        for stored_file in self._list_media(shard):
            if stored_file[0] >= before_s or not self._remove(stored_file):
                self.left_bytes += stored_file[1]

    def collect(self, shard: Path, oldest_files: OldestFiles) -> None:
        for stored_file in self._list_media(shard):
            oldest_files.add(stored_file)

    def remove_all(self, files_to_delete: list[StoredFile]) -> None:
        for stored_file in files_to_delete:
            if self._remove(stored_file):
                self.left_bytes -= stored_file[1]

    def _list_media(self, shard: Path) -> Iterator[StoredFile]:
        for entry in self._list(shard):
            if find_media_type(entry.name) and (stored_file := self._read_entry(entry)):
                yield stored_file

    def _list(self, folder: Path) -> Iterator["os.DirEntry[str]"]:
        try:
            with os.scandir(folder) as entries:
                yield from entries
        except FileNotFoundError:
            return
        except OSError as error:
            self._record_error(error)

    def _read_entry(self, entry: "os.DirEntry[str]") -> StoredFile | None:
        """Return the entry's time, size and path; None if it is deleted, unreadable or not a regular file."""
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._record_error(error)
            return None
        return (status.st_mtime, status.st_size, entry.path) if S_ISREG(status.st_mode) else None

    def _remove(self, stored_file: StoredFile) -> bool:
        """Delete and count the file; return whether it no longer exists. One that was already gone is not counted."""
        try:
            os.unlink(stored_file[2])  # noqa: PTH108 - the path is a string, and there may be many
        except FileNotFoundError:
            return True
        except OSError as error:
            self._record_error(error)
            return False
        self.files += 1
        self.freed_bytes += stored_file[1]
        return True

    def _record_error(self, error: OSError) -> None:
        self.error = self.error or error.strerror or str(error)
