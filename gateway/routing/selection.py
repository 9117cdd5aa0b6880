"""Selection of a channel, as a pure function of the state of all channels and two random numbers.

Among the available channels, the highest priority wins. Among equals, two are drawn by weight, and the first is taken
unless the second is less busy for its weight. This "power of two choices" is nearly as even as comparing all channels,
and does not flood a channel that looks idle for an instant. With few running requests, only the weights matter.
Requests with the same affinity key get the same channel while it is available, because providers cache prompts.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gateway.frozen import frozen

T = TypeVar("T")


@frozen
class Candidate(Generic[T]):
    """A candidate for ``choose``, which returns ``item``. ``is_certain`` is False if its model list is unknown.

    ``share`` is the part of the channel's usual requests that the candidate gets: below 1 while it warms up after a
    failure. ``weight`` is multiplied by ``share`` already.
    """

    item: T
    name: str
    is_certain: bool = True
    priority: int = 0
    weight: float = 1.0
    share: float = 1.0
    running: int = 0


def choose(
    candidates: Sequence[Candidate[T]],
    affinity_key: str | None,
    rng: tuple[float, float],
    *,
    pick: Callable[[Sequence[Candidate[T]], tuple[float, float]], Candidate[T]] | None = None,
) -> T | None:
    """Choose a candidate and return its ``item``; None without candidates.

    ``candidates`` are all available channels; their order only breaks ties. Requests with the same ``affinity_key`` get
    the same channel. Without a key ``pick`` decides among several equals, or else weight and load. ``rng`` are two
    random numbers from 0 to below 1.
    """
    equal_candidates = _list_best(candidates)
    lower = _list_lower(candidates, equal_candidates)
    if lower and (best_share := max(candidate.share for candidate in equal_candidates)) < 1:
        # While the highest priority warms up, its other requests go to the next lower priority.
        if rng[1] >= best_share:
            return choose(lower, affinity_key, (rng[0], (rng[1] - best_share) / (1 - best_share)), pick=pick)
        rng = rng[0], rng[1] / best_share
    if len(equal_candidates) <= 1:
        return equal_candidates[0].item if equal_candidates else None
    if affinity_key is not None:
        return max(equal_candidates, key=lambda candidate: _score(candidate, affinity_key)).item
    if pick is not None:
        return pick(equal_candidates, rng).item
    first = draw_by_weight(equal_candidates, rng[0])
    second = draw_by_weight([candidate for candidate in equal_candidates if candidate is not first], rng[1])
    # Take the second only if it would be, with this request, no busier than the first is without it. With few requests,
    # other comparisons would leave a channel of low weight idle, or flood it.
    takes_second = (second.running + 1) * first.weight <= first.running * second.weight
    return (second if takes_second else first).item


def _list_best(candidates: Sequence[Candidate[T]]) -> list[Candidate[T]]:
    """Return the candidates of the highest priority: among the certain ones if there are any, else among the others."""
    best_rank: tuple[bool, int] | None = None
    equal_candidates: list[Candidate[T]] = []
    for candidate in candidates:
        rank = candidate.is_certain, candidate.priority
        if best_rank is None or rank > best_rank:
            best_rank, equal_candidates = rank, [candidate]
        elif rank == best_rank:
            equal_candidates.append(candidate)
    return equal_candidates


def _list_lower(candidates: Sequence[Candidate[T]], best: Sequence[Candidate[T]]) -> list[Candidate[T]]:
    """Return the equally certain candidates of lower priorities.

    An uncertain channel must not replace a warming one.
    """
    if len(best) == len(candidates):
        return []
    is_certain, priority = best[0].is_certain, best[0].priority
    return [
        candidate for candidate in candidates if candidate.is_certain == is_certain and candidate.priority != priority
    ]


def draw_by_weight(candidates: Sequence[Candidate[T]], rng: float) -> Candidate[T]:
    """Draw a candidate by weight; ``rng`` is a random number from 0 to below 1."""
    point = rng * sum(candidate.weight for candidate in candidates)
    for candidate in candidates:
        point -= candidate.weight
        if point < 0:
            return candidate
    return candidates[-1]


def _score(candidate: Candidate[T], affinity_key: str) -> float:
    """Score a candidate by weighted rendezvous hashing: if a channel disappears, only its own requests move."""
    digest = hashlib.blake2b(
        f"{candidate.name}\0{affinity_key}".encode("utf-8", "surrogatepass"), digest_size=6
    ).digest()
    point = (int.from_bytes(digest) + 1) / (2**48 + 1)
    return candidate.weight / -math.log(point)
