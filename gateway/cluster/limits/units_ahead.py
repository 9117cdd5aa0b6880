"""Units of a rate that the server has counted already, so that the next requests need not ask for them."""

import math

from gateway.domain.rate_limit import GcraBucket

AHEAD_S = 0.05
"""As many units are taken ahead as are used in this time at the present rate."""
KEPT_S = 0.25
"""What is not used by then is dropped."""


class UnitsAhead:
    """One rate of one subject at this gateway: its bucket as last heard of, and the units taken ahead of it.

    ``bucket`` holds only what requests have used. ``reported``: ``tat``, by the gateway's clock, of what was used while
    the server was away and it knows by now; see ``AloneLimiter``.
    """

    __slots__ = ("_per_s", "_seen", "bucket", "limit", "reported", "units", "until")

    def __init__(self, bucket: GcraBucket) -> None:
        self.bucket = bucket
        self.units = self.limit = 0
        self.until = self.reported = 0.0
        self._per_s = self._seen = 0.0

    def has(self, cost: int, limit: int, now: float) -> bool:
        """Return whether ``cost`` units are there, taken under ``limit``. ``now`` is the gateway's own clock."""
        return self.units >= cost and self.until > now and self.limit == limit

    def note_use(self, cost: int, now: float) -> None:
        """Count ``cost`` for the rate, an average over a second."""
        self._per_s = self._per_s * math.exp(self._seen - now) + cost
        self._seen = now

    def find_wish(self, cost: int, most: int, now: float) -> int:
        """Return how many units to take ahead, at most ``most``; none if a request of ``cost`` could not use them."""
        units = min(int(self._per_s * math.exp(self._seen - now) * AHEAD_S), most)
        return units if units >= cost else 0

    def put(self, units: int, limit: int, now: float) -> None:
        """Keep ``units`` taken under ``limit``."""
        self.units, self.limit, self.until = units, limit, now + KEPT_S

    def give_up(self, now: float) -> int:
        """Return what may be given back to the server; nothing is left here."""
        units, self.units = self.units, 0
        return units if self.until > now else 0
