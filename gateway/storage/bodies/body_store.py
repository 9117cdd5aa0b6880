"""Keeps the bodies of requests: takes them from the event loop, writes them in a thread, and shows and deletes them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, Unpack

import attrs
import structlog

from gateway.domain.keep_rule import BodyBounds
from gateway.domain.kept_body import BodyFilter, BodyOwner, BodyPart, DeletedBodies, LossReason, StoredBodies
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.storage.bodies.data_keys import DataKeys
from gateway.storage.bodies.framing import FrameDamaged
from gateway.storage.bodies.index import BodyEntry, BodyIndex
from gateway.storage.bodies.packing import PackDamaged, pack_parts, unpack_parts
from gateway.storage.bodies.segments import MAX_SEGMENT_BYTES, Location, Segments
from gateway.storage.encryption import DecryptionFailed, SecretBox

MAX_WAITING_BYTES = 64 * 1024 * 1024
MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Bodies that are written before their rows are stored in one commit."""
MAX_BATCH_REQUESTS = 200
MAX_LOSS_ROWS = 1_000
"""Requests of which nothing is kept and whose rows wait to be stored. Further ones are only counted."""
WRITE_DELAY_S = 1.0
"""How long bodies wait for others, so that few commits store the rows of many. A batch that is full waits no longer."""
SWEEP_INTERVAL_S = 60.0
CLOSE_TIMEOUT_S = 5.0
RETRY_S = 5.0
"""The pause after a failed write; what comes meanwhile waits in memory."""
KEYS_FOLDER = "keys"

Args = TypeVarTuple("Args")
T = TypeVar("T")

log = structlog.stdlib.get_logger(__name__)


class BodiesUnreadable(Exception):
    """Kept bodies cannot be read; the message says why."""


@attrs.define(eq=False)
class WaitingMemory:
    """The memory of bodies that wait to be written, and of bodies of running requests, in bytes."""

    limit: int = MAX_WAITING_BYTES
    used: int = 0


@frozen
class _Waiting:
    """The bodies of a request that wait to be written. ``build`` returns them; it runs in the writer's thread."""

    owner: BodyOwner
    size: int
    build: Callable[[], Sequence[BodyPart]]


