"""The work that the redaction of one body may take, in steps instead of time: only the body decides the result."""

import attrs

MAX_STEPS = 200_000_000
"""A body of 16 MB with many addresses and names of fields takes about half of this."""
STEPS_PER_TRY = 64
"""Steps of one try of a pattern: the characters that a search for fixed texts passes in the same time."""


class TooMuchWorkError(Exception):
    """A body would take too long to redact. A body that is not redacted as a whole must not be kept."""


@attrs.define
class Work:
    """Counts the steps of a redaction: characters that are searched, and tries of patterns."""

    limit: int = MAX_STEPS
    steps: int = 0

    def add(self, steps: int) -> None:
        """Count ``steps``. Raises ``TooMuchWorkError`` if there are more than ``limit`` now."""
        self.steps += steps
        if self.steps > self.limit:
            raise TooMuchWorkError
