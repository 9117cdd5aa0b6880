"""The clock for deleting old records and for timeouts of jobs; it distrusts a clock that is far ahead.

Otherwise a machine whose clock is wrong by days would delete records at startup and end every job. Time therefore
continues from the newest stored record, and a clock far ahead of that is trusted after a day of running.
"""

import time
from collections.abc import Callable

JUMP_ACCEPTED_AFTER_S = 24 * 3_600.0
WARN_AFTER_S = 24 * 3_600.0
"""Distance between the clock and the newest record, in seconds, that is reported in the log."""
SLACK_S = 60.0


class RetentionClock:
    """Unix seconds, with a plausibility check.

    ``clock`` is the machine's clock. ``newest_s`` is the time of the newest record, in Unix seconds; None without
    records. ``monotonic`` is a clock in seconds that cannot be set.
    """

    def __init__(
        self, clock: Callable[[], float], newest_s: float | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        now_s = clock()
        self.ahead_s = 0.0 if newest_s is None else now_s - newest_s
        self._base_s = now_s - max(0.0, self.ahead_s)
        self._base_monotonic_s = monotonic()
        self._doubted_since_s: float | None = None

    def now(self) -> float:
        """Return the machine's time. For a day after a jump ahead, return the time that the monotonic clock counted."""
        now_s, monotonic_s = self._clock(), self._monotonic()
        expected_s = self._base_s + monotonic_s - self._base_monotonic_s
        if now_s > expected_s + SLACK_S:
            if self._doubted_since_s is None:
                self._doubted_since_s = monotonic_s
            if monotonic_s - self._doubted_since_s < JUMP_ACCEPTED_AFTER_S:
                return expected_s
        self._base_s, self._base_monotonic_s, self._doubted_since_s = now_s, monotonic_s, None
        return now_s
