"""What a client says in ``keep_rule.KEEP_HEADER`` about the keeping of bodies."""

from collections.abc import Iterable
from typing import Literal

KeepWish = Literal["", "yes", "no"]
"""What a client says of one request, or of a batch; empty if it says nothing."""


def parse_keep_wish(values: Iterable[str]) -> KeepWish:
    """Return what the values of the header say. Any value other than "yes" counts as "no", and wins."""
    answers = {value.strip().lower() for value in values}
    return "" if not answers else "yes" if answers == {"yes"} else "no"
