"""Retention: old request rows are deleted, then old hours of traffic. What they cost stays known."""

import attrs


@attrs.frozen
class RetentionBatch:
    """The result of one commit.

    ``retired``: deleted rows. ``last``: the sequence of the last row that was checked. ``ended``: no later row is old
    enough.
    """

    retired: int
    last: int
    ended: bool
