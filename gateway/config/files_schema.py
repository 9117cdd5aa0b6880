"""``[files]`` and ``[batches]``: clients' files, and batches of requests in them."""

from decimal import Decimal

import attrs

from gateway.domain.client_file import FileRules
from gateway.domain.price import ONE_PPM, is_share
from gateway.frozen import frozen
from gateway.parsing import about, between, must

_DAY_MS = 24 * 3_600 * 1000


@frozen
class FilesSection:
    """``[files]``: files that clients send to /v1/files and /v1/uploads, and that batches write."""

    max_mb: int = attrs.field(
        default=512,
        metadata=about(
            "maximum size of a file (0 = no limit); store.media_url sets where files are kept", between(0, 1_000_000)
        ),
    )
    max_total_mb_per_account: int = attrs.field(
        default=10_240,
        metadata=about("maximum total size of an account's files (0 = no limit)", between(0, 1_000_000_000)),
    )
    keep_days: int = attrs.field(
        default=30,
        metadata=about("days to keep a file if the client sends no expires_after (0 = forever)", between(0, 36_500)),
    )

    def rules(self) -> FileRules:
        mib = 1024**2
        return FileRules(self.max_mb * mib, self.max_total_mb_per_account * mib, self.keep_days * _DAY_MS)


@frozen
class BatchesSection:
    """``[batches]``: requests that clients send as one file to /v1/batches."""

    max_active: int = attrs.field(
        default=8,
        metadata=about(
            "maximum number of batch requests that run at the same time, across all batches", between(1, 10_000)
        ),
    )
    price_multiplier: float = attrs.field(
        default=1.0,
        metadata=about(
            "price multiplier for requests in new batches; 0.5 charges half the price",
            must("a number above 0 and up to 1, of at most six decimals", is_share),
        ),
    )

    @property
    def multiplier_ppm(self) -> int:
        return int(Decimal(str(self.price_multiplier)) * ONE_PPM)
