"""``[bodies]``: how the bodies of requests are kept; ``requests.keep_bodies`` says of which."""

import attrs

from gateway.domain.keep_rule import DEFAULT_REDACTED, BodyBounds, RedactedKind
from gateway.frozen import frozen
from gateway.parsing import about, between

_DAY_MS = 24 * 3_600 * 1000


@frozen
class BodiesSection:
    """``[bodies]``: kept bodies of requests, sealed in the data folder."""

    keep_days: int = attrs.field(default=7, metadata=about("days to keep bodies", between(1, 3_650)))
    max_gb: int = attrs.field(
        default=10, metadata=about("disk space for bodies; the oldest are deleted first", between(1, 100_000))
    )
    max_kb: int = attrs.field(
        default=256, metadata=about("the most of one body; of a longer one head and tail are kept", between(1, 16_384))
    )
    redact: tuple[RedactedKind, ...] = attrs.field(
        default=DEFAULT_REDACTED, metadata=about('what is replaced before a body is kept: also "phones" and "ips"')
    )
    media: bool = attrs.field(
        default=False, metadata=about("keep images and audio in JSON, too, not only their type, size and SHA-256")
    )

    def bounds(self) -> BodyBounds:
        return BodyBounds(self.max_gb * 1024**3, self.keep_days * _DAY_MS, self.max_kb * 1024)
