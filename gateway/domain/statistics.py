"""The last so many figures of a kind, and what lies where among them."""

from array import array
from collections.abc import Iterator, Sequence


class RingBuffer:
    """The last ``most`` figures, which are whole numbers of 64 bits; a new one takes the place of the oldest.

    A figure costs a place in an array and nothing else. Their order is lost.
    """

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
        """One more."""
        if len(self._figures) < self._most:
            self._figures.append(figure)
            return
        self._figures[self._next] = figure
        self._next = (self._next + 1) % self._most


def find_percentile(ordered: Sequence[int], percent: int) -> int:
    """The least of some figures, which are in order, that at least ``percent`` of them are not above: nearest rank."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]
