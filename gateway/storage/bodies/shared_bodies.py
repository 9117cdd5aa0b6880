"""The bodies in a shared folder or bucket: read, erased and removed there, whichever node has moved them."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Literal

import attrs
import structlog

from gateway.domain.keep_rule import BodyBounds
from gateway.domain.kept_body import BodyOwner, BodyPart
from gateway.storage.bodies.data_keys import DataKeys, FolderKeyFiles, MovedKeyFiles
from gateway.storage.bodies.errors import BodiesNotShared, SegmentUnreadable
from gateway.storage.bodies.framing import FrameDamaged, parse_frame
from gateway.storage.bodies.index import BodyEntry
from gateway.storage.bodies.packing import unpack_parts
from gateway.storage.bodies.resealing import KeyChange
from gateway.storage.bodies.segment_store import SegmentStore, describe_other_owner, make_segment_name
from gateway.storage.bodies.segments import Location
from gateway.storage.bodies.shared_index import DeletedBody, SharedIndex, SharedSegment
from gateway.storage.bodies.shared_keys import SharedDataKeys
from gateway.storage.encryption import DecryptionFailed, SecretBox

MOVE_AFTER_S = 10.0
"""How long frames are appended to a segment before it is moved."""
MAX_BACKLOG_BYTES = 1024 * 1024 * 1024
"""Maximum bytes of segments on the local disk while the store cannot be written; beyond them nothing more is kept."""
MAX_SEGMENT_BYTES = 16 * 1024 * 1024
"""Maximum bytes of a segment: to erase a part of it, the whole object of a bucket is read and stored anew."""
LOST_AFTER_S = 3_600.0
"""The age after which a segment that the index does not know was left by a process that was killed."""
COLLECT_INTERVAL_S = 3_600.0
KEY_TTL_S = 5.0
"""How long a data key is used before it is read again. If another node destroys it, its bodies are hidden first."""
MAX_KEYS = 1_000
MARK_BYTES = 16

StoreWork = Literal["move", "sweep", "keys"]
"""The kinds of work that fail and succeed apart from each other."""

log = structlog.stdlib.get_logger(__name__)


class StoreNotOwned(OSError):
    """The segments in the shared store are those of another database, of which this one may be a copy."""


class SharedBodies:
    """The shared store with its index.

    Args:
        local_keys: the folder of data keys from before there was a shared store; these keys move to the store.
        secret_box: has the master key, which all nodes have.
        leads: returns whether this process removes what has expired, for all nodes.

    Attributes:
        keys: the data keys of this node.
    """

    def __init__(
        self,
        store: SegmentStore,
        index: SharedIndex,
        local_keys: Path,
        secret_box: SecretBox,
        *,
        leads: Callable[[], bool] = lambda: True,
        move_after_s: float = MOVE_AFTER_S,
        max_segment_bytes: int = MAX_SEGMENT_BYTES,
        max_backlog_bytes: int = MAX_BACKLOG_BYTES,
    ) -> None:
        self._store = store
        self._index = index
        self._secret_box = secret_box
        self._collected_at = float("-inf")
        self._is_prepared = self._is_owner = False
        self._boxes: dict[tuple[str, int], tuple[SecretBox | None, float]] = {}
        self._unused_keys: set[tuple[str, int]] = set()
        self.leads = leads
        self.move_after_s = move_after_s
        self.max_segment_bytes = max_segment_bytes
        self.max_backlog_bytes = max_backlog_bytes
        self._process = secrets.token_hex(MARK_BYTES)
        files = MovedKeyFiles(store.open_keys(index.node), FolderKeyFiles(local_keys))
        self.keys = SharedDataKeys(files, secret_box)
        self._problems: dict[StoreWork, str] = {"move": "", "sweep": "", "keys": ""}

    async def prepare(self) -> None:
        """Give up the drafts of earlier processes, and make the store if the index has no segments there.

        Only the first successful call does so. Raises ``OSError``, ``StoreUnavailable``.
        """
        if not self._is_prepared:
            await self._index.give_up_former_drafts(self._process)
            if not await self._index.has_segments():
                await self._store.create()
            self._is_prepared = True

    async def check_owner(self) -> None:
        """Raise ``StoreNotOwned`` if the segments are those of another database; nothing may be removed then.

        The first database that uses a store leaves its mark there. Raises ``OSError``, ``StoreUnavailable``.
        """
        if self._is_owner:
            return
        mark, stored_mark = await self._index.find_mark(), await self._store.read_mark()
        if not stored_mark:
            mark = mark or await self._index.add_mark(secrets.token_hex(MARK_BYTES))
            await self._store.write_mark(mark)
        elif mark != stored_mark:
            raise StoreNotOwned(describe_other_owner())
        self._is_owner = True

    async def adopt_keys(self, former_node: str) -> dict[int, KeyChange]:
        """Copy the data keys of the node that this one was before, for accounts without a key here.

        Return the key changes of accounts that have another key here. Raises ``OSError``, ``DecryptionFailed``.
        """
        return await asyncio.to_thread(self._adopt_keys, former_node)

    def _adopt_keys(self, former_node: str) -> dict[int, KeyChange]:
        former, own, changes = self._store.open_keys(former_node), self.keys.files, {}
        for account_id in former.list_accounts():
            sealed, own_sealed = former.read(account_id), own.read(account_id)
            if sealed is not None and own_sealed is None:
                own.write(account_id, sealed)
            elif sealed is not None and own_sealed is not None and sealed != own_sealed:
                old, new = (self.keys.unseal_key(account_id, key) for key in (sealed, own_sealed))
                changes[account_id] = KeyChange(old, new, sealed)
        return changes

    async def put(self, number: int, path: Path, size: int, now_ms: int) -> SharedSegment:
        """Copy a segment of this node to the store and return the copy, which ``add`` makes readable there.

        Raises ``OSError``, ``StoreUnavailable``.
        """
        segment = SharedSegment(self._index.node, number, make_segment_name(), size)
        await self._index.note_draft(segment, self._process, now_ms)
        await self._store.put(segment.name, path, size)
        return segment

    async def add(self, segment: SharedSegment, now_ms: int) -> bool:
        """Let every node read a segment that ``put`` has copied.

        Return False if an earlier call, whose result was lost, has added another copy, or another process has given
        this copy up. Then the copy must be discarded.
        """
        return await self._index.add(segment, now_ms)

    async def has(self, number: int) -> bool:
        """Return whether a segment of this node is in the store."""
        return await self._index.find(self._index.node, number) is not None

    async def discard(self, segment: SharedSegment) -> None:
        """Remove a copy that was not added. Raises ``OSError``, ``StoreUnavailable``; a sweep removes it then."""
        await self._discard(segment.name)

    async def _discard(self, name: str) -> None:
        await self._index.note_leftover(name)
        await self._remove_leftovers()

    async def _remove_leftovers(self) -> None:
        """Remove objects that deleted bodies may be in, also those of a process that was killed."""
        while names := await self._index.list_leftovers():
            await self.check_owner()
            await self._store.remove(names)
            await self._index.forget_leftovers(names)

    async def list_keys(self) -> list[int]:
        """Return the accounts that have a data key of this node. Raises ``OSError``, ``StoreUnavailable``."""
        await self.check_owner()
        return await asyncio.to_thread(self.keys.list_accounts)

    async def read(self, entry: BodyEntry, location: Location) -> list[BodyPart]:
        """Return the bodies of a row.

        Raises ``BodiesNotShared``, ``SegmentUnreadable``, ``FrameDamaged``, ``PackDamaged``, ``DecryptionFailed``,
        ``OSError`` if the store does not answer, and ``StoreUnavailable`` if the database does not.
        """
        name = ""
        for _ in range(2):  # a segment gets another name when a part of it is erased
            segment = await self._index.find(entry.node, location.segment)
            if segment is None:
                raise BodiesNotShared("they are not in the shared store yet: ask again in some seconds")
            name = segment.name
            frame = await self._read_frame(name, location)
            if frame is not None:
                return await asyncio.to_thread(self._unseal, entry, frame)
        raise FrameDamaged(f"the segment {name} is missing in {self._store.location}")

    async def _read_frame(self, name: str, location: Location) -> bytes | None:
        try:
            return await self._store.read(name, location)
        except OSError as error:
            await self._store.read_mark()  # raises OSError if nothing can be read
            raise SegmentUnreadable(f"the segment {name} cannot be read: {error}") from error

    def _unseal(self, entry: BodyEntry, frame: bytes) -> list[BodyPart]:
        content, owner = parse_frame(frame), entry.owner
        try:
            plain = self._open_with(self._find_box(entry.node, owner.account_id), content, owner)
        except DecryptionFailed:  # that of a new key, after another node has destroyed the one read moments ago
            plain = self._open_with(self._find_box(entry.node, owner.account_id, is_new=True), content, owner)
        return unpack_parts(plain)

    def _open_with(self, box: SecretBox | None, content: bytes, owner: BodyOwner) -> bytes:
        if box is None:
            raise FrameDamaged("the data key of this account was destroyed")
        return box.open(content, context=owner.request_id)

    def _find_box(self, node: str, account_id: int, *, is_new: bool = False) -> SecretBox | None:
        """Return the box of a data key; None if the account has none on that node.

        A key that was read moments ago is not read again, because an export or a sink needs it thousands of times.
        """
        box, read_at = self._boxes.get((node, account_id), (None, float("-inf")))
        if is_new or box is None or time.monotonic() - read_at > KEY_TTL_S:
            keys = self.keys if node == self._index.node else self._open_keys(node)
            box = keys.find_box(account_id)
            if len(self._boxes) >= MAX_KEYS:
                self._boxes.clear()
            self._boxes[node, account_id] = (box, time.monotonic())
        return box

    def _open_keys(self, node: str) -> DataKeys:
        return DataKeys(self._store.open_keys(node), self._secret_box)

    async def destroy_keys(self, account_id: int) -> None:
        """Destroy the data keys of an account in the store, for all nodes, and on this node's disk.

        Raises ``OSError``, ``StoreUnavailable``.
        """
        await self.check_owner()
        await asyncio.to_thread(self._destroy_keys, account_id)

    def _destroy_keys(self, account_id: int) -> None:
        self._boxes.clear()
        for node in self._store.list_key_nodes():
            if node != self._index.node:
                self._open_keys(node).destroy(account_id)
        self.keys.destroy(account_id)

    async def erase_deleted(self, now_ms: int) -> None:
        """Erase the bodies that were deleted, of all nodes. Raises ``OSError``, ``StoreUnavailable``."""
        await self._index.repeat_given_up_drafts()
        await self._remove_leftovers()
        while deleted := await self._index.list_deleted():
            await self.check_owner()
            for segment, group in groupby(deleted, key=attrgetter("segment")):
                await self._erase(segment, list(group), now_ms)
        await self._remove_unused()

    async def _erase(self, segment: SharedSegment, deleted: Sequence[DeletedBody], now_ms: int) -> None:
        """Erase frames of a segment, then their rows: after a crash between the two the rows are still here."""
        if await self._index.is_deleted_whole(segment):  # the segment is removed at once
            await self._index.give_up_drafts_of(segment)
        else:
            locations, draft = [body.location for body in deleted], attrs.evolve(segment, name=make_segment_name())
            await self._index.note_draft(draft, self._process, now_ms)
            name = await self._store.erase(segment.name, draft.name, segment.bytes, locations)
            # A segment that was missing may have been renamed by another process: its new object has these frames.
            if not await self._index.rename(segment, name):
                if name != segment.name:
                    await self._discard(name)
                return
        await self._remove_leftovers()  # before the rows: they name the former objects
        await self._index.remove([body.request_id for body in deleted])

    async def _remove_unused(self) -> None:
        while unused := await self._index.list_unused():
            await self.check_owner()
            await self._store.remove([segment.name for segment in unused])
            await self._index.forget(unused)

    async def sweep(self, bounds: BodyBounds, now_ms: int) -> int:
        """Erase the deleted bodies. On the leader, also remove expired ones, and the oldest beyond ``bounds``.

        Every ``COLLECT_INTERVAL_S``, the leader also removes what killed processes have left in the store. Return the
        number of rows of expired and oldest bodies that were removed. Raises ``OSError``, ``StoreUnavailable``.
        """
        await self.check_owner()
        await self.erase_deleted(now_ms)
        if not self.leads():
            return 0
        removed = 0
        while rows := await self._index.remove_expired(now_ms):
            removed += rows
        while (excess_bytes := await self._index.sum_bytes() - bounds.max_bytes) > 0:
            removed += await self._index.remove_oldest(excess_bytes)
            await self._remove_unused()
        await self._remove_unused()
        if time.monotonic() - self._collected_at >= COLLECT_INTERVAL_S:
            self._collected_at = time.monotonic()
            await self._index.give_up_old_drafts(now_ms - int(LOST_AFTER_S * 1000))
            await self._remove_leftovers()
            await self._collect_lost()
        return removed

    async def _collect_lost(self) -> None:
        """Remove old copies that the index does not know, and other nodes' data keys without bodies.

        A data key is removed only if it had no bodies at the last call, either.
        """
        old_names = await self._store.list_older(LOST_AFTER_S)
        known_names = await self._index.list_names()
        lost_names = [name for name in old_names if name not in known_names]
        if lost_names:
            await self._store.remove(lost_names)
            log.info("bodies_swept", files=len(lost_names))
        listed_keys = await asyncio.to_thread(self._list_keys_of_others)
        unused_keys = listed_keys - await self._index.list_key_owners()
        for node, account_id in unused_keys & self._unused_keys:  # since the last time: no live node uses these
            await asyncio.to_thread(self._open_keys(node).destroy, account_id)
        self._unused_keys = unused_keys

    def _list_keys_of_others(self) -> set[tuple[str, int]]:
        nodes = [node for node in self._store.list_key_nodes() if node != self._index.node]
        return {(node, account_id) for node in nodes for account_id in self._open_keys(node).list_accounts()}

    async def measure(self) -> int:
        """Return the size of all segments in the store, in bytes."""
        return await self._index.sum_bytes()

    @property
    def problem(self) -> str:
        """Why the store cannot be used at the moment; empty if it can."""
        return next((f"{self._store.location}: {problem}" for problem in self._problems.values() if problem), "")

    def note_problem(self, work: StoreWork, problem: str) -> None:
        """Note why a kind of work fails; empty if it succeeds. Log when failures begin and when they end."""
        if problem and not self._problems[work]:
            log.warning("bodies_store_failed", operation=work, path=self._store.location, reason=problem)
        elif self._problems[work] and not problem:
            log.info("bodies_store_works_again", operation=work)
        self._problems[work] = problem
