"""The one timer of a stream: first event, idle between complete events, total, and the keep-alive comment.

It is due at whatever comes next and looks again then, so that an event costs a stored time and no timer.
"""

import asyncio
from collections.abc import Callable

import attrs

from gateway.deadlines import DeadlineTimer
from gateway.domain.channel import Timeouts
from gateway.errors import ProviderTimeout

KEEPALIVE_AFTER_S = 15.0
"""Silence towards the caller after which a comment is sent; most proxies give up after 30 or 60 seconds."""


class StreamTimeouts:
    """Watches one stream.

    Args:
        timeouts: the channel's.
        sweep: watches over it.
        give_up: called once, with what was too slow.
        keep_alive: called when the caller has heard nothing for ``KEEPALIVE_AFTER_S``.

    Attributes:
        event_at: when the last complete event came (loop time); None before the first. The relay stores it.
        written_at: when the caller was last written to; None while it has not been answered at all.
    """

    __slots__ = (
        "_give_up", "_keep_alive", "_loop", "_started", "_timeouts", "due_at", "event_at", "sweep", "written_at",
    )  # fmt: skip

    def __init__(
        self,
        timeouts: Timeouts,
        sweep: DeadlineTimer,
        *,
        give_up: Callable[[ProviderTimeout], None],
        keep_alive: Callable[[], object],
    ) -> None:
        self._timeouts = timeouts
        self.sweep = sweep
        self._give_up = give_up
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self.event_at: float | None = None
        self.written_at: float | None = None
        self.due_at = 0.0
        self.wind()

    def find_silence_s(self) -> float:
        """How long the caller hears nothing before its first comment, after which no other attempt can follow.

        A first event that has to come sooner than twice the usual is waited for: its absence is another attempt's turn.
        """
        first_s = self._timeouts.first_byte_s
        return KEEPALIVE_AFTER_S if first_s > 2 * KEEPALIVE_AFTER_S else max(KEEPALIVE_AFTER_S, first_s + 1)

    def wind(self) -> None:
        """Watch for whatever is due next; to be called again once the caller has been answered."""
        due, _ = self._deadline()
        self.due_at = due if self.written_at is None else min(due, self.written_at + KEEPALIVE_AFTER_S)
        self.sweep.enter(self)

    def wait_for_whole(self) -> None:
        """No event comes before the answer is whole: only the whole call has a deadline from now on."""
        total_s = self._timeouts.total_s
        self._timeouts = attrs.evolve(self._timeouts, first_byte_s=total_s, idle_s=total_s)
        self.wind()

    def stop(self) -> None:
        """No more calls."""
        self.sweep.leave(self)

    def _deadline(self) -> tuple[float, str]:
        total = self._started + self._timeouts.total_s
        if self.event_at is None:
            waited, what = self._started + self._timeouts.first_byte_s, "The provider sent no event in time"
        else:
            waited, what = self.event_at + self._timeouts.idle_s, "The provider stopped sending events"
        return (waited, what) if waited <= total else (total, "The provider took too long to finish")

    def expire(self, now: float) -> None:
        """Something may be due: see what."""
        due, what = self._deadline()
        if now >= due:
            self.stop()
            self._give_up(ProviderTimeout(what, phase="stream"))
            return
        if self.written_at is not None and now >= self.written_at + KEEPALIVE_AFTER_S:
            self.written_at = now
            self._keep_alive()
        self.wind()
