"""Balancing by measurement: of two channels, a request goes to the one with the lower score for its load.

The score is multiplied by the number of running requests plus one, because otherwise all requests would go to the best
channel. A channel that is not measured yet counts as better than the other, therefore it is tried. Some requests
explore: they are drawn by weight alone, because a channel without requests would never be seen to have become better.
The channel that got the last request gets the next one, too, unless the other is clearly better.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from typing import TypeVar

from gateway.domain.price import NANOS_PER_USD
from gateway.domain.route import BalanceStrategy
from gateway.frozen import frozen
from gateway.routing.channel_state import ChannelSlot
from gateway.routing.performance import DecayingRatio, Performance
from gateway.routing.selection import Candidate, choose, draw_by_weight
from gateway.routing.target import Target

EXPLORED_SHARE = 0.05
"""The share of requests that are drawn by weight alone."""
HYSTERESIS = 0.1
"""By how much a channel must be better than the one with the last request."""
MIN_SUCCESS_SHARE = 0.02
"""A lower share of successes counts as this one."""
MIN_NANOS_PER_TOKEN = 0.01 * NANOS_PER_USD / 1_000_000
"""The assumed cost of a free model, one cent per million tokens. Otherwise no load would be too high for it."""
UNKNOWN_FACTOR = 0.5
"""The score of a channel that is not measured yet, as a part of the other's."""
MAX_MODELS = 1_000
"""Maximum number of models per key of which measurements are kept, and of models whose last channel is kept."""
_MIN_S = 0.001

T = TypeVar("T")


@frozen
class Score:
    """How good a channel is; lower is better.

    ``amount``: seconds, seconds per token, or nano-USD per token; None: unknown. ``success_share``: the share of its
    attempts that succeeded.
    """

    amount: float | None
    success_share: float


