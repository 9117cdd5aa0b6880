"""Retirement: request rows are deleted for their age, and hours of traffic after them. What they cost stays known."""

from typing import Protocol

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


class Retirement(Protocol):
    """Where rows are retired, in small commits: others write too."""

    async def find_newest_ms(self) -> int | None:
        """When the last request, credit or change was recorded, in Unix milliseconds; None before the first."""
        ...

    async def retire_requests(self, before_ms: int, after: int, most: int) -> RetentionBatch:
        """Delete those of the ``most`` rows after the sequence ``after`` that were settled before ``before_ms``.

        What they cost is added to what is known of their keys in the same commit. The row of a job that is still on
        record stays: its end is yet to be told, or the books are compared with it.
        """
        ...

    async def retire_hours(self, before: int) -> int:
        """Delete the traffic of the oldest hour before that one; how many sums there were. Days stay."""
        ...
