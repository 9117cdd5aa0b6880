"""The limit of open event streams for each account."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from gateway.errors import RateLimited

MOST_FOLLOWING = 32
"""Maximum number of concurrent streams for each account."""


class SubscriberLimit:
    """Limits the open streams of each account. ``what``: a plural noun for the error message."""

    def __init__(self, most: int = MOST_FOLLOWING, what: str = "videos") -> None:
        self._most = most
        self._what = what
        self._open: Counter[int | None] = Counter()

    @contextmanager
    def join(self, account_id: int | None) -> Iterator[None]:
        if self._open[account_id] >= self._most:
            raise RateLimited(f"The account follows {self._most} {self._what} already", retry_after_s=5)
        self._open[account_id] += 1
        try:
            yield
        finally:
            self._open[account_id] -= 1
            if not self._open[account_id]:
                del self._open[account_id]


FOLLOWING = web.AppKey("following", SubscriberLimit)
"""The limit for event streams of video jobs."""
