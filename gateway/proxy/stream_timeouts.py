"""The timeouts of a stream (first event, idle, total) and its keep-alive comments, as one deadline.

The deadline is that of the next possible expiry and is computed anew then, so that an event stores a time and sets no
timer.
"""

import asyncio
from collections.abc import Callable

import attrs

from gateway.deadlines import DeadlineTimer
from gateway.domain.channel import Timeouts
from gateway.errors import ProviderTimeout

KEEPALIVE_AFTER_S = 15.0
"""A client that has received nothing for so long gets a comment; most proxies give up after 30 or 60 seconds."""


class StreamTimeouts:
    """Ends one stream that is too slow, and keeps its client waiting.

    Args:
        timeouts: the channel's.
        timer: checks the deadline.
        give_up: called once, with the timeout that expired.
        keep_alive: called when the client has received nothing for ``KEEPALIVE_AFTER_S``.

    Attributes:
        event_at: when the last complete event came (loop time); None before the first. ``proxy/stream.py`` sets it.
        written_at: when the client was last written to (loop time); None before it is answered.
    """

    __slots__ = (
        "_give_up", "_keep_alive", "_loop", "_started", "_timeouts", "due_at", "event_at", "timer", "written_at",
    )  # fmt: skip

    def __init__(
        self,
        timeouts: Timeouts,
        timer: DeadlineTimer,
        *,
        give_up: Callable[[ProviderTimeout], None],
        keep_alive: Callable[[], object],
    ) -> None:
        self._timeouts = timeouts
        self.timer = timer
        self._give_up = give_up
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self.event_at: float | None = None
        self.written_at: float | None = None
        self.due_at = 0.0
        self.wind()

    def find_silence_s(self) -> float:
        """Return the seconds until the first comment, after which no other attempt can follow.

        If the first event is due within twice the usual time, no comment goes before it: another attempt may follow.
        """
        first_s = self._timeouts.first_byte_s
        return KEEPALIVE_AFTER_S if first_s > 2 * KEEPALIVE_AFTER_S else max(KEEPALIVE_AFTER_S, first_s + 1)

    def wind(self) -> None:
        """Set the deadline to the next possible expiry; to be called again once the client has been answered."""
        due, _ = self._deadline()
        self.due_at = due if self.written_at is None else min(due, self.written_at + KEEPALIVE_AFTER_S)
        self.timer.enter(self)

    def wait_for_whole(self) -> None:
        """Wait for a whole answer instead of events: from now on only the total timeout counts."""
        total_s = self._timeouts.total_s
        self._timeouts = attrs.evolve(self._timeouts, first_byte_s=total_s, idle_s=total_s)
        self.wind()

    def stop(self) -> None:
        """End the timeouts."""
        self.timer.leave(self)

    def _deadline(self) -> tuple[float, str]:
        total = self._started + self._timeouts.total_s
        if self.event_at is None:
            waited, what = self._started + self._timeouts.first_byte_s, "The provider sent no event in time"
        else:
            waited, what = self.event_at + self._timeouts.idle_s, "The provider stopped sending events"
        return (waited, what) if waited <= total else (total, "The provider took too long to finish")

    def expire(self, now: float) -> None:
        """Give up, or send a comment, if one of these is due."""
        due, what = self._deadline()
        if now >= due:
            self.stop()
            self._give_up(ProviderTimeout(what, phase="stream"))
            return
        if self.written_at is not None and now >= self.written_at + KEEPALIVE_AFTER_S:
            self.written_at = now
            self._keep_alive()
        self.wind()
