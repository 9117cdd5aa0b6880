"""Stores uploads until they are forwarded: small ones in memory, the rest in files without a name.

A nameless file (``O_TMPFILE``, or one that is unlinked immediately) disappears with its last descriptor, however the
process ends. Nothing here touches the disk on the event loop.
"""

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

from gateway.domain.upload import SpooledData
from gateway.errors import Overloaded, RateLimited, StoreUnavailable
from gateway.frozen import frozen

MEMORY_BYTES = 64 * 1024
"""Bytes of a file that stay in memory; a larger file moves to the disk completely."""
MAX_UPLOADS = 32
"""Uploads of one account that may arrive at the same time; further ones wait."""
MIN_SHARES = 16
"""Every account may hold a sixteenth of the spool, as long as there is any room."""
FULL_RETRY_S = 5
DISK_RETRY_S = 5
_PREFIX = "upload-"
_CLOSED_ERROR = "The upload has been closed"


class UploadSpool:
    """Creates files and limits the bytes that all open files hold together.

    ``folder`` is the spool's own folder, created (0700) when it is first needed. ``limit_bytes`` is the limit of all
    open files together, in memory and on the disk.
    """

    def __init__(self, folder: Path, *, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._held_bytes = 0
        self._shares: WeakValueDictionary[int, SpoolQuota] = WeakValueDictionary()
        self._prepare_lock = threading.Lock()
        self._is_swept = False

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def find_share(self, account_id: int) -> "SpoolQuota":
        """Return the quota of an account, which exists as long as it is referenced."""
        share = self._shares.get(account_id)
        if share is None:
            share = self._shares[account_id] = SpoolQuota(self)
        return share

    def acquire(self, byte_count: int, share_bytes: int) -> None:
        """Reserve bytes for an account that holds ``share_bytes``. Raises ``Overloaded`` or ``RateLimited``.

        An account may hold as many bytes as it leaves free, or a sixteenth of the spool if that is more. So a single
        account gets half of the spool, and a second one still finds room.
        """
        free_bytes = self._limit - self._held_bytes - byte_count
        if free_bytes < 0:
            raise Overloaded("Too many uploads are under way at the moment", retry_after_s=FULL_RETRY_S)
        if share_bytes + byte_count > max(free_bytes, self._limit // MIN_SHARES):
            raise RateLimited(
                "The account's uploads have reached their size limit: try again later", retry_after_s=FULL_RETRY_S
            )
        self._held_bytes += byte_count

    def release(self, byte_count: int) -> None:
        self._held_bytes -= byte_count

    def open_nameless(self) -> int:
        with self._prepare_lock:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_swept:
                self._sweep()
                self._is_swept = True
            with tempfile.TemporaryFile(dir=self._folder, prefix=_PREFIX, buffering=0) as file:
                return os.dup(file.fileno())

    def _sweep(self) -> None:
        # Without O_TMPFILE a temporary file has a name for an instant. If the process is killed then, the file stays.
        for path in self._folder.glob(f"{_PREFIX}*"):
            path.unlink(missing_ok=True)


class SpoolQuota:
    """One account's use of a spool."""

    def __init__(self, spool: UploadSpool) -> None:
        self._spool = spool
        self._held_bytes = 0
        self._upload_slots = asyncio.Semaphore(MAX_UPLOADS)

    def open(self) -> "SpooledFile":
        return SpooledFile(self)

    @asynccontextmanager
    async def hold_slot(self, wait_s: float) -> AsyncIterator[None]:
        """Hold a slot for an upload until the block ends. Raises ``RateLimited`` if none is free within ``wait_s``."""
        try:
            async with asyncio.timeout(wait_s):
                await self._upload_slots.acquire()
        except TimeoutError:
            raise RateLimited(
                f"{MAX_UPLOADS} uploads of the account are on their way in already", retry_after_s=FULL_RETRY_S
            ) from None
        try:
            yield
        finally:
            self._upload_slots.release()

    def acquire(self, byte_count: int) -> None:
        self._spool.acquire(byte_count, self._held_bytes)
        self._held_bytes += byte_count

    def release(self, byte_count: int) -> None:
        self._spool.release(byte_count)
        self._held_bytes -= byte_count

    def open_nameless(self) -> int:
        return self._spool.open_nameless()


class SpooledFile:
    """A ``domain.upload.SpooledData`` that one task writes from start to end, and any number of tasks read."""

    __slots__ = ("_disk", "_is_closed", "_memory", "_share", "_size")

    def __init__(self, share: SpoolQuota) -> None:
        self._share = share
        self._memory = bytearray()
        self._disk: _Disk | None = None
        self._size = 0
        self._is_closed = False

    @property
    def size(self) -> int:
        return self._size

    async def write(self, data: bytes) -> None:
        """Append ``data``.

        Raises:
            Overloaded: the spool is full. The file must be closed after this and the next two errors.
            RateLimited: the account holds too much.
            StoreUnavailable: the disk cannot store the data.
            ValueError: the file is closed.
        """
        self._check_open()
        offset = self._size
        self._share.acquire(len(data))
        self._size += len(data)
        if self._disk is None and self._size <= MEMORY_BYTES:
            self._memory += data
            return
        if self._disk is None:
            self._disk = _Disk(self._share)
            offset, data, self._memory = 0, bytes(self._memory) + data, bytearray()
        try:
            await asyncio.to_thread(self._disk.write, data, offset)
        except OSError as error:
            raise StoreUnavailable(
                "There is no room for the upload at the moment", retry_after_s=DISK_RETRY_S
            ) from error

    async def read(self, offset: int, size: int) -> bytes:
        """Return at most ``size`` bytes from ``offset`` on; fewer only at the end.

        Raises ``StoreUnavailable`` if the disk cannot be read, ``ValueError`` after ``close``.
        """
        self._check_open()
        if self._disk is None:
            return bytes(self._memory[offset : offset + size])
        try:
            return await asyncio.to_thread(self._disk.read, offset, size)
        except OSError as error:
            raise StoreUnavailable("The upload cannot be read at the moment", retry_after_s=DISK_RETRY_S) from error

    def close(self) -> None:
        """Release everything. An operation in a thread finishes first; later ones fail."""
        if self._is_closed:
            return
        self._is_closed = True
        self._share.release(self._size)
        self._memory = bytearray()
        if self._disk is not None:
            self._disk.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError(_CLOSED_ERROR)


@frozen(eq=False)
class SpooledSlice:
    """A ``domain.upload.SpooledData``: one of several files that are concatenated in a spooled file."""

    whole: SpooledData
    start: int
    size: int

    async def read(self, offset: int, size: int) -> bytes:
        """Return at most ``size`` bytes from ``offset`` on; fewer only at the end."""
        return await self.whole.read(self.start + offset, max(min(size, self.size - offset), 0))


class _Disk:
    """A nameless file used by several threads. The first write creates it.

    After ``close``, the last thread that uses the file closes it. A read whose task is cancelled continues in its
    thread. If the descriptor were closed meanwhile, another file could reuse its number.
    """

    __slots__ = ("_descriptor", "_is_closed", "_lock", "_share", "_user_count")

    def __init__(self, share: SpoolQuota) -> None:
        self._share = share
        self._descriptor: int | None = None
        self._lock = threading.Lock()
        self._user_count = 0
        self._is_closed = False

    def write(self, data: bytes, offset: int) -> None:
        unwritten = memoryview(data)
        with self._use() as descriptor:
            while unwritten:
                count = os.pwrite(descriptor, unwritten, offset)
                unwritten, offset = unwritten[count:], offset + count

    def read(self, offset: int, size: int) -> bytes:
        """Return at most ``size`` bytes, fewer only at the end. Raises ``OSError``, ``ValueError``."""
        with self._use() as descriptor:
            data = os.pread(descriptor, size, offset)
            while len(data) < size and (chunk := os.pread(descriptor, size - len(data), offset + len(data))):
                data += chunk
            return data

    def close(self) -> None:
        """Close the file as soon as no thread uses it."""
        with self._lock:
            is_idle = not self._is_closed and not self._user_count
            self._is_closed = True
        if is_idle:
            _close_aside(self._descriptor)

    @contextmanager
    def _use(self) -> Iterator[int]:
        self._enter()
        try:
            if self._descriptor is None:
                self._descriptor = self._share.open_nameless()
            yield self._descriptor
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            if self._is_closed:
                raise ValueError(_CLOSED_ERROR)
            self._user_count += 1

    def _leave(self) -> None:
        with self._lock:
            self._user_count -= 1
            is_last = self._is_closed and not self._user_count
        if is_last:
            _close(self._descriptor)


def _close_aside(descriptor: int | None) -> None:
    """Close the file in a thread: closing the last descriptor of a large file frees its blocks, which takes long."""
    try:
        asyncio.get_running_loop().run_in_executor(None, _close, descriptor)
    except RuntimeError:  # the event loop is closed, or no thread can be started
        _close(descriptor)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        with suppress(OSError):
            os.close(descriptor)
