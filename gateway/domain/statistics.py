"""The newest figures of a kind, and their percentiles."""

from array import array
from collections.abc import Iterator, Sequence


class RingBuffer:
    """The newest ``most`` figures, as 64-bit integers in no particular order."""

    __slots__ = ("_figures", "_most", "_next")

    def __init__(self, most: int) -> None:
        self._figures = array("q")
        self._most = most
        self._next = 0

    def __len__(self) -> int:
        return len(self._figures)

    def __iter__(self) -> Iterator[int]:
        return iter(self._figures)

    def add(self, figure: int) -> None:
        if len(self._figures) < self._most:
            self._figures.append(figure)
            return
        self._figures[self._next] = figure
        self._next = (self._next + 1) % self._most


def find_percentile(ordered: Sequence[int], percent: int) -> int:
    """Return a percentile of the ``ordered`` figures by the nearest-rank method."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]
