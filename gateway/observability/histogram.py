"""A histogram with fixed bounds."""

from bisect import bisect_left
from collections.abc import Iterator


class Histogram:
    """Counts values by size. ``bounds`` are inclusive and ascend. A last bucket counts all larger values.

    ``total`` is the sum of the values.
    """

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def accumulate(self) -> Iterator[tuple[float, int]]:
        """Yield each bound, and finally infinity, with the number of values up to it."""
        cumulative_count = 0
        for upper_bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            cumulative_count += count
            yield upper_bound, cumulative_count
