"""The limit of open event streams for each account."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from gateway.errors import RateLimited

MAX_SUBSCRIBERS = 32
"""Maximum number of concurrent streams for each account."""


class SubscriberLimit:
    """Limits the open streams of each account. ``noun`` is a plural noun for the error message."""

    def __init__(self, max_streams: int = MAX_SUBSCRIBERS, noun: str = "videos") -> None:
        self._max_streams = max_streams
        self._noun = noun
        self._open_streams: Counter[int | None] = Counter()

    @contextmanager
    def hold_stream(self, account_id: int | None) -> Iterator[None]:
        if self._open_streams[account_id] >= self._max_streams:
            raise RateLimited(f"The account follows {self._max_streams} {self._noun} already", retry_after_s=5)
        self._open_streams[account_id] += 1
        try:
            yield
        finally:
            self._open_streams[account_id] -= 1
            if not self._open_streams[account_id]:
                del self._open_streams[account_id]


SUBSCRIBER_LIMIT = web.AppKey("following", SubscriberLimit)
"""The limit for event streams of video jobs."""
