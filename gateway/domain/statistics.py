"""The newest figures of a kind, and their percentiles."""

from array import array
from collections.abc import Iterator, Sequence


class RingBuffer:
    """The newest ``max_values`` figures, as 64-bit integers in no particular order."""

    __slots__ = ("_figures", "_max_values", "_next")

    def __init__(self, max_values: int) -> None:
        self._figures = array("q")
        self._max_values = max_values
        self._next = 0

    def __len__(self) -> int:
        return len(self._figures)

    def __iter__(self) -> Iterator[int]:
        return iter(self._figures)

    def add(self, figure: int) -> None:
        if len(self._figures) < self._max_values:
            self._figures.append(figure)
            return
        self._figures[self._next] = figure
        self._next = (self._next + 1) % self._max_values


def find_percentile(sorted_values: Sequence[int], percent: int) -> int:
    """Return a percentile of ``sorted_values`` by the nearest-rank method. There must be at least one value."""
    return sorted_values[max(0, -(-percent * len(sorted_values) // 100) - 1)]
