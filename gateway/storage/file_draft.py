"""A file that arrives in pieces or at once: written under a draft name, flushed to the disk, then renamed."""

import asyncio
import errno
import io
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from gateway.domain.media import EXTENSIONS, SNIFF_BYTES, Media, UnknownMedia, sniff_media
from gateway.errors import StoreUnavailable
from gateway.storage.data_folder import sync_folder

DRAFT = "draft-"
_ID_BYTES = 16
_OWNER_ONLY_MODE = 0o600
OWNER_ONLY_FOLDER_MODE = 0o700

log = structlog.stdlib.get_logger(__name__)


class FileDraft:
    """A file that arrives in pieces, not listed before it is kept. ``check_room`` is called before every piece."""

    def __init__(self, folder: Path, check_room: Callable[[], None]) -> None:
        self._folder = folder
        self._check_room = check_room
        self._path = folder / f"{DRAFT}{secrets.token_hex(_ID_BYTES)}"
        self._lock = threading.Lock()
        self._file: io.FileIO | None = None
        self._has_ended = False
        self._head = b""

    async def write(self, piece: bytes) -> None:
        """Add a piece, unless the draft has ended. Raises ``StoreUnavailable``; then the whole draft is deleted."""
        try:
            self._check_room()
        except StoreUnavailable:
            self.discard()
            raise
        await asyncio.to_thread(self.write_now, piece)

    async def keep(self) -> Media:
        """Store the file durably under a new id, and return it.

        Raises ``UnknownMedia``, ``StoreUnavailable``; the file is then deleted. If the awaiting task is cancelled, the
        file may still be kept: no client has its id, and a sweep deletes it.
        """
        return await asyncio.to_thread(self.keep_now)

    def discard(self) -> None:
        """Delete the draft. Does nothing if it was kept or has failed. Waits for a running write."""
        with self._lock:
            self._remove(self._detach_file())

    def write_now(self, piece: bytes) -> None:
        with self._lock:
            if self._has_ended:
                return
            try:
                with convert_disk_errors():
                    self._append(piece)
            except StoreUnavailable:
                self._remove(self._detach_file())
                raise

    def keep_now(self) -> Media:
        with self._lock:
            file = self._detach_file()
        media_type = sniff_media(self._head)
        if file is None or media_type is None:
            self._remove(file)
            raise UnknownMedia("The gateway does not keep files of this type")
        return self._store(file, make_media_id(media_type), media_type)

    def keep_as(self, name: str, media_type: str) -> Media:
        """Store the file durably under ``name``, in the calling thread, and return it. If that fails, delete the draft.

        Raises ``StoreUnavailable``.
        """
        self.write_now(b"")  # creates the file even without data
        with self._lock:
            file = self._detach_file()
        if file is None:
            raise StoreUnavailable("The file was discarded while it was stored", retry_after_s=5)
        return self._store(file, name, media_type)

    def finish_draft(self) -> tuple[Path, int, bytes]:
        """Finish the draft in the calling thread; return path, size and first bytes. ``discard`` leaves the file then.

        Raises ``StoreUnavailable``; the draft is then deleted.
        """
        self.write_now(b"")  # creates the file even without data
        with self._lock:
            file = self._detach_file()
        if file is None:
            raise StoreUnavailable("The file was discarded while it was stored", retry_after_s=5)
        with convert_disk_errors(), file:
            return self._path, os.fstat(file.fileno()).st_size, self._head

    def _store(self, file: io.FileIO, media_id: str, media_type: str) -> Media:
        try:
            with convert_disk_errors():
                return self._publish(file, media_id, media_type)
        except StoreUnavailable:
            self._remove(file)
            raise

    def _append(self, piece: bytes) -> None:
        if self._file is None:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY_MODE)
            self._file = io.FileIO(descriptor, "w")
        if len(self._head) < SNIFF_BYTES:
            self._head += piece[: SNIFF_BYTES - len(self._head)]
        unwritten = memoryview(piece)
        while unwritten:
            unwritten = unwritten[self._file.write(unwritten) :]

    def _publish(self, file: io.FileIO, media_id: str, media_type: str) -> Media:
        os.fsync(file.fileno())
        status = os.fstat(file.fileno())
        file.close()
        path = find_path(self._folder, media_id)
        if not path.parent.is_dir():
            path.parent.mkdir(exist_ok=True, mode=OWNER_ONLY_FOLDER_MODE)
            _sync(self._folder)
        self._path.rename(path)
        try:
            _sync(path.parent)
        except OSError:
            path.unlink()
            raise
        return Media(media_id, media_type, status.st_size, status.st_mtime, path)

    def _detach_file(self) -> io.FileIO | None:
        file, self._file, self._has_ended = self._file, None, True
        return file

    def _remove(self, file: io.FileIO | None) -> None:
        if file is not None:
            with suppress(OSError):  # a sweep deletes it
                file.close()
            with suppress(OSError):
                self._path.unlink()


def make_media_id(media_type: str) -> str:
    """Return a new, random id of a media file."""
    return f"{secrets.token_hex(_ID_BYTES)}.{EXTENSIONS[media_type]}"


def find_path(folder: Path, name: str) -> Path:
    """Return the path of the file ``name`` in a folder of media or clients' files."""
    return folder / name[:2] / name


def _sync(folder: Path) -> None:
    """Flush the names of a folder's files to the disk. Some network file systems do so themselves, and refuse it."""
    try:
        sync_folder(folder)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise


@contextmanager
def convert_disk_errors() -> Iterator[None]:
    """Raise ``StoreUnavailable`` for an ``OSError`` of the disk."""
    try:
        yield
    except OSError as error:
        log.warning("media_write_failed", error=error.strerror or str(error))
        raise StoreUnavailable("The gateway cannot store media at the moment", retry_after_s=5) from error
