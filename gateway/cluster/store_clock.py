"""The clock that the nodes of a cluster share: that of their store."""

from collections.abc import Callable

_SLEW = 0.01
"""How much faster or slower the clock may run to come to the store's: days and leases see no jump."""
SLOW_S = 0.2
"""A round trip that takes longer tells too little."""


class StoreClock:
    """Unix seconds by the store: the clock of this machine, corrected.

    Args:
        base: Unix seconds of this machine.
        steady: seconds of a monotonic clock.
    """

    def __init__(self, base: Callable[[], float], steady: Callable[[], float]) -> None:
        self._base = base
        self._steady = steady
        self._wanted_s: float | None = None
        self._offset_s = 0.0
        self._since_s = 0.0
        self._least_s = 0.0

    @property
    def offset_s(self) -> float:
        """How far the store's clock is ahead of this machine's."""
        return self._wanted_s or 0.0

    def observe(self, now_ms: int, round_trip_s: float) -> None:
        """Take over the time of a beat, read in the middle of its round trip. The first one counts at once."""
        if round_trip_s > SLOW_S and self._wanted_s is not None:
            return
        offset_s = now_ms / 1000 - (self._base() - round_trip_s / 2)
        if self._wanted_s is None:
            self._offset_s = offset_s
        self._approach()
        self._wanted_s = offset_s

    def now(self) -> float:
        if self._offset_s != self._wanted_s:
            self._approach()
        return max(self._base() + self._offset_s, self._least_s)

    def reach(self, at_s: float) -> None:
        """Return no earlier time than ``at_s`` from now on: for another node that day has begun."""
        self._least_s = max(self._least_s, at_s)

    def _approach(self) -> None:
        now_s = self._steady()
        if self._wanted_s is not None:
            most_s = (now_s - self._since_s) * _SLEW
            self._offset_s += max(-most_s, min(self._wanted_s - self._offset_s, most_s))
        self._since_s = now_s
