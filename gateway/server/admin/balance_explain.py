"""Explain how one of several equal channels is chosen: by their weights, or by what was measured of them."""

from collections.abc import Sequence

from gateway.domain.price import NANOS_PER_USD
from gateway.domain.route import BalanceStrategy
from gateway.frozen import frozen
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.selection import Candidate
from gateway.routing.target import Target
from gateway.server.admin.explanation import ExplainedScore, ScoreUnit

_UNITS: dict[BalanceStrategy, ScoreUnit] = {
    "latency": "seconds",
    "throughput": "seconds_per_token",
    "cost": "usd_per_million_tokens",
}
_USD_PER_MILLION = 1_000_000 / NANOS_PER_USD
"""Dollars per million tokens in one nano-USD per token."""


@frozen
class Prospect:
    """The share of new requests that a channel gets. ``score`` is None unless the balance is by measurement."""

    chance: float
    score: ExplainedScore | None = None


NO_PROSPECT = Prospect(0.0)
"""A channel that gets no new requests now, because others precede it."""


def find_prospects(
    load_balancer: LoadBalancer, candidates: Sequence[Candidate[Target]], balance: BalanceStrategy, *, streams: bool
) -> list[Prospect]:
    """Return the prospects of ``candidates``, equal channels for one model, in their order."""
    if balance == "weight" or not candidates:
        total = sum(candidate.weight for candidate in candidates)
        return [Prospect(candidate.weight / total) for candidate in candidates]
    from gateway.routing.measured_balance import compute_chances, find_score  # noqa: PLC0415 - only if measured

    measured, now_s = load_balancer.measured_balance, load_balancer.now
    last = None if measured is None else measured.find_last(balance, candidates[0].item)
    scores = [find_score(candidate, balance, now_s, streams=streams) for candidate in candidates]
    factor = _USD_PER_MILLION if balance == "cost" else 1.0
    return [
        Prospect(
            chance,
            ExplainedScore(
                None if score.amount is None else round(score.amount * factor, 6),
                _UNITS[balance],
                round(score.success_share, 4),
                is_last=candidate.name == last,
            ),
        )
        for candidate, score, chance in zip(candidates, scores, compute_chances(candidates, scores, last), strict=True)
    ]
