"""The clock that the nodes of a cluster share: the clock of their store."""

from collections.abc import Callable

_SLEW_RATE = 0.01
"""How much faster or slower the clock runs to approach the store's clock, so that days and claims see no jump."""
MAX_SLEW_DIFFERENCE_S = 60.0
"""A larger difference is corrected at once: this machine was suspended, or the store's clock was set."""
MAX_ROUND_TRIP_S = 0.2
"""A beat with a longer round trip is too imprecise and is ignored, unless it is the first one."""


class StoreClock:
    """The store's time, in Unix seconds. Between two beats, this machine's monotonic clock measures the time.

    Args:
        machine_clock: returns Unix seconds of this machine, for the time before the first beat. Setting that clock
            later has no effect here.
        monotonic: returns seconds of a monotonic clock that includes the time while this machine sleeps.
    """

    def __init__(self, machine_clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._machine_clock = machine_clock
        self._monotonic = monotonic
        self._target_start_s: float | None = None
        self._start_s = 0.0
        self._last_slew_s = 0.0
        self._min_s = 0.0

    @property
    def offset_s(self) -> float:
        """The seconds by which the store's clock is ahead of this machine's; 0 before the first beat."""
        return 0.0 if self._target_start_s is None else self._target_start_s + self._monotonic() - self._machine_clock()

    def adjust(self, now_ms: int, round_trip_s: float) -> None:
        """Approach the store's time of a beat, which was ``now_ms`` in the middle of its round trip.

        The time of the first beat, or one that differs by more than ``MAX_SLEW_DIFFERENCE_S``, is adopted at once.
        """
        if round_trip_s > MAX_ROUND_TRIP_S and self._target_start_s is not None:
            return
        now_s = self._monotonic()
        start_s = now_ms / 1000 + round_trip_s / 2 - now_s
        if self._target_start_s is None or abs(start_s - self._start_s) > MAX_SLEW_DIFFERENCE_S:
            self._start_s = start_s
        else:
            self._slew(now_s)
        self._target_start_s, self._last_slew_s = start_s, now_s

    def now(self) -> float:
        if self._target_start_s is None:
            return max(self._machine_clock(), self._min_s)
        now_s = self._monotonic()
        if self._start_s != self._target_start_s:
            self._slew(now_s)
        return max(self._start_s + now_s, self._min_s)

    def advance_to(self, at_s: float) -> None:
        """Return no time before ``at_s`` from now on, because another node has already begun the day of ``at_s``."""
        self._min_s = max(self._min_s, at_s)

    def _slew(self, now_s: float) -> None:
        if self._target_start_s is not None:
            max_step_s = (now_s - self._last_slew_s) * _SLEW_RATE
            self._start_s += max(-max_step_s, min(self._target_start_s - self._start_s, max_step_s))
        self._last_slew_s = now_s
