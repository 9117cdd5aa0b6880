"""The use that a request makes of the cache of answers, and the cost of an answer from there."""

import attrs

from gateway.domain.cache_rules import CacheResult
from gateway.domain.price import multiply_ppm
from gateway.request_context import RequestContext
from gateway.routing.target import Target


@attrs.define(eq=False)
class CacheUse:
    """A request's use of the cache of answers. A request that joined another one pays the same as for a hit.

    Attributes:
        target: the target whose answer is given, at its current price; None: a provider is asked.
        answered: the model named in that answer; see ``Attempt.answered``.
        hit_price_ppm: the share of the price that is charged, in parts per million.
        saved_nanos: what a given answer has saved, once it is charged.
    """

    result: CacheResult = "miss"
    target: Target | None = None
    answered: str = ""
    hit_price_ppm: int = 0
    saved_nanos: int = 0

    def charge(self, ctx: RequestContext) -> int:
        """Return what a given answer costs, in nano-USD, and set ``saved_nanos``; 0 if none was given."""
        if self.target is None:
            return 0
        price = self.target.charge(self.answered, ctx.usage, ctx.inference)
        cost = multiply_ppm(price, self.hit_price_ppm)
        self.saved_nanos = price - cost
        return cost
