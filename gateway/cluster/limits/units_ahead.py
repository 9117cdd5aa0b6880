"""Rate units that the server has already counted, so that the next requests need no command of their own."""

import math

from gateway.domain.rate_limit import GcraBucket

AHEAD_S = 0.05
"""How many seconds of use at the present rate are taken ahead."""
KEPT_S = 0.25
"""Seconds after which unused units are dropped."""


class UnitsAhead:
    """One rate of one subject at this gateway: its last known bucket, and the units taken ahead from it.

    ``bucket`` counts only units used by requests. ``reported`` is the ``tat``, by the gateway's clock, up to which
    usage during an absence of the server is reported; see ``LocalFallbackLimiter``.
    """

    __slots__ = ("_last_use_s", "_use_per_s", "bucket", "limit", "reported", "units", "valid_until_s")

    def __init__(self, bucket: GcraBucket) -> None:
        self.bucket = bucket
        self.units = self.limit = 0
        self.valid_until_s = self.reported = 0.0
        self._use_per_s = self._last_use_s = 0.0

    def covers(self, cost: int, limit: int, now_s: float) -> bool:
        """Return whether ``cost`` units taken under ``limit`` are available. ``now_s`` is the gateway's own clock.

        A request that costs nothing needs a unit, too: without one, the subject may be in debt.
        """
        return self.units >= (cost or 1) and self.valid_until_s > now_s and self.limit == limit

    def record_use(self, cost: int, now_s: float) -> None:
        """Count ``cost`` units in the rate of use, which is averaged over a second."""
        self._use_per_s = self._use_per_s * math.exp(self._last_use_s - now_s) + cost
        self._last_use_s = now_s

    def compute_ahead_units(self, cost: int, max_units: int, now_s: float) -> int:
        """Return how many units to take ahead, at most ``max_units``; 0 if a request of ``cost`` could not use them."""
        units = min(int(self._use_per_s * math.exp(self._last_use_s - now_s) * AHEAD_S), max_units)
        return units if units >= cost else 0

    def put(self, units: int, limit: int, now_s: float) -> None:
        self.units, self.limit, self.valid_until_s = units, limit, now_s + KEPT_S

    def return_units(self, now_s: float) -> int:
        units, self.units = self.units, 0
        return units if self.valid_until_s > now_s else 0
