"""A spending cap: how much, over which period, and how its end is told."""

from typing import Literal

import attrs

QuotaPeriod = Literal["none", "lifetime", "daily", "monthly"]


@attrs.frozen
class Quota:
    """A cap in nano-USD; ``period`` "none" means uncapped.

    ``status`` overrides the HTTP status of its exhaustion: 403 or 429, None for the period's own.
    """

    limit_nanos: int | None = None
    period: QuotaPeriod = "none"
    status: Literal[403, 429] | None = None


NO_QUOTA = Quota()
