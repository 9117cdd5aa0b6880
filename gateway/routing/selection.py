"""Which channel serves a call next. Pure: how every channel stands and two dice in, one channel out.

Among the channels that may serve it and can at this moment: the highest priority first; among equals two are drawn by
weight, and the first is taken unless the second is less busy for its weight (the power of two choices: nearly as even
as asking all of them, and no channel is flooded because it looks idle for an instant). Where little is under way it is
the weights alone that decide. A caller that says what its prompts have in common gets the same channel for them, as
long as that one can: providers keep caches.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")


@attrs.frozen
class Candidate(Generic[T]):
    """One way to serve a call that is open at this moment.

    Attributes:
        what: whatever is chosen by this.
        name: of the channel, for sticky choices.
        sure: it is known to offer the model; a synchronised channel that has not answered yet only may.
        priority: higher ones are exhausted before lower ones are asked.
        weight: its part among equals, its share while it warms up counted in.
        share: of its usual calls, below 1 while it warms up.
        running: calls under way.
    """

    what: T
    name: str
    sure: bool = True
    priority: int = 0
    weight: float = 1.0
    share: float = 1.0
    running: int = 0


def choose(candidates: Sequence[Candidate[T]], affinity_key: str | None, rng: tuple[float, float]) -> T | None:
    """The candidate to take; None where there is none.

    Args:
        candidates: all that are open now, in no order that matters but to break ties.
        sticky: what the caller's calls have in common; None leaves it to weight and load.
        dice: two numbers from 0 to below 1.
    """
    equals = _list_best(candidates)
    lower = _list_lower(candidates, equals)
    if lower and (warm := max(candidate.share for candidate in equals)) < 1:
        # What has just come up again is not well enough for all there is: the rest goes on to the next priority.
        if rng[1] >= warm:
            return choose(lower, affinity_key, (rng[0], (rng[1] - warm) / (1 - warm)))
        rng = rng[0], rng[1] / warm
    if len(equals) <= 1:
        return equals[0].what if equals else None
    if affinity_key is not None:
        return max(equals, key=lambda candidate: _score(candidate, affinity_key)).what
    first = _draw(equals, rng[0])
    second = _draw([candidate for candidate in equals if candidate is not first], rng[1])
    # Only where that evens things out: the second would be no fuller with this call than the first is without it. The
    # fuller of the two by any other measure would leave a light channel idle, or flood it, while there are few calls.
    moves = (second.running + 1) * first.weight <= first.running * second.weight
    return (second if moves else first).what


def _list_best(candidates: Sequence[Candidate[T]]) -> list[Candidate[T]]:
    """Those of the highest priority among the sure ones, else among the others."""
    best: tuple[bool, int] | None = None
    equals: list[Candidate[T]] = []
    for candidate in candidates:
        rank = candidate.sure, candidate.priority
        if best is None or rank > best:
            best, equals = rank, [candidate]
        elif rank == best:
            equals.append(candidate)
    return equals


def _list_lower(candidates: Sequence[Candidate[T]], best: Sequence[Candidate[T]]) -> list[Candidate[T]]:
    """Those of lower priorities that know the model as surely: a guess is no way to spare one that warms up."""
    if len(best) == len(candidates):
        return []
    sure, priority = best[0].sure, best[0].priority
    return [candidate for candidate in candidates if candidate.sure == sure and candidate.priority != priority]


def _draw(candidates: Sequence[Candidate[T]], rng: float) -> Candidate[T]:
    """One by weight."""
    point = rng * sum(candidate.weight for candidate in candidates)
    for candidate in candidates:
        point -= candidate.weight
        if point < 0:
            return candidate
    return candidates[-1]


def _score(candidate: Candidate[T], affinity_key: str) -> float:
    """Weighted rendezvous hashing: where one channel goes, only its own callers move."""
    digest = hashlib.blake2b(
        f"{candidate.name}\0{affinity_key}".encode("utf-8", "surrogatepass"), digest_size=6
    ).digest()
    point = (int.from_bytes(digest) + 1) / (2**48 + 1)
    return candidate.weight / -math.log(point)
