"""``[cache]``: answers that are given again to equal requests."""

import attrs

from gateway.domain.cache_rules import MAX_TTL_S, CacheScope
from gateway.domain.price import ONE_PPM
from gateway.frozen import frozen
from gateway.parsing import about, between

_TTL = between(0, MAX_TTL_S)


@frozen
class CacheSection:
    """``[cache]``: answers that are given again to equal requests."""

    ttl_s: int = attrs.field(
        default=0,
        metadata=about("seconds for which an answer is given again (0 = only where a key or a route says so)", _TTL),
    )
    request_ttl_s: int = attrs.field(
        default=0,
        metadata=about('the longest "Cache-Control: max-age" that a request may ask for itself (0 = none)', _TTL),
    )
    max_gb: int = attrs.field(
        default=5, metadata=about("disk space for answers; the oldest are deleted first", between(1, 100_000))
    )
    scope: CacheScope = attrs.field(
        default="account",
        metadata=about('who shares answers: "account": the keys of an account; "key": only the same key; "all"'),
    )
    hit_price: float = attrs.field(
        default=0.0, metadata=about("share of the price that an answer from the cache costs", between(0, 1))
    )
    tools: bool = attrs.field(default=False, metadata=about("keep answers to requests with tools, too"))

    @property
    def hit_price_ppm(self) -> int:
        return round(self.hit_price * ONE_PPM)

    def find_max_bytes(self) -> int:
        return self.max_gb * 1024**3
