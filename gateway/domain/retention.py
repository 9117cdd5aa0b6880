"""Retirement: request rows are deleted for their age, and hours of traffic after them. What they cost stays known."""

import attrs


@attrs.frozen
class RetentionBatch:
    """What one commit did.

    Attributes:
        retired: rows that were deleted.
        last: the sequence of the last row that was looked at.
        ended: no later row is old enough.
    """

    retired: int
    last: int
    ended: bool
