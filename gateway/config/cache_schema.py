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
        metadata=about("how long answers are reused, in seconds (0 = only where a key or a route says so)", _TTL),
    )
    request_ttl_s: int = attrs.field(
        default=0, metadata=about('highest "Cache-Control: max-age" that a request may ask for (0 = none)', _TTL)
    )
    max_gb: int = attrs.field(
        default=5, metadata=about("disk space for answers; the oldest are deleted first", between(1, 100_000))
    )
    scope: CacheScope = attrs.field(
        default="account",
        metadata=about(
            'which keys share cached answers: "account": keys of the same account; "key": none (each key has its '
            'own); "all": all keys'
        ),
    )
    hit_price: float = attrs.field(
        default=0.0, metadata=about("price of a cached answer, as a share of the full price", between(0, 1))
    )
    tools: bool = attrs.field(default=False, metadata=about("also cache answers to requests with tools"))

    @property
    def hit_price_ppm(self) -> int:
        return round(self.hit_price * ONE_PPM)

    def find_max_bytes(self) -> int:
        return self.max_gb * 1024**3
