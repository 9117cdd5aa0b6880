"""The one timer of a stream: first event, idle between complete events, total, and the keep-alive comment.

It is armed for whatever is due next and looks again when it fires, so that an event costs a stored time and no timer.
"""

import asyncio
from collections.abc import Callable

from gateway.domain.channel import Timeouts
from gateway.domain.fault import UpstreamTimeout

KEEPALIVE_AFTER_S = 15.0
"""Silence towards the caller after which a comment is sent; most proxies give up after 30 or 60 seconds."""


class Pulse:
    """Watches one stream.

    Args:
        timeouts: the channel's.
        expire: called once, with what was too slow.
        keep_alive: called when the caller has heard nothing for ``KEEPALIVE_AFTER_S``.

    Attributes:
        event_at: when the last complete event came (loop time); None before the first. The relay stores it.
        written_at: when the caller was last written to; None while it has not been answered at all.
    """

    __slots__ = ("_expire", "_handle", "_keep_alive", "_loop", "_started", "_timeouts", "event_at", "written_at")

    def __init__(
        self,
        timeouts: Timeouts,
        *,
        expire: Callable[[UpstreamTimeout], None],
        keep_alive: Callable[[], None],
    ) -> None:
        self._timeouts = timeouts
        self._expire = expire
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._handle: asyncio.TimerHandle | None = None
        self.event_at: float | None = None
        self.written_at: float | None = None
        self.wind()

    def wind(self) -> None:
        """Arm the timer for whatever is due next; to be called again once the caller has been answered."""
        self.stop()
        self._handle = self._loop.call_at(self._next_due(), self._look)

    def stop(self) -> None:
        """No more calls."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _next_due(self) -> float:
        due, _ = self._deadline()
        return due if self.written_at is None else min(due, self.written_at + KEEPALIVE_AFTER_S)

    def _deadline(self) -> tuple[float, str]:
        total = self._started + self._timeouts.total_s
        if self.event_at is None:
            waited, what = self._started + self._timeouts.first_byte_s, "The provider sent no event in time"
        else:
            waited, what = self.event_at + self._timeouts.idle_s, "The provider stopped sending events"
        return (waited, what) if waited <= total else (total, "The provider took too long to finish")

    def _look(self) -> None:
        now = self._loop.time()
        due, what = self._deadline()
        if now >= due:
            self._handle = None
            self._expire(UpstreamTimeout(what, phase="stream"))
            return
        if self.written_at is not None and now >= self.written_at + KEEPALIVE_AFTER_S:
            self.written_at = now
            self._keep_alive()
        self.wind()