class MeasuredBalance:
    """Measures attempts, and chooses channels by the measurements.

    The measurements of a key are kept with the key's state, and end with it.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[BalanceStrategy, str], str] = {}

    def measure(self, slot: ChannelSlot, model: str, *, streams: bool) -> None:
        """Have the outcome of an attempt added to the key's measurements of ``model``, the provider's name."""
        performance_by_model = slot.key.measured
        performance = performance_by_model.get(model)
        if performance is None:
            if len(performance_by_model) >= MAX_MODELS:
                del performance_by_model[next(iter(performance_by_model))]
            performance = performance_by_model[model] = Performance()
        slot.performance, slot.streams = performance, streams

    def choose(
        self,
        candidates: Sequence[Candidate[Target]],
        balance: BalanceStrategy,
        rng: tuple[float, float],
        *,
        now_s: float,
        streams: bool,
    ) -> Target | None:
        """Choose a target by ``balance``, and remember it as the last one of its model. Return None without candidates.

        ``rng`` has two random numbers from 0 to below 1.
        """
        if not candidates:
            return None
        last_key = balance, candidates[0].item.endpoint_key[1]
        pick = partial(
            pick_by_measurements,
            partial(find_score, balance=balance, now_s=now_s, streams=streams),
            self._last.get(last_key),
        )
        target = choose(candidates, None, rng, pick=pick)
        if target is not None:
            self._last[last_key] = target.channel.name
            if len(self._last) > MAX_MODELS:
                del self._last[next(iter(self._last))]
        return target

    def find_last(self, balance: BalanceStrategy, target: Target) -> str | None:
        """Return the name of the channel that got the last request for the model of ``target``; None if unknown."""
        return self._last.get((balance, target.endpoint_key[1]))


def pick_by_measurements(
    get_score: Callable[[Candidate[T]], Score],
    last: str | None,
    candidates: Sequence[Candidate[T]],
    rng: tuple[float, float],
) -> Candidate[T]:
    """Pick the better of two candidates drawn by weight; for a small share of requests, only one is drawn.

    ``last`` is the name of the candidate that got the last request, or None before the first.
    """
    if rng[0] < EXPLORED_SHARE:
        return draw_by_weight(candidates, rng[0] / EXPLORED_SHARE)
    first = draw_by_weight(candidates, (rng[0] - EXPLORED_SHARE) / (1 - EXPLORED_SHARE))
    second = draw_by_weight([candidate for candidate in candidates if candidate is not first], rng[1])
    return _pick_better((first, second), (get_score(first), get_score(second)), last)


def compute_chances(candidates: Sequence[Candidate[T]], scores: Sequence[Score], last: str | None) -> list[float]:
    """Return the probability with which ``pick_by_measurements`` picks each of ``candidates``.

    ``scores`` has the scores of the candidates, in their order.
    """
    total = sum(candidate.weight for candidate in candidates)
    if len(candidates) <= 1 or total <= 0:
        return [1.0 / len(candidates)] * len(candidates)
    chances = [EXPLORED_SHARE * candidate.weight / total for candidate in candidates]
    for (i, first), (j, second) in permutations(enumerate(candidates), 2):
        if total <= first.weight:
            continue  # the others have no weight, and are not drawn
        chance_of_pair = first.weight / total * second.weight / (total - first.weight)
        better_candidate = _pick_better((first, second), (scores[i], scores[j]), last)
        chances[i if better_candidate is first else j] += (1 - EXPLORED_SHARE) * chance_of_pair
    return chances


def _pick_better(
    pair: tuple[Candidate[T], Candidate[T]], scores: tuple[Score, Score], last: str | None
) -> Candidate[T]:
    """Return the better of two candidates. The one that got the last request must be clearly worse to lose."""
    first, second = pair
    if second.name == last:
        first, second = second, first
        scores = scores[1], scores[0]
    known_amounts = [score.amount for score in scores if score.amount is not None]
    assumed_amount = known_amounts[0] * UNKNOWN_FACTOR if known_amounts else 1.0
    first_cost, second_cost = (
        (assumed_amount if score.amount is None else score.amount)
        / score.success_share
        * (candidate.running + 1)
        / max(candidate.share, MIN_SUCCESS_SHARE)
        for score, candidate in zip(scores, (first, second), strict=True)
    )
    return second if second_cost < first_cost * (1 - HYSTERESIS if first.name == last else 1) else first


def compute_score(
    performances: Sequence[Performance], balance: BalanceStrategy, now_s: float, *, streams: bool
) -> Score:
    """Return the score of a channel from the measurements of its keys. ``streams`` is for a streamed request."""
    failed_share = _merge([performance.failed_share for performance in performances], now_s) or 0.0
    success_share = max(1 - failed_share, MIN_SUCCESS_SHARE)
    if balance == "throughput":
        rate = _merge([performance.tokens_per_s for performance in performances], now_s)
        return Score(None if rate is None else 1 / max(rate, _MIN_S), success_share)
    if balance == "cost":
        nanos = _merge([performance.nanos_per_token for performance in performances], now_s)
        return Score(None if nanos is None else max(nanos, MIN_NANOS_PER_TOKEN), success_share)
    waits = [performance.first_event_s if streams else performance.answer_s for performance in performances]
    wait_s = _merge(waits, now_s)
    return Score(None if wait_s is None else max(wait_s, _MIN_S), success_share)


def _merge(ratios: Sequence[DecayingRatio], now_s: float) -> float | None:
    """Return the mean of the known ratios, each weighted by its number of observations. None if none is known."""
    weighted_ratios = [
        (ratio, ratio_average.count(now_s))
        for ratio_average in ratios
        if (ratio := ratio_average.find(now_s)) is not None
    ]
    total = sum(weight for _, weight in weighted_ratios)
    return sum(ratio * weight for ratio, weight in weighted_ratios) / total if weighted_ratios else None


def find_score(candidate: Candidate[Target], balance: BalanceStrategy, now_s: float, *, streams: bool) -> Score:
    """Return the score of a candidate's channel for its model."""
    target = candidate.item
    keys = target.state.keys
    performances = [key.measured[target.model] for key in keys if target.model in key.measured]
    return compute_score(performances, balance, now_s, streams=streams)
