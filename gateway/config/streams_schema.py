"""``[streams]``: streams that clients can take up again."""

import attrs

from gateway.frozen import frozen
from gateway.parsing import about, between


@frozen
class StreamsSection:
    """``[streams]``: streams that clients can take up again, see ``x-gateway-resumable``."""

    keep_s: int = attrs.field(
        default=600,
        metadata=about("how long a stream goes on without a reader, and can be read after its end", between(1, 86_400)),
    )
    max_mb: int = attrs.field(
        default=16, metadata=about("the most of one stream; a longer one cannot be taken up again", between(1, 1_024))
    )
