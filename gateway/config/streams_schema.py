"""``[streams]``: streams that clients can take up again."""

import attrs

from gateway.frozen import frozen
from gateway.parsing import about, between


@frozen
class StreamsSection:
    """``[streams]``: streams that clients can take up again, see ``x-gateway-resumable``."""

    keep_s: int = attrs.field(
        default=600,
        metadata=about(
            "how long a stream continues without a reader, and how long it can be read after it ends",
            between(1, 86_400),
        ),
    )
    max_mb: int = attrs.field(
        default=16, metadata=about("largest stream that can be resumed, in MB", between(1, 1_024))
    )
