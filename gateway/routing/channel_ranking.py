"""An order of channels as priorities: which is asked first, and which only where those before it cannot."""

from collections.abc import Sequence

HIGHEST, LOWEST = 1_000_000, -1_000_000
"""What a priority may be."""


class NoCapacity(Exception):
    """An order cannot be had beside what is taken; ``places`` of the order are those that are in its way."""

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__(places)
        self.places = places


def rank(taken: Sequence[int | None]) -> list[int]:
    """A priority for every place of an order, lower than that of the place before it.

    ``taken`` has those that cannot be changed, and None where one is to be found. Neighbours that cannot be changed may
    have the same: which of them is asked first is not for an order to say. Raises ``NoCapacity``.
    """
    ranked: list[int] = []
    waiting = 0
    upper = HIGHEST + 1
    for place, lower in enumerate(taken):
        if lower is None:
            waiting += 1
            continue
        first = place - waiting
        if upper - lower <= waiting and not (waiting == 0 and upper == lower):
            raise NoCapacity([*([first - 1] if first else []), place])
        ranked += [lower + number for number in range(waiting, -1, -1)]
        upper, waiting = lower, 0
    if not ranked:
        return list(range(waiting - 1, -1, -1))
    if upper - waiting < LOWEST:
        raise NoCapacity([len(ranked) - 1])
    return ranked + [upper - number for number in range(1, waiting + 1)]
