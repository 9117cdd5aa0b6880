"""Keeps the bodies of requests: takes them from the event loop, writes them in a thread, and shows and deletes them."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, Unpack

import structlog

from gateway.domain.audit_log import AuditRow
from gateway.domain.keep_rule import BodyBounds
from gateway.domain.kept_body import BodyFilter, BodyOwner, BodyPart, DeletedBodies, LossReason, StoredBodies
from gateway.errors import StoreUnavailable
from gateway.storage.bodies.account_deletions import AccountDeletions
from gateway.storage.bodies.data_keys import DataKeys
from gateway.storage.bodies.errors import BodiesOutOfReach, BodiesUnreadable
from gateway.storage.bodies.framing import FrameDamaged
from gateway.storage.bodies.index import MARKED_PER_STEP, BodyEntry, BodyIndex, find_key_account
from gateway.storage.bodies.packing import PackDamaged, pack_parts, unpack_parts
from gateway.storage.bodies.resealing import list_unreadable, reseal_frames
from gateway.storage.bodies.segments import MAX_SEGMENT_BYTES, Location, Segments
from gateway.storage.bodies.shared_bodies import SharedBodies
from gateway.storage.bodies.waiting import OpenRequest, WaitingBodies, WaitingMemory, WaitingQueue
from gateway.storage.encryption import DecryptionFailed, SecretBox

MAX_LOSS_ROWS = 1_000
"""Maximum number of waiting rows of requests of which nothing is kept. Further requests get no row."""
WRITE_DELAY_S = 1.0
"""How long bodies wait for others, so that few commits store the rows of many. A batch that is full waits no longer."""
SWEEP_INTERVAL_S = 60.0
CLOSE_TIMEOUT_S = 5.0
RETRY_S = 5.0
"""The pause after a failed write; what comes meanwhile waits in memory."""
MIN_MOVE_PAUSE_S = 0.05
KEYS_FOLDER = "keys"

BuildAudit = Callable[[Mapping[int, int]], AuditRow]
"""Returns the audit row of a deletion from the number of requests of each account."""
Args = TypeVarTuple("Args")
T = TypeVar("T")

log = structlog.stdlib.get_logger(__name__)


class BodyStore:
    """The kept bodies of this node.

    A single thread does all work on files, in order. Because of a lock, no deletion runs while frames have no rows yet.
    Unless they say otherwise, methods raise ``OSError``, and ``DecryptionFailed`` for another master key.

    Args:
        folder: has the segments and the folder of the data keys.
        secret_box: has the master key.
        find_bounds: returns the bounds in force.
        shared: the shared store that finished segments are moved to; None: they stay in ``folder``.
        former_node: the node that this gateway was before, or an empty text if it was a single gateway; None: neither.

    Attributes:
        shared: the shared store; None without one.
        memory: counts the bytes that wait to be written. Collectors of the bodies of running requests add theirs.
        open_requests: the collectors of the bodies of requests that have not ended, by the id of the request. A settled
            request is among them until its client has read everything.
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
        shared: SharedBodies | None = None,
        former_node: str | None = None,
    ) -> None:
        self._index = index
        self._segments = Segments(folder, time.monotonic, max_segment_bytes)
        self.shared = shared
        self._former_node = former_node
        self._data_keys = DataKeys(folder / KEYS_FOLDER, secret_box) if shared is None else shared.keys
        self._find_bounds = find_bounds
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "bodies")
        self._lock, self._move_lock = asyncio.Lock(), asyncio.Lock()
        self._wake = asyncio.Event()
        self._batch_is_full = asyncio.Event()
        self._queue = WaitingQueue()
        self._unstored: list[BodyEntry] = []
        self._is_open = self._is_closed = self._has_checked_keys = False
        self._deletions = AccountDeletions(index, shares_keys=shared is not None)
        self._applied_keep_ms: float = float("inf")
        self._disk_problem = ""
        self.memory = WaitingMemory()
        self.open_requests: dict[str, OpenRequest] = {}

    @property
    def problem(self) -> str:
        """Why bodies cannot be written or moved at the moment; empty if they can."""
        return self._disk_problem or ("" if self.shared is None else self.shared.problem)

    def keep(
        self, owner: BodyOwner, size: int, build: Callable[[], Sequence[BodyPart]], *, is_held: bool = False
    ) -> None:
        """Queue the bodies that ``build`` returns for the writer. Their ``size`` is counted in ``memory`` already.

        ``is_held``: the bodies stay hidden until the log has a row of the request. Then they are shown if the request
        has failed, and destroyed if not.
        """
        self._queue.add(WaitingBodies(owner, size, build, is_held))
        self._wake.set()
        if self._queue.has_full_batch:
            self._batch_is_full.set()

    def prepare(self, work: Callable[[], T]) -> "asyncio.Future[T] | None":
        """Start ``work`` in the thread, ahead of later calls of ``keep``; return its future, None if closed."""
        return None if self._is_closed else asyncio.get_running_loop().run_in_executor(self._thread, work)

    def note_loss(self, owner: BodyOwner, loss: LossReason) -> None:
        """Have a row stored that says why nothing of a request is kept, unless too many such rows wait."""
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
            except (OSError, DecryptionFailed) as error:
                self._note_problem(str(error))
                await asyncio.sleep(RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_INTERVAL_S):
                    await self._wake.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(WRITE_DELAY_S):
                    await self._batch_is_full.wait()

    async def run_moves(self) -> None:
        """Move finished segments to the shared store, until this store is closed."""
        shared = self.shared
        while shared is not None and not self._is_closed:
            try:
                await _run_to_end(self._move_finished(shared))
            except (StoreUnavailable, OSError, DecryptionFailed) as error:
                shared.note_problem("move", str(error))
            else:
                shared.note_problem("move", "")
            await asyncio.sleep(min(max(shared.move_after_s, MIN_MOVE_PAUSE_S), RETRY_S))

    async def move_finished(self) -> None:
        """Move every finished segment to the shared store."""
        if self.shared is not None:
            await _run_to_end(self._move_finished(self.shared))

    async def _move_finished(self, shared: SharedBodies) -> None:
        async with self._move_lock:  # ``close`` moves, too: both would copy the same segments
            finished = await self._list_finished(shared)
            await shared.prepare()
            await shared.check_owner()
            await self._reseal(shared)
            await self._hide_former(shared)
            if shared.problem and not finished:  # else only the next sweep would tell that the store works again
                await self._sweep_shared(shared)
                await self._destroy_unused_shared_keys(shared)
            for number, path, size in finished:
                await self._move(shared, number, path, size)

    async def _reseal(self, shared: SharedBodies) -> None:
        """Seal frames anew with keys of the store if keys of this disk sealed them while the store did not answer."""
        changes = await asyncio.to_thread(shared.keys.list_outage_keys)
        done: set[int] = set()
        while changes:
            async with self._lock:  # for one segment at a time: others write and read in between
                if self._is_closed:
                    return
                await self._store_rows()
                numbers = [number for number in self._segments.list_numbers() if number not in done]
                if not numbers:
                    await self._in_thread(shared.keys.end_outage, changes)
                    return
                if len(numbers) == 1:
                    await self._in_thread(self._segments.close)  # no frame is added to it later
                frames = await self._index.list_frames(self._index.node, numbers[0])
                await self._in_thread(reseal_frames, self._segments, frames, changes)
                done.add(numbers[0])

    async def _hide_former(self, shared: SharedBodies) -> None:
        """Hide bodies that an earlier process sealed with a destroyed key, if it was killed before it hid them."""
        async with self._lock:
            if self._has_checked_keys or self._is_closed:
                return
            frames = await self._index.list_frames(self._index.node)
            versions = await self._index.find_key_versions({account_id for _, account_id, _ in frames})
            suspects = [frame for frame in frames if versions.get(frame[1])]
            for request_id in await self._in_thread(list_unreadable, self._segments, suspects, shared.keys.find_boxes):
                await self._index.mark_deleted(BodyFilter(request_id=request_id))
        self._has_checked_keys = True

    async def _move(self, shared: SharedBodies, number: int, path: Path, size: int) -> None:
        """Move a segment to the shared store, or do nothing if frames of it are erased meanwhile: the copy has them."""
        async with self._lock:  # an erasure that runs is counted before it has overwritten everything
            erasures = self._segments.count_erasures(number)
            if self._is_closed or not self._segments.has(number):
                return
        kept_keys = await shared.list_keys()
        segment, is_added = await shared.put(number, path, size, self._now_ms()), False
        async with self._lock:
            is_whole = self._segments.has(number) and self._segments.count_erasures(number) == erasures
            if is_whole and not self._is_closed:
                self._data_keys.keep_only(kept_keys)
                is_added = await shared.add(segment, self._now_ms())
                if is_added or await shared.has(number):
                    await self._in_thread(self._segments.remove, number)
        if not is_added:  # outside the lock: a bucket that hangs would stop all reading and writing
            await shared.discard(segment)

    async def _list_finished(self, shared: SharedBodies) -> list[tuple[int, Path, int]]:
        async with self._lock:
            if self._is_closed:
                return []
            await self._open()
            await self._store_rows()  # a segment whose rows are not stored would look unused to other nodes
            await self._hide_unreadable(shared, await self._in_thread(shared.keys.list_accounts_here))
            return await self._in_thread(self._segments.list_finished, shared.move_after_s)

    async def write_waiting(self) -> None:
        """Write everything that waits, and store its rows."""
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
                if self.shared is not None:
                    await self._hide_unreadable(self.shared, self._queue.list_next_accounts())
                batch = self._queue.take_batch()
                count -= len(batch)
                entries, size = await self._in_thread(self._write_batch, batch)
                self._unstored += entries
                self.memory.used -= size
                await self._store_rows()

    async def read(self, request_id: str) -> tuple[BodyEntry, list[BodyPart]] | None:
        """Return the row of a request and its bodies (empty if nothing could be kept); None if there is no row to show.

        Raises ``BodiesUnreadable`` if another node has the bodies (``BodiesNotShared`` if it moves them soon), if the
        shared store does not answer (``BodiesOutOfReach``, or ``SegmentUnreadable`` for their segment alone), or if the
        bodies are damaged or being deleted.
        """
        await self._write_for_reader()
        entry = await self._index.find(request_id, self._now_ms())
        if entry is None or entry.location is None:
            return None if entry is None else (entry, [])
        try:
            return entry, await self._read_location(entry, entry.location)
        except OSError as error:
            unreadable = BodiesUnreadable if self.shared is None else BodiesOutOfReach
            raise unreadable(str(error)) from None
        except (FrameDamaged, PackDamaged, DecryptionFailed) as error:
            raise BodiesUnreadable(str(error)) from None

    async def _read_location(self, entry: BodyEntry, location: Location) -> list[BodyPart]:
        shared, is_own = self.shared, entry.node == self._index.node
        if is_own and (shared is None or self._segments.has(location.segment)):
            try:
                return await self._in_thread(self._read, entry.owner, location)
            except FrameDamaged:
                if shared is None or self._segments.has(location.segment):
                    raise  # else it was moved at this moment
        if shared is None:
            raise FrameDamaged(f"the node {entry.node} has these bodies: ask that node")
        return await shared.read(entry, location)

    async def list_kept(self, request_ids: Collection[str]) -> set[str]:
        """Return those of the requests whose bodies can be read on this node."""
        await self._write_for_reader()
        if not request_ids:
            return set()
        return await self._index.list_kept(request_ids, self._now_ms(), reads_moved=self.shared is not None)

    async def _write_for_reader(self) -> None:
        """Write what waits. Bodies can be read although the disk cannot be written, or a key is missing."""
        with suppress(OSError, DecryptionFailed):
            await self.write_waiting()

    async def delete(self, body_filter: BodyFilter, build_audit: BuildAudit | None = None) -> DeletedBodies:
        """Delete bodies for good: when this returns, nothing of them can be read on this node, with any key.

        The same holds for a shared store. ``build_audit`` gets the number of requests of each account; its row is
        stored in the transaction that hides the first of them. Raises ``OSError``, ``DecryptionFailed``. After an error
        a sweep erases what was hidden by then, and completes the deletion of a whole account if that had begun.
        """
        return await _run_to_end(self._delete(body_filter, build_audit))

    async def _delete(self, body_filter: BodyFilter, build_audit: BuildAudit | None) -> DeletedBodies:
        with suppress(OSError):  # rows can be hidden although the disk cannot be written
            await self._write_waiting()
        async with self._lock:  # what could not be written has no row yet that a deletion could hide
            self.memory.used -= self._queue.drop(body_filter.covers)
        account_id = find_key_account(body_filter)
        if account_id is None:  # first: what fails or ends after this goes on in a sweep
            requests = await self._hide(body_filter, build_audit)
        else:
            with self._deletions.run(account_id):
                requests = await self._hide(body_filter, build_audit, key_account_id=account_id)
                requests += await self._destroy_keys(account_id)
        await self._erase_deleted()
        if self.shared is not None:
            await self.shared.erase_deleted(self._now_ms())
        return DeletedBodies(requests, await self._index.count_pending())

    async def _hide(
        self, body_filter: BodyFilter, build_audit: BuildAudit | None = None, *, key_account_id: int | None = None
    ) -> int:
        """Hide bodies step by step; return the number of requests. Other writes get in between."""
        counts = await self._index.count_by_account(body_filter)
        audit = None if build_audit is None else build_audit(counts)
        requests, marked = 0, MARKED_PER_STEP
        while marked >= MARKED_PER_STEP:
            marked = await self._index.mark_deleted(body_filter, audit, key_account_id=key_account_id)
            requests, audit = requests + marked, None
        return requests

    async def _destroy_keys(self, account_id: int, *, is_repeated: bool = False) -> int:
        """Destroy the data keys of an account, and hide what was sealed with them since its bodies were hidden.

        Return the number of hidden requests. Another node that has such a key in memory forgets the key, and hides
        what the key has sealed. ``is_repeated``: do nothing if the deletion has ended meanwhile.
        """
        async with self._lock:
            if is_repeated and account_id not in await self._index.list_pending_keys():
                return 0
            if self.shared is None:
                await self._in_thread(self._data_keys.destroy, account_id)
            else:
                await self.shared.destroy_keys(account_id)
            await self._index.end_key_destruction(account_id)
            await self._store_rows()
            return await self._hide(BodyFilter(account_id=account_id))

    async def sweep(self) -> None:
        """Remove what has expired, what was deleted elsewhere or with its account, and the oldest beyond the bound."""
        await _run_to_end(self._sweep())

    async def _sweep(self) -> None:
        async with self._lock:
            if self._is_closed:
                return
            await self._open()
        while await self._index.mark_ownerless_deleted() >= MARKED_PER_STEP:  # also of requests that ran at the time
            pass
        await self._index.settle_held()
        with suppress(OSError):  # the shared store does not answer: the next sweep tries again
            if self.shared is None or self.shared.leads():  # others would repeat what the leader does
                for account_id in await self._deletions.list_cut_off():
                    await self._destroy_keys(account_id, is_repeated=True)
                await self._index.remove_key_versions()
        await self._erase_deleted()
        async with self._lock:
            removed = await self._remove_expired()
            await self._remove_unused()
            max_bytes = self._find_bounds().max_bytes
            while self._segments.total_bytes > max_bytes:
                removed += await self._index.remove_segments(self._segments.list_numbers()[:1])
                await self._remove_unused()
        if self.shared is not None:
            removed += await self._sweep_shared(self.shared)
        if removed:
            log.info("bodies_swept", rows=removed)

    async def _sweep_shared(self, shared: SharedBodies) -> int:
        try:
            removed = await shared.sweep(self._find_bounds(), self._now_ms())
        except OSError as error:
            shared.note_problem("sweep", str(error))
            return 0
        shared.note_problem("sweep", "")
        return removed

    async def _remove_expired(self) -> int:
        keep_ms = self._find_bounds().keep_ms
        if keep_ms < self._applied_keep_ms:
            leads = self.shared is not None and self.shared.leads()
            await self._index.shorten(keep_ms, of_all_nodes=leads)
        self._applied_keep_ms = keep_ms
        return await self._index.remove_expired(self._now_ms())

    async def describe(self, account_id: int | None = None) -> StoredBodies:
        """Return how much is kept. ``account_id``: count only its requests; bytes are always those of all accounts."""
        problem = self.problem
        async with self._lock:
            try:
                await self._open()
            except (OSError, DecryptionFailed) as error:  # the index is in the database: its rows can be counted
                problem = problem or str(error)
        kept, lost, oldest_ms = await self._index.count(self._now_ms(), account_id)
        local_bytes = self._segments.total_bytes
        shared_bytes = None if self.shared is None else await self.shared.measure()
        return StoredBodies(
            kept,
            lost,
            local_bytes + (shared_bytes or 0),
            oldest_ms,
            problem,
            self.memory.used,
            pending=await self._index.count_deleted(),
            unmoved_bytes=0 if shared_bytes is None else local_bytes,
        )

    async def close(self) -> None:
        """Write and move what waits, for some seconds at most, and stop. What is not written then is lost."""
        with suppress(StoreUnavailable, OSError, TimeoutError, DecryptionFailed):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.shield(asyncio.ensure_future(self.write_waiting()))
                if self.shared is not None and self._is_open and not (self._is_closed or self.shared.problem):
                    async with self._lock:
                        await self._in_thread(self._segments.close)
                    await asyncio.shield(asyncio.ensure_future(self.move_finished()))
        self._queue.drop(lambda _: True)
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
        if self._former_node is not None and not ends and await self._in_thread(self._segments.exist):
            if self.shared is not None:  # the segments that are adopted were sealed with these keys
                await self.shared.prepare()
                if changes := await self.shared.adopt_keys(self._former_node):
                    frames = await self._index.list_frames(self._former_node)
                    await self._in_thread(reseal_frames, self._segments, frames, changes)
            await self._index.adopt(self._former_node)
            ends = await self._index.find_ends()
        if self.shared is not None:
            with suppress(OSError):  # the job that moves segments tells of it
                await self.shared.prepare()
        last = await self._index.find_last(self._former_node)
        missing = await self._in_thread(self._segments.open, ends, last)
        if missing:
            rows = await self._index.remove_segments(missing)
            log.warning("bodies_missing", rows=rows, reason="segments of kept bodies do not exist any more")
        self._is_open = True

    def _write_batch(self, batch: Sequence[WaitingBodies]) -> tuple[list[BodyEntry], int]:
        """Write a batch, in the thread; return its rows and its size. What cannot be written is lost."""
        entries: list[BodyEntry] = []
        problem = ""
        for waiting in batch:
            owner, location = waiting.owner, None
            loss: LossReason | None = None
            if self._is_backlog_full():
                entries.append(self._build_entry(owner, None, "store"))
                continue
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
            entries.append(self._build_entry(owner, location, loss, is_held=waiting.is_held))
        self._note_problem(problem)
        return entries, sum(waiting.size for waiting in batch)

    def _is_backlog_full(self) -> bool:
        shared = self.shared
        if shared is None:
            return False
        return self._segments.total_bytes >= min(shared.max_backlog_bytes, self._find_bounds().max_bytes)

    def _seal(self, owner: BodyOwner, parts: Sequence[BodyPart]) -> bytes:
        return self._data_keys.open_box(owner.account_id).seal(pack_parts(parts), context=owner.request_id)

    def _read(self, owner: BodyOwner, location: Location) -> list[BodyPart]:
        packed = self._data_keys.unseal(owner.account_id, self._segments.read(location), owner.request_id)
        if packed is None:
            raise FrameDamaged("the data key of this account was destroyed")
        return unpack_parts(packed)

    def _build_entry(
        self, owner: BodyOwner, location: Location | None, loss: LossReason | None, *, is_held: bool = False
    ) -> BodyEntry:
        expires_ms = self._now_ms() + self._find_bounds().keep_ms
        return BodyEntry(owner, expires_ms, self._index.node, location, loss, is_held and location is not None)

    async def _store_rows(self) -> None:
        if self._unstored:
            entries = self._unstored.copy()
            await self._index.add(entries)
            if self.shared is not None:
                sealed = {entry.owner.account_id for entry in entries if entry.location is not None}
                await self._hide_unreadable(self.shared, sealed)
            del self._unstored[: len(entries)]  # others may have been added meanwhile

    async def _hide_unreadable(self, shared: SharedBodies, account_ids: Collection[int]) -> None:
        """Forget the data keys that a node has destroyed since the last call, and hide what they have sealed here."""
        if account_ids:
            versions = await self._index.find_key_versions(account_ids)
            destroyed = await self._in_thread(shared.keys.forget_destroyed, account_ids, versions)
            await self._index.hide_unmoved(destroyed)
            shared.keys.note_versions(account_ids, versions)  # last: after a failure the next call hides them

    async def _erase_deleted(self) -> None:
        """Erase deleted bodies step by step, with other work in between; remove unused segments and data keys."""
        while await self._erase_some():
            pass
        async with self._lock:
            await self._open()
            await self._store_rows()  # a segment or a data key whose rows are not stored would look unused
            await self._remove_unused()
            if self.shared is None:
                await self._destroy_unused_keys(await self._in_thread(self._data_keys.list_accounts))
        if self.shared is not None:
            await self._destroy_unused_shared_keys(self.shared)

    async def _erase_some(self) -> bool:
        """Erase frames, then their rows: a crash between the two leaves the rows. Return False if none was left."""
        async with self._lock:
            await self._open()
            deleted = await self._index.list_deleted()
            await self._in_thread(self._segments.erase, [place for _, place in deleted if place is not None])
            if deleted:
                await self._index.remove(request_id for request_id, _ in deleted)
        return bool(deleted)

    async def _destroy_unused_shared_keys(self, shared: SharedBodies) -> None:
        try:
            account_ids = await shared.list_keys()
            async with self._lock:
                await self._store_rows()
                await self._destroy_unused_keys(account_ids)
        except OSError as error:  # the next sweep does it
            shared.note_problem("keys", str(error))
        else:
            shared.note_problem("keys", "")

    async def _destroy_unused_keys(self, account_ids: Sequence[int]) -> None:
        """Destroy the data keys of accounts without any kept bodies."""
        await self._in_thread(self._data_keys.remove_dead)
        used_accounts = await self._index.list_accounts()
        for account_id in account_ids:
            if account_id not in used_accounts:
                await self._in_thread(self._data_keys.destroy, account_id)

    async def _remove_unused(self) -> None:
        await self._in_thread(self._segments.remove_unused, await self._index.list_segments())

    def _note_problem(self, problem: str) -> None:
        """Note why bodies cannot be written; empty if they can. Log when that begins and when it ends."""
        if problem and not self._disk_problem:
            log.error("bodies_not_written", error=problem)
        elif self._disk_problem and not problem:
            log.info("bodies_written_again")
        self._disk_problem = problem

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    async def _in_thread(self, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Run ``work`` in the store's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


async def _run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end even if the awaiting task is cancelled: a frame must get its row."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
