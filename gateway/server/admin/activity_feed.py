"""Snapshots of the active requests, for those who watch them.

All viewers of one account, and all who see every account, share one snapshot per tick. Without viewers none is taken.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import orjson

from gateway.proxy.active_requests import ActiveRequests
from gateway.server.subscriber_limit import SubscriberLimit

TICK_S = 1.0
"""Seconds between two snapshots."""
EARLY = 0.9
"""A timer may fire slightly early: a snapshot of nearly one tick counts as old."""
LOOK_AGAIN_S = 10.0
"""Seconds between two checks of a viewer's session."""
MOST_WATCHING = 8
"""Streams of one account at a time; the bearers of the admin token count as one account."""


@attrs.define
class ActivityView:
    """A snapshot of the active requests. ``number`` counts the snapshots that differed from the one before."""

    at: float
    number: int
    state: list[tuple[Any, ...]]
    data: str


class ActiveRequestsFeed:
    """Takes the snapshots that viewers share.

    Args:
        running: the active requests.

    Attributes:
        tick_s: seconds between two snapshots.
        again_s: seconds between two checks of a viewer's session.
        following: limits the viewers.
        taken: the number of snapshots taken.
    """

    def __init__(self, running: ActiveRequests) -> None:
        self._running = running
        self._watching: Counter[int | None] = Counter()
        self._snapshots: dict[int | None, ActivityView] = {}
        self.tick_s = TICK_S
        self.again_s = LOOK_AGAIN_S
        self.following = SubscriberLimit(MOST_WATCHING, "lists of what is under way")
        self.taken = 0

    @contextmanager
    def watch(self, scope: int | None) -> Iterator[None]:
        """Keep snapshots for a viewer of the account ``scope``, or of all if None, until the block ends."""
        self._watching[scope] += 1
        try:
            yield
        finally:
            self._watching[scope] -= 1
            if not self._watching[scope]:
                del self._watching[scope]
                self._snapshots.pop(scope, None)

    def snapshot(self, scope: int | None, now: float) -> ActivityView:
        """Return the newest snapshot, a new one if the last is a tick old; ``now`` is the event loop's time."""
        known = self._snapshots.get(scope)
        if known is not None and now - known.at < self.tick_s * EARLY:
            return known
        calls = self._running.list_calls(scope, now)
        self.taken += 1
        state = [(call["id"], call["phase"], call["model"], call["channel"], call["attempts"]) for call in calls]
        if known is None or state != known.state:
            number = 1 if known is None else known.number + 1
            self._snapshots[scope] = ActivityView(now, number, state, orjson.dumps(calls).decode())
        else:
            known.at = now
        return self._snapshots[scope]
