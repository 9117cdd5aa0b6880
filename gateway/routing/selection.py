"""Selection of a channel, as a pure function of the state of all channels and two random numbers.

Among the available channels the highest priority goes first. Among equals two are drawn by weight, and the first is
taken unless the second is less busy for its weight (the power of two choices: nearly as even as comparing all, and no
channel is flooded because it looks idle for an instant). With few requests under way the weights alone decide. Requests
with one affinity key get the same channel as long as it is available, because providers cache prompts.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

from gateway.frozen import frozen

T = TypeVar("T")


@frozen
class Candidate(Generic[T]):
    """A channel that is available.

    Attributes:
        what: the value to return for it.
        name: of the channel, for affinity.
        sure: it is known to serve the model; before its first synchronisation a channel only may.
        priority: higher priorities go first.
        weight: its weight among equals, times its share.
        share: the share of its usual requests while it warms up; 1 after that.
        running: attempts under way.
    """

    what: T
    name: str
    sure: bool = True
    priority: int = 0
    weight: float = 1.0
    share: float = 1.0
    running: int = 0


def choose(candidates: Sequence[Candidate[T]], affinity_key: str | None, rng: tuple[float, float]) -> T | None:
    """Return the candidate to take; None if there is none.

    ``candidates``: all available channels; their order only breaks ties. ``affinity_key``: requests with the same key
    get the same channel; None: weight and load decide. ``rng``: two random numbers from 0 to below 1.
    """
    equals = _list_best(candidates)
    lower = _list_lower(candidates, equals)
    if lower and (warm := max(candidate.share for candidate in equals)) < 1:
        # While the highest priority warms up, the rest of the requests goes to the next one.
        if rng[1] >= warm:
            return choose(lower, affinity_key, (rng[0], (rng[1] - warm) / (1 - warm)))
        rng = rng[0], rng[1] / warm
    if len(equals) <= 1:
        return equals[0].what if equals else None
    if affinity_key is not None:
        return max(equals, key=lambda candidate: _score(candidate, affinity_key)).what
    first = _draw(equals, rng[0])
    second = _draw([candidate for candidate in equals if candidate is not first], rng[1])
    # Only if the second, with this request, is no fuller than the first without it. Any other comparison leaves a light
    # channel idle, or floods it, while there are few requests.
    moves = (second.running + 1) * first.weight <= first.running * second.weight
    return (second if moves else first).what


def _list_best(candidates: Sequence[Candidate[T]]) -> list[Candidate[T]]:
    """Return those of the highest priority among the sure ones, else among the others."""
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
    """Return those of lower priorities that are equally sure: an unsure channel is no relief for one that warms up."""
    if len(best) == len(candidates):
        return []
    sure, priority = best[0].sure, best[0].priority
    return [candidate for candidate in candidates if candidate.sure == sure and candidate.priority != priority]


def _draw(candidates: Sequence[Candidate[T]], rng: float) -> Candidate[T]:
    """Draw one by weight."""
    point = rng * sum(candidate.weight for candidate in candidates)
    for candidate in candidates:
        point -= candidate.weight
        if point < 0:
            return candidate
    return candidates[-1]


def _score(candidate: Candidate[T], affinity_key: str) -> float:
    """Score by weighted rendezvous hashing: if a channel goes, only its own requests move."""
    digest = hashlib.blake2b(
        f"{candidate.name}\0{affinity_key}".encode("utf-8", "surrogatepass"), digest_size=6
    ).digest()
    point = (int.from_bytes(digest) + 1) / (2**48 + 1)
    return candidate.weight / -math.log(point)
