"""Bounds the memory of the large WebSocket frames of realtime sessions.

aiohttp buffers a frame until it is complete, and has no limit across connections. A meter sits between a connection and
aiohttp's protocol and counts the bytes that have arrived and not yet been passed on. All further data from a connection
that exceeds a limit is dropped.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

LARGE_BYTES = 256 * 1024
"""A connection that holds fewer bytes is not counted."""
MAX_TOTAL_BYTES = 96 * 1024 * 1024
"""Limit of all connections together. A frame needs up to five times its size while it is parsed and sent on.

A single account may hold half: two of the largest frames, the current and the next. A second account then has room for
one of the largest frames.
"""
FRAME_S = 60.0
"""How long a large frame may take until it has been received and passed on."""
_HEADER_BYTES = 14
"""Maximum size of a frame header (RFC 6455, 5.2)."""


class FrameBudget:
    """Counts the bytes of incomplete large frames, per account and in total."""

    def __init__(self) -> None:
        self._accounts: Counter[int] = Counter()

    def resize(self, account: int, added_bytes: int) -> bool:
        """Change the count of ``account`` by ``added_bytes``; return whether the account may hold what it has then.

        An account may hold at most as many bytes as remain free for the others, so a later account still finds room.
        """
        self._accounts[account] += added_bytes
        account_bytes = self._accounts[account]
        if not account_bytes:
            del self._accounts[account]
        return account_bytes <= MAX_TOTAL_BYTES - self._accounts.total()


FRAME_BUDGET = FrameBudget()
"""One budget per process, because memory is a resource of the process."""


class FrameMeter(asyncio.Protocol):
    """Counts the bytes of a connection and passes them to the connection's original protocol.

    Args:
        account: id of the account that pays for the session.
    """

    _inner: asyncio.Protocol

    def __init__(self, account: int) -> None:
        self._account = account
        self._held_bytes = self._counted_bytes = self._passed_frames = 0
        self._progress = (-1, 0.0)
        self._is_refused = False
        self._on_refusal: Callable[[], None] | None = None

    def attach(self, transport: asyncio.Transport | None) -> None:
        """Count the data that arrives over ``transport`` from now on. If it is None, the connection is lost."""
        if transport is None:
            return
        inner = transport.get_protocol()
        assert isinstance(inner, asyncio.Protocol)  # noqa: S101 - aiohttp's are
        self._inner = inner
        transport.set_protocol(self)

    def watch(self, on_refusal: Callable[[], None]) -> None:
        """Call ``on_refusal`` once the connection exceeds a limit, or immediately if it already has."""
        self._on_refusal = on_refusal
        if self._is_refused:
            on_refusal()

    def note_passed(self, size: int) -> None:
        """Subtract a frame of ``size`` bytes that was passed on. Bytes of the next frame may have arrived meanwhile."""
        self._passed_frames += 1
        self._held_bytes = max(self._held_bytes - size - _HEADER_BYTES, 0)
        if self._counted_bytes:
            self._count()

    def update_progress(self, now_s: float) -> bool:
        """Note the frame in progress at ``now_s`` (loop time).

        Return whether a large one takes longer than ``FRAME_S``.
        """
        earlier_frames, since_s = self._progress
        if not self._counted_bytes or earlier_frames != self._passed_frames:
            self._progress = (self._passed_frames, now_s)
            return False
        return now_s - since_s > FRAME_S

    def close(self) -> None:
        """Stop counting: the session has ended. Data that still arrives is dropped."""
        self._is_refused = True
        self._held_bytes = 0
        self._count()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._held_bytes += len(data)
        if self._held_bytes > LARGE_BYTES and not self._count():
            self._is_refused = True
            if self._on_refusal is not None:
                self._on_refusal()
        else:
            self._inner.data_received(data)

    def _count(self) -> bool:
        earlier_bytes, self._counted_bytes = (
            self._counted_bytes,
            self._held_bytes if self._held_bytes > LARGE_BYTES else 0,
        )
        return FRAME_BUDGET.resize(self._account, self._counted_bytes - earlier_bytes)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()  # also if the handshake fails, and no session closes the meter
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
