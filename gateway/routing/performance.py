"""What was measured of a model at a channel and provider key: decaying averages of speed, failures and price.

An average forgets by requests and by time: after ``HALF_LIFE_REQUESTS`` further requests, or after ``HALF_LIFE_S``
seconds, an observation has half of its weight. An average of which almost nothing is left counts as unknown.
"""

import attrs

from gateway.domain.usage import Usage

HALF_LIFE_REQUESTS = 30
HALF_LIFE_S = 300.0
MIN_REQUESTS = 0.1
"""The weight, in requests, below which an average counts as unknown."""
_HALF = 0.5


@attrs.define(eq=False)
class DecayingRatio:
    """A decaying sum divided by another: an average, or a rate such as tokens per second.

    Attributes:
        numerator, denominator: the decayed sums as of ``at``.
        requests: the number of observations, each with the weight that is left of it.
        at: the time of the last observation, in seconds of a monotonic clock.
    """

    numerator: float = 0.0
    denominator: float = 0.0
    requests: float = 0.0
    at: float = 0.0

    def add(self, numerator: float, denominator: float, now_s: float) -> None:
        """Add an observation at ``now_s`` (monotonic), or at the time of the last one if ``now_s`` is before that."""
        decay: float = _HALF ** (1 / HALF_LIFE_REQUESTS + max(0.0, now_s - self.at) / HALF_LIFE_S)
        self.numerator = self.numerator * decay + numerator
        self.denominator = self.denominator * decay + denominator
        self.requests = self.requests * decay + 1
        self.at = max(now_s, self.at)

    def count(self, now_s: float) -> float:
        """Return how many observations are left, each with its weight."""
        return float(self.requests * _HALF ** (max(0.0, now_s - self.at) / HALF_LIFE_S))

    def find(self, now_s: float) -> float | None:
        """Return the ratio; None if it is unknown, or too old."""
        if self.denominator <= 0 or self.count(now_s) < MIN_REQUESTS:
            return None
        return self.numerator / self.denominator


@attrs.define(eq=False)
class Performance:
    """The measurements of one model at one channel and key.

    Attributes:
        first_event_s: seconds to the first event of streams.
        answer_s: seconds to the end of answers that are not streamed.
        tokens_per_s: completion tokens per second of the whole answer, streamed or not.
        failed_share: the share of attempts that failed.
        cached_share: the share of prompt tokens that the provider had cached.
        nanos_per_token: what was charged per token of prompts and answers, in nano-USD.
    """

    first_event_s: DecayingRatio = attrs.field(factory=DecayingRatio)
    answer_s: DecayingRatio = attrs.field(factory=DecayingRatio)
    tokens_per_s: DecayingRatio = attrs.field(factory=DecayingRatio)
    failed_share: DecayingRatio = attrs.field(factory=DecayingRatio)
    cached_share: DecayingRatio = attrs.field(factory=DecayingRatio)
    nanos_per_token: DecayingRatio = attrs.field(factory=DecayingRatio)

    def note_answered(self, waited_s: float, now_s: float, *, streams: bool) -> None:
        """Add the first event of a stream (``streams``), or a complete answer, after ``waited_s`` seconds."""
        self.failed_share.add(0, 1, now_s)
        (self.first_event_s if streams else self.answer_s).add(waited_s, 1, now_s)

    def note_failed(self, now_s: float) -> None:
        """Add a failed attempt."""
        self.failed_share.add(1, 1, now_s)

    def note_end(self, usage: Usage, cost_nanos: int, took_s: float, now_s: float) -> None:
        """Add a completed answer, which took ``took_s`` seconds from the request to its end."""
        if usage.completion_tokens:
            self.tokens_per_s.add(usage.completion_tokens, took_s, now_s)
        if usage.prompt_tokens:
            self.cached_share.add(min(usage.cached_tokens, usage.prompt_tokens), usage.prompt_tokens, now_s)
        tokens = usage.prompt_tokens + usage.completion_tokens
        if tokens:
            self.nanos_per_token.add(cost_nanos, tokens, now_s)
