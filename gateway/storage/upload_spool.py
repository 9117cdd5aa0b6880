"""Where uploads wait until they have been sent on: a little in memory, the rest in files without a name.

A nameless file (``O_TMPFILE``, or one whose name is taken away at once) is gone with the last descriptor on it, however
the process ends. Nothing here touches the disk on the event loop.
"""

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

import attrs

from gateway.errors import Overloaded, RateLimited, StoreUnavailable

MEMORY_BYTES = 64 * 1024
"""What of a file stays in memory; one that grows beyond it moves to the disk whole."""
PLACES = 32
"""Uploads of one account that may be on their way in at once; the next one waits for its turn."""
LEAST_SHARE = 16
"""The sixteenth part of a spool is any account's, as long as there is room at all."""
FULL_RETRY_S = 5
DISK_RETRY_S = 5
_PREFIX = "upload-"
_CLOSED = "The upload has been closed"


class UploadSpool:
    """Hands out files, and bounds what all of them that are open hold together.

    Args:
        folder: where they are; this spool's own, made (0700) when it is first needed.
        limit_bytes: of all open files together, in memory and on the disk.
    """

    def __init__(self, folder: Path, *, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._held = 0
        self._shares: WeakValueDictionary[int, SpoolQuota] = WeakValueDictionary()
        self._prepared = threading.Lock()
        self._swept = False

    @property
    def held_bytes(self) -> int:
        """What the open files hold."""
        return self._held

    def find_share(self, account_id: int) -> "SpoolQuota":
        """What an account has of the spool; there while anybody holds on to it, and nothing is held without one."""
        share = self._shares.get(account_id)
        if share is None:
            share = self._shares[account_id] = SpoolQuota(self)
        return share

    def take(self, count: int, held: int) -> None:
        """Room for so many bytes more of somebody who holds ``held``. Raises ``Overloaded``, ``RateLimited``.

        Nobody may hold more than is left to the others: one alone has half of the spool, and a second one finds room.
        """
        free = self._limit - self._held - count
        if free < 0:
            raise Overloaded("Too many uploads are under way at the moment", retry_after_s=FULL_RETRY_S)
        if held + count > max(free, self._limit // LEAST_SHARE):
            raise RateLimited(
                "The account's uploads take up all the room that they may have at the moment",
                retry_after_s=FULL_RETRY_S,
            )
        self._held += count

    def give_back(self, count: int) -> None:
        """So many bytes are gone."""
        self._held -= count

    def open_nameless(self) -> int:
        """The descriptor of a new nameless file. Blocks. Raises ``OSError``."""
        with self._prepared:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._swept:
                self._sweep()
                self._swept = True
            with tempfile.TemporaryFile(dir=self._folder, prefix=_PREFIX, buffering=0) as file:
                return os.dup(file.fileno())

    def _sweep(self) -> None:
        # Only a file system without O_TMPFILE gives a file a name, for an instant in which the process may be killed.
        for path in self._folder.glob(f"{_PREFIX}*"):
            path.unlink(missing_ok=True)


class SpoolQuota:
    """What the uploads of one account have of a spool."""

    def __init__(self, spool: UploadSpool) -> None:
        self._spool = spool
        self._held = 0
        self._places = asyncio.Semaphore(PLACES)

    def open(self) -> "SpooledFile":
        """A new, empty file. Close it."""
        return SpooledFile(self)

    @asynccontextmanager
    async def arrive(self, wait_s: float) -> AsyncIterator[None]:
        """A place among the uploads that are on their way in. Raises ``RateLimited`` where none comes free in time."""
        try:
            async with asyncio.timeout(wait_s):
                await self._places.acquire()
        except TimeoutError:
            raise RateLimited(
                f"{PLACES} uploads of the account are on their way in already", retry_after_s=FULL_RETRY_S
            ) from None
        try:
            yield
        finally:
            self._places.release()

    def take(self, count: int) -> None:
        """Room for so many bytes more. Raises ``Overloaded``, ``RateLimited``."""
        self._spool.take(count, self._held)
        self._held += count

    def give_back(self, count: int) -> None:
        """So many bytes are gone."""
        self._spool.give_back(count)
        self._held -= count

    def open_nameless(self) -> int:
        """The descriptor of a new nameless file. Blocks. Raises ``OSError``."""
        return self._spool.open_nameless()


class SpooledFile:
    """``domain.upload.Spooled``: written by one task from its beginning to its end, read by any number at once."""

    __slots__ = ("_closed", "_disk", "_memory", "_share", "_size")

    def __init__(self, share: SpoolQuota) -> None:
        self._share = share
        self._memory = bytearray()
        self._disk: _Disk | None = None
        self._size = 0
        self._closed = False

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return self._size

    async def write(self, data: bytes) -> None:
        """Put ``data`` at the end.

        Raises ``Overloaded``, ``RateLimited``, ``StoreUnavailable``, after each of which the file is to be closed;
        ``ValueError`` where it is.
        """
        self._check_open()
        at = self._size
        self._share.take(len(data))
        self._size += len(data)
        if self._disk is None and self._size <= MEMORY_BYTES:
            self._memory += data
            return
        if self._disk is None:
            self._disk = _Disk(self._share)
            at, data, self._memory = 0, bytes(self._memory) + data, bytearray()
        try:
            await asyncio.to_thread(self._disk.write, data, at)
        except OSError as error:
            raise StoreUnavailable(
                "There is no room for the upload at the moment", retry_after_s=DISK_RETRY_S
            ) from error

    async def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset`` on; fewer only at the end.

        Raises ``StoreUnavailable``; ``ValueError`` where the file is closed.
        """
        self._check_open()
        if self._disk is None:
            return bytes(self._memory[offset : offset + size])
        try:
            return await asyncio.to_thread(self._disk.read, offset, size)
        except OSError as error:
            raise StoreUnavailable("The upload cannot be read at the moment", retry_after_s=DISK_RETRY_S) from error

    def close(self) -> None:
        """Give everything back. What is under way in a thread comes to its end first; what comes later fails."""
        if self._closed:
            return
        self._closed = True
        self._share.give_back(self._size)
        self._memory = bytearray()
        if self._disk is not None:
            self._disk.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(_CLOSED)


@attrs.frozen(eq=False)
class SpooledSlice:
    """``domain.upload.Spooled``: one of several files that lie behind each other in a spooled one."""

    whole: SpooledFile
    start: int
    size: int

    async def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset`` on; fewer only at the end. Raises what reading the whole raises."""
        return await self.whole.read(self.start + offset, max(min(size, self.size - offset), 0))


class _Disk:
    """A nameless file that several threads use; whoever is the last lets go of it. Made by the first write.

    A read whose task is cancelled goes on in its thread: were the descriptor closed under it, its number might by then
    be another file's.
    """

    __slots__ = ("_closed", "_descriptor", "_lock", "_share", "_users")

    def __init__(self, share: SpoolQuota) -> None:
        self._share = share
        self._descriptor: int | None = None
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    def write(self, data: bytes, offset: int) -> None:
        """Write all of ``data`` at ``offset``. Raises ``OSError``, ``ValueError`` where it is closed."""
        left = memoryview(data)
        with self._use() as descriptor:
            while left:
                written = os.pwrite(descriptor, left, offset)
                left, offset = left[written:], offset + written

    def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes, fewer only at the end. Raises ``OSError``, ``ValueError`` where it is closed."""
        with self._use() as descriptor:
            data = os.pread(descriptor, size, offset)
            while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
                data += more
            return data

    def close(self) -> None:
        """Let go of it as soon as nobody uses it."""
        with self._lock:
            idle = not self._closed and not self._users
            self._closed = True
        if idle:
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
            if self._closed:
                raise ValueError(_CLOSED)
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._closed and not self._users
        if last:
            _close(self._descriptor)


def _close_aside(descriptor: int | None) -> None:
    """Close it in a thread: with the last descriptor of a large file go the file's blocks, and that takes a while."""
    try:
        asyncio.get_running_loop().run_in_executor(None, _close, descriptor)
    except RuntimeError:  # no loop any more, or no threads
        _close(descriptor)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        with suppress(OSError):
            os.close(descriptor)