class BodyStore:
    """The kept bodies of this node.

    A single thread does all work on files, in order. A lock keeps a deletion from meeting frames whose rows are not
    stored yet.

    Args:
        folder: has the segments and the folder of the data keys.
        secret_box: has the master key.
        find_bounds: returns the bounds in force.
        clock: returns Unix seconds, for ages.

    Attributes:
        memory: counts what waits. Collectors of the bodies of running requests add these.
        problem: why bodies cannot be written at the moment; empty if they can.
        open_requests: the requests whose bodies are being collected.
    """

    def __init__(
        self,
        folder: Path,
        index: BodyIndex,
        secret_box: SecretBox,
        *,
        find_bounds: Callable[[], BodyBounds],
        clock: Callable[[], float],
        max_segment_bytes: int = MAX_SEGMENT_BYTES,
    ) -> None:
        self._index = index
        self._segments = Segments(folder, time.monotonic, max_segment_bytes)
        self._data_keys = DataKeys(folder / KEYS_FOLDER, secret_box)
        self._find_bounds = find_bounds
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "bodies")
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._batch_is_full = asyncio.Event()
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._unstored: list[BodyEntry] = []
        self._is_open = self._is_closed = False
        self._applied_keep_ms: float = float("inf")
        self.memory = WaitingMemory()
        self.problem = ""
        self.open_requests: set[str] = set()

    def keep(self, owner: BodyOwner, size: int, build: Callable[[], Sequence[BodyPart]]) -> None:
        """Have the bodies that ``build`` returns written soon. Their ``size`` is counted in ``memory`` already."""
        self._queue.append(_Waiting(owner, size, build))
        self._queued_bytes += size
        self._wake.set()
        if self._queued_bytes > MAX_BATCH_BYTES:
            self._batch_is_full.set()

    def prepare(self, work: Callable[[], T]) -> "asyncio.Future[T] | None":
        """Run ``work`` in the thread, before anything that is given to ``keep`` later. None if the store is closed."""
        return None if self._is_closed else asyncio.get_running_loop().run_in_executor(self._thread, work)

    def note_loss(self, owner: BodyOwner, loss: LossReason) -> None:
        """Note that nothing of a request is kept."""
        if len(self._unstored) < MAX_LOSS_ROWS:
            self._unstored.append(self._build_entry(owner, None, loss))
            self._wake.set()

    async def run(self) -> None:
        """Write what is given to ``keep``, and remove what has expired, until the store is closed."""
        swept_at = float("-inf")
        while not self._is_closed:
            try:
                await self.write_waiting()
                if time.monotonic() - swept_at >= SWEEP_INTERVAL_S:
                    await self.sweep()
                    swept_at = time.monotonic()
            except StoreUnavailable:  # which has an alert of its own
                await asyncio.sleep(RETRY_S)
                continue
            except OSError as error:
                self._note_problem(str(error))
                await asyncio.sleep(RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_INTERVAL_S):
                    await self._wake.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(WRITE_DELAY_S):
                    await self._batch_is_full.wait()

    async def write_waiting(self) -> None:
        """Write everything that waits, and store its rows. Raises ``StoreUnavailable``, ``OSError``."""
        await _run_to_end(self._write_waiting())

    async def _write_waiting(self) -> None:
        async with self._lock:
            if self._is_closed:
                return
            await self._open()
            self._wake.clear()
            self._batch_is_full.clear()
            await self._store_rows()
            count = len(self._queue)  # what comes meanwhile waits for others, too
            while count > 0:
                batch = self._take_batch()
                count -= len(batch)
                entries, size = await self._in_thread(self._write_batch, batch)
                self._unstored += entries
                self.memory.used -= size
                await self._store_rows()

    async def read(self, request_id: str) -> tuple[BodyEntry, list[BodyPart]] | None:
        """Return the row of a request and its bodies, none if nothing could be kept; None if it has no row.

        Raises ``BodiesUnreadable``: another node has them, they are damaged, or they are being deleted.
        """
        await self.write_waiting()
        entry = await self._index.find(request_id, self._now_ms())
        if entry is None or entry.location is None:
            return None if entry is None else (entry, [])
        if entry.node != self._index.node:
            raise BodiesUnreadable(f"the node {entry.node} has these bodies: ask that node")
        try:
            parts = await self._in_thread(self._read, entry.owner, entry.location)
        except (FrameDamaged, PackDamaged, DecryptionFailed, OSError) as error:
            raise BodiesUnreadable(str(error)) from None
        return entry, parts

    async def list_kept(self, request_ids: Collection[str]) -> set[str]:
        """Return those of the requests whose bodies can be read on this node."""
        await self.write_waiting()
        return await self._index.list_kept(request_ids, self._now_ms()) if request_ids else set()

    async def delete(self, body_filter: BodyFilter) -> DeletedBodies:
        """Delete bodies for good: when this returns, nothing of them can be read on this node, with any key.

        Raises ``StoreUnavailable``, ``OSError``; then the deletion goes on by itself later.
        """
        return await _run_to_end(self._delete(body_filter))

    async def _delete(self, body_filter: BodyFilter) -> DeletedBodies:
        await self._write_waiting()
        async with self._lock:
            account_id = body_filter.account_id
            requests = await self._index.mark_deleted(body_filter)  # first: what fails or ends here goes on in a sweep
            if account_id is not None and body_filter == BodyFilter(account_id=account_id):
                await self._in_thread(self._data_keys.destroy, account_id)
            await self._erase_deleted()
            await self._remove_unused()
            return DeletedBodies(requests, await self._index.count_pending())

    async def sweep(self) -> None:
        """Remove expired bodies, those deleted on another node or with their account, and the oldest beyond the bound.

        Raises ``StoreUnavailable``, ``OSError``.
        """
        await _run_to_end(self._sweep())

    async def _sweep(self) -> None:
        async with self._lock:
            if self._is_closed:
                return
            await self._open()
            await self._store_rows()  # a segment whose rows are not stored would look unused
            await self._index.mark_ownerless_deleted()  # also those of requests that ran when their account was deleted
            await self._erase_deleted()
            removed = await self._remove_expired()
            await self._remove_unused()
            max_bytes = self._find_bounds().max_bytes
            while self._segments.total_bytes > max_bytes:
                removed += await self._index.remove_segments(self._segments.list_numbers()[:1])
                await self._remove_unused()
        if removed:
            log.info("bodies_swept", rows=removed)

    async def _remove_expired(self) -> int:
        keep_ms = self._find_bounds().keep_ms
        if keep_ms < self._applied_keep_ms:
            await self._index.shorten(keep_ms)
        self._applied_keep_ms = keep_ms
        return await self._index.remove_expired(self._now_ms())

    async def describe(self, account_id: int | None = None) -> StoredBodies:
        """Return how much is kept. With ``account_id`` only its requests are counted."""
        async with self._lock:
            await self._open()
        kept, lost, oldest_ms = await self._index.count(self._now_ms(), account_id)
        return StoredBodies(kept, lost, self._segments.total_bytes, oldest_ms, self.problem, self.memory.used)

    async def close(self) -> None:
        """Write what waits, for some seconds at most, and stop. What is left then is lost."""
        with suppress(StoreUnavailable, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.shield(asyncio.ensure_future(self.write_waiting()))
        self._queue.clear()
        async with self._lock:
            self._is_closed = True
            self._thread.shutdown()
            self._segments.close()
        self._wake.set()
        self._batch_is_full.set()

    async def _open(self) -> None:
        if self._is_open:
            return
        ends = await self._index.find_ends()
        if self._index.node and not ends and await self._in_thread(self._segments.exist):
            await self._index.adopt()
            ends = await self._index.find_ends()
        missing = await self._in_thread(self._segments.open, ends)
        if missing:
            rows = await self._index.remove_segments(missing)
            log.warning("bodies_missing", rows=rows, reason="segments of kept bodies do not exist any more")
        self._is_open = True

    def _take_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._queue and size < MAX_BATCH_BYTES and len(batch) < MAX_BATCH_REQUESTS:
            batch.append(self._queue.popleft())
            size += batch[-1].size
        self._queued_bytes -= size
        return batch

    def _write_batch(self, batch: Sequence[_Waiting]) -> tuple[list[BodyEntry], int]:
        """Write a batch, in the thread; return its rows and its size. What cannot be written is lost."""
        entries: list[BodyEntry] = []
        problem = ""
        for waiting in batch:
            owner, location = waiting.owner, None
            loss: LossReason | None = None
            try:
                content = self._seal(owner, waiting.build())
            except (OSError, DecryptionFailed) as error:  # of the data key
                problem, loss = str(error), "disk"
            except Exception:
                log.exception("bodies_lost", request_id=owner.request_id)
                loss = "fault"
            else:
                try:
                    location = self._segments.append(content)
                except OSError as error:
                    problem, loss = str(error), "disk"
            entries.append(self._build_entry(owner, location, loss))
        self._note_problem(problem)
        return entries, sum(waiting.size for waiting in batch)

    def _seal(self, owner: BodyOwner, parts: Sequence[BodyPart]) -> bytes:
        return self._data_keys.open_box(owner.account_id).seal(pack_parts(parts), context=owner.request_id)

    def _read(self, owner: BodyOwner, location: Location) -> list[BodyPart]:
        box = self._data_keys.find_box(owner.account_id)
        if box is None:
            raise FrameDamaged("the data key of this account was destroyed")
        return unpack_parts(box.open(self._segments.read(location), context=owner.request_id))

    def _build_entry(self, owner: BodyOwner, location: Location | None, loss: LossReason | None) -> BodyEntry:
        return BodyEntry(owner, self._now_ms() + self._find_bounds().keep_ms, self._index.node, location, loss)

    async def _store_rows(self) -> None:
        if self._unstored:
            entries = self._unstored.copy()
            await self._index.add(entries)
            del self._unstored[: len(entries)]  # others may have been added meanwhile

    async def _erase_deleted(self) -> None:
        """Erase the frames of deleted bodies, then their rows: after a crash between the two the rows are still here.

        An account without any kept bodies needs no data key.
        """
        while deleted := await self._index.list_deleted():
            await self._in_thread(self._segments.erase, [place for _, place in deleted if place is not None])
            await self._index.remove(request_id for request_id, _ in deleted)
        await self._in_thread(self._data_keys.remove_dead)
        used_accounts = await self._index.list_accounts()
        for account_id in await self._in_thread(self._data_keys.list_accounts):
            if account_id not in used_accounts:
                await self._in_thread(self._data_keys.destroy, account_id)

    async def _remove_unused(self) -> None:
        await self._in_thread(self._segments.remove_unused, await self._index.list_segments())

    def _note_problem(self, problem: str) -> None:
        """Note why bodies cannot be written, or that they can. Each is logged once."""
        if problem and not self.problem:
            log.error("bodies_not_written", error=problem)
        elif self.problem and not problem:
            log.info("bodies_written_again")
        self.problem = problem

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    async def _in_thread(self, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Run ``work`` in the store's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


async def _run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end even if the caller is cancelled: a frame must get its row."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
