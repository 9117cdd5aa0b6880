"""The events of a stream, numbered and kept for any number of readers. Nothing here knows of HTTP or of billing.

One writer appends what it sends anyway. Each reader goes on at its own pace from any event, to the end of the stream.
Events are stored in blocks. If the streams of the process need more memory than ``EventMemory`` allows, full blocks
move to a file (``storage/spill_file.py``).
"""

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path

import attrs

from gateway.formats.wire.sse import SseSplitter, parse_data
from gateway.large_work import run_in_thread
from gateway.storage.spill_file import SpilledPiece, SpillFile

MIB = 1024 * 1024
MAX_MEMORY_BYTES = 64 * MIB
"""Memory for the events of all streams together, beyond which full blocks move to files."""
MAX_SPILLED_BYTES = 1024 * MIB
"""Disk space for the events of all streams together."""
_BLOCK_BYTES = 64 * 1024
_EVENT_BYTES = 64
"""Memory that an event takes in addition to its bytes."""
_COMMENT = b":"


class EventsLost(Exception):
    """The next events of a stream are not kept, and never will be."""


class EventMemory:
    """The memory and the disk space that the recorders of a process share. ``folder`` is made for the first file.

    Attributes:
        root: what all accounts and keys use.
    """

    def __init__(
        self, folder: Path, max_bytes: int = MAX_MEMORY_BYTES, max_spilled_bytes: int = MAX_SPILLED_BYTES
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.max_spilled_bytes = max_spilled_bytes
        self.root = MemoryShare()

    @property
    def used_bytes(self) -> int:
        return self.root.used_bytes

    @property
    def spilled_bytes(self) -> int:
        return self.root.spilled_bytes

    @property
    def is_short(self) -> bool:
        return self.used_bytes > self.max_bytes

    @property
    def is_exhausted(self) -> bool:
        """Whether the events in memory exceed twice the limit of memory, or those in files the limit of disk space."""
        root = self.root
        return root.used_bytes > 2 * self.max_bytes or root.spilled_bytes > self.max_spilled_bytes

    def refuses(self, share: "MemoryShare") -> bool:
        """Return whether memory or disk space is exhausted, and the key of ``share`` uses more than its equal part."""
        if not self.is_exhausted:
            return False
        uses_memory = share.is_over(2 * self.max_bytes, attrgetter("used_bytes"))
        uses_disk = share.is_over(self.max_spilled_bytes, attrgetter("spilled_bytes"))
        return (self.used_bytes > 2 * self.max_bytes and uses_memory) or (
            self.spilled_bytes > self.max_spilled_bytes and uses_disk
        )

    def open_file(self) -> SpillFile:
        return SpillFile(self.folder)


class MemoryShare:
    """What the kept streams of one holder use: of a key, of an account, or of all accounts (no ``parent``).

    Attributes:
        used_bytes: memory.
        spilled_bytes: disk space.
        stream_count: kept streams.
        holder_count: holders one level below that have kept streams.
    """

    __slots__ = ("chain", "holder_count", "parent", "spilled_bytes", "stream_count", "used_bytes")

    def __init__(self, parent: "MemoryShare | None" = None) -> None:
        self.parent = parent
        self.chain: tuple[MemoryShare, ...] = (self, *(() if parent is None else parent.chain))
        self.used_bytes = self.spilled_bytes = self.stream_count = self.holder_count = 0

    @property
    def total_bytes(self) -> int:
        return self.used_bytes + self.spilled_bytes

    def add(self, used_bytes: int, spilled_bytes: int = 0) -> None:
        """Change the use of this holder and of those above it."""
        for share in self.chain:
            share.used_bytes += used_bytes
            share.spilled_bytes += spilled_bytes

    def add_stream(self, change: int) -> None:
        """Count a stream that is kept from now on (1), or no longer (-1), here and above."""
        for share in self.chain:
            was_used = share.stream_count > 0
            share.stream_count += change
            if share.parent is not None:
                share.parent.holder_count += (share.stream_count > 0) - was_used

    def is_over(self, limit: int, measure: "Callable[[MemoryShare], int]") -> bool:
        """Return whether each holder from this one upwards uses more than an equal part of ``limit``."""
        for share in reversed(self.chain[:-1]):
            limit //= max(1, 1 if share.parent is None else share.parent.holder_count)
            if measure(share) <= limit:
                return False
        return True


@attrs.define(eq=False)
class _Block:
    """Consecutive events, of which ``first`` is the number of the first one: in memory, or as a ``piece`` of a file.

    Attributes:
        size: the bytes that the events take in memory.
        lengths: the bytes of each event in ``piece``; None while they are in memory.
    """

    first: int
    events: list[bytes] = attrs.Factory(list)
    size: int = 0
    piece: SpilledPiece | None = None
    lengths: "array[int] | None" = None


class StreamRecorder:
    """Keeps the events of one stream. The first one has the number 1. Comments are not events, and are not kept.

    Args:
        make_room: deletes the events of a stream that has ended; returns False if no other stream should make room
            for this one.
        share: what the stream's key uses, in its account's share; None: the stream has a key of its own.

    Attributes:
        count: the number of events so far, which is the number of the last one.
        is_full: whether the stream has no room for another event: the next one is lost to all readers.
        ended: whether no event follows.
        is_complete: whether all events up to the stream's own end are kept.
    """

    __slots__ = (
        "_account_share", "_blocks", "_file", "_has_gap", "_key_share", "_make_room", "_max_bytes", "_memory", "_root",
        "_share", "_size", "_spill_task", "_splitter", "_waiters", "count", "ended", "is_complete", "is_full",
    )  # fmt: skip

    def __init__(
        self,
        memory: EventMemory,
        max_bytes: int,
        make_room: Callable[[MemoryShare], bool],
        share: MemoryShare | None = None,
    ) -> None:
        self._memory = memory
        self._share = share = share or MemoryShare(MemoryShare(memory.root))
        self._key_share, self._account_share, self._root = share.chain
        self._make_room = make_room
        self._max_bytes = max_bytes
        self._size = 0
        self._blocks = [_Block(1)]
        self._splitter = SseSplitter()
        self._waiters: list[asyncio.Future[None]] = []
        self._file: SpillFile | None = None
        self._spill_task: asyncio.Task[None] | None = None
        self.count = 0
        self._has_gap = self.is_full = self.ended = self.is_complete = False

    def append(self, data: bytes) -> None:
        """Add the events in ``data``. The beginning of an event waits for its rest, or for ``end``."""
        if not self.ended:
            self.append_events(self._splitter.split(data))

    def append_events(self, events: Sequence[bytes]) -> None:
        """Add ``events`` except comments, unless the stream has ended. An event without room ends the stream."""
        if self.ended:
            return
        block, size, count = self._blocks[-1], 0, 0
        for event in events:
            if event.startswith(_COMMENT) and parse_data(event) is None:
                continue
            if self.is_full:
                self._has_gap = self.ended = True
                break
            block.events.append(event)
            count += 1
            size += len(event) + _EVENT_BYTES
        block.size += size
        self._size += size
        self._key_share.used_bytes += size
        self._account_share.used_bytes += size
        self._root.used_bytes += size
        self.count += count
        if block.size >= _BLOCK_BYTES:
            self._begin_block()
        if self._size > self._max_bytes:
            self.is_full = True
        if self._memory.is_exhausted:
            self._find_room()
        if self._waiters:
            self._wake()

    def _begin_block(self) -> None:
        self._blocks.append(_Block(self.count + 1))
        if self._memory.is_short and self._spill_task is None:
            self._spill_task = asyncio.get_running_loop().create_task(self._spill())

    def _find_room(self) -> None:
        while self._memory.is_exhausted and self._make_room(self._share):
            pass
        self.is_full = self.is_full or self._memory.refuses(self._share)

    def end(self, *, complete: bool) -> None:
        """Record the end; later calls do nothing. ``complete``: whether the stream had its last event."""
        if not self.ended:
            if self._splitter.has_pending:
                self.append_events([self._splitter.take()])
            self.ended, self.is_complete = True, complete and not self._has_gap
            self._wake()

    def discard(self) -> None:
        """Forget all events. Readers that have not come to the end of the stream get ``EventsLost``."""
        self.end(complete=False)
        self.is_complete = False
        for block in self._blocks:
            self._release(block)
        self._blocks = []
        if self._spill_task is not None:
            self._spill_task.add_done_callback(lambda _: self._close_file())
        else:
            self._close_file()

    def open_reader(self, after: int) -> "StreamReader":
        """Return a reader of the events after number ``after``, which is at most ``count``."""
        return StreamReader(self, after)

    async def load(self, after: int) -> Sequence[bytes]:
        """Return the events of one block after number ``after``; at least one. Raises ``EventsLost``."""
        index = bisect_right(self._blocks, after + 1, key=attrgetter("first")) - 1
        if index < 0:
            raise EventsLost
        block = self._blocks[index]
        if block.piece is None:
            return block.events[after + 1 - block.first :]
        file, lengths = self._file, block.lengths
        if file is None or lengths is None:
            raise EventsLost
        try:
            data = await run_in_thread(file.read, block.piece)
        except OSError:  # the file was closed meanwhile, or the disk has failed
            raise EventsLost from None
        events, offset = [], 0
        for length in lengths:
            events.append(data[offset : offset + length])
            offset += length
        return events[after + 1 - block.first :]

    async def wait(self) -> None:
        """Wait for the next event, or the end."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _spill(self) -> None:
        """Move the full blocks to the file, the oldest first, while memory is short.

        If the disk fails, the stream has no room for further events.
        """
        try:
            while (block := self._find_full_block()) is not None and self._memory.is_short:
                if self._file is None:
                    self._file = await run_in_thread(self._memory.open_file)
                piece = await run_in_thread(self._file.write, b"".join(block.events))
                if not block.size:  # it was discarded meanwhile
                    return
                block.lengths = array("L", map(len, block.events))
                block.piece, block.events = piece, []
                self._share.add(-block.size, piece.length)
        except OSError:
            self.is_full = True
        finally:
            self._spill_task = None

    def _find_full_block(self) -> _Block | None:
        return next((block for block in self._blocks[:-1] if block.piece is None), None)

    def _release(self, block: _Block) -> None:
        if block.piece is None:
            self._share.add(-block.size)
        else:
            self._share.add(0, -block.piece.length)
        block.size, block.events = 0, []

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class StreamReader:
    """Reads a stream from one event to its end.

    Attributes:
        position: the number of the last event that was read.
    """

    __slots__ = ("_recorder", "position")

    def __init__(self, recorder: StreamRecorder, after: int) -> None:
        self._recorder = recorder
        self.position = after

    @property
    def has_next(self) -> bool:
        return self.position < self._recorder.count

    async def read(self) -> Sequence[bytes]:
        """Return the next events, as many as are there; wait for one if there is none. Empty at the end.

        Raises ``EventsLost`` if the stream goes on, or should have gone on, with events that are not kept.
        """
        recorder = self._recorder
        while not self.has_next:
            if recorder.ended:
                if recorder.is_complete:
                    return ()
                raise EventsLost
            await recorder.wait()
        events = await recorder.load(self.position)
        self.position += len(events)
        return events
