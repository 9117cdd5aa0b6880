"""The clock that the nodes of a cluster share: the clock of their store."""

from collections.abc import Callable

_SLEW = 0.01
"""How much faster or slower the clock runs to approach the store's clock, so that days and claims see no jump."""
STEP_S = 60.0
"""A larger difference is corrected at once: this machine was suspended, or the store's clock was set."""
SLOW_S = 0.2
"""The beat of a longer round trip is too imprecise and is ignored."""


class StoreClock:
    """Unix seconds by the store. Between two beats, this machine's monotonic clock measures the time.

    ``base``: Unix seconds of this machine, for the time before the first beat. It may be set at any moment without
    effect here. ``steady``: seconds of a monotonic clock that includes the time while this machine sleeps.
    """

    def __init__(self, base: Callable[[], float], steady: Callable[[], float]) -> None:
        self._base = base
        self._steady = steady
        self._wanted_s: float | None = None
        self._began_s = 0.0
        self._since_s = 0.0
        self._least_s = 0.0

    @property
    def offset_s(self) -> float:
        """How far the store's clock is ahead of this machine's."""
        return 0.0 if self._wanted_s is None else self._wanted_s + self._steady() - self._base()

    def observe(self, now_ms: int, round_trip_s: float) -> None:
        """Adopt the store's time of a beat, measured in the middle of its round trip. The first beat counts at once."""
        if round_trip_s > SLOW_S and self._wanted_s is not None:
            return
        now_s = self._steady()
        began_s = now_ms / 1000 + round_trip_s / 2 - now_s
        if self._wanted_s is None or abs(began_s - self._began_s) > STEP_S:
            self._began_s = began_s
        else:
            self._slew(now_s)
        self._wanted_s, self._since_s = began_s, now_s

    def now(self) -> float:
        if self._wanted_s is None:
            return max(self._base(), self._least_s)
        now_s = self._steady()
        if self._began_s != self._wanted_s:
            self._slew(now_s)
        return max(self._began_s + now_s, self._least_s)

    def advance_to(self, at_s: float) -> None:
        """Never return a time before ``at_s`` from now on, because another node has already begun that day."""
        self._least_s = max(self._least_s, at_s)

    def _slew(self, now_s: float) -> None:
        if self._wanted_s is not None:
            most_s = (now_s - self._since_s) * _SLEW
            self._began_s += max(-most_s, min(self._wanted_s - self._began_s, most_s))
        self._since_s = now_s
