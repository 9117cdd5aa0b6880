"""What many samples come to: percentiles, medians with their spread, ratios."""

import statistics
from collections.abc import Mapping, Sequence

import attrs


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which ``part`` per cent of them lie, between neighbours in proportion. NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    place = (len(ordered) - 1) * part / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@attrs.frozen
class Spread:
    """A figure over the rounds of a run."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """NaN of none."""
        if not values:
            return cls(float("nan"), float("nan"), float("nan"))
        return cls(statistics.median(values), min(values), max(values))


@attrs.frozen
class Ratio:
    """One relay's figure over another's.

    Attributes:
        of_medians: the median over the rounds of the one, over that of the other.
        each: the spread of the rounds' own ratios: what one round says, in which both had the same machine.
    """

    of_medians: float
    each: Spread

    @classmethod
    def of(cls, ours: Mapping[int, float], theirs: Mapping[int, float]) -> "Ratio":
        """From the values of each round."""
        rounds = [number for number in ours if theirs.get(number, 0) > 0]
        base = Spread.of(list(theirs.values())).median
        of_medians = Spread.of(list(ours.values())).median / base if base > 0 else float("nan")
        return cls(of_medians, Spread.of([ours[number] / theirs[number] for number in rounds]))
