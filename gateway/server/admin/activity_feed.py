"""Shared snapshots of the active requests of all cluster nodes, for viewers of the live list.

All viewers of the same account share one snapshot per tick, as do all viewers of all accounts. Without viewers, no
snapshots are taken.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import orjson

from gateway.errors import StoreUnavailable
from gateway.proxy.active_requests import MOST_LISTED, ActiveRequests, Fields
from gateway.server.subscriber_limit import SubscriberLimit

AskOthers = Callable[[int | None], Awaitable[tuple[list[Fields], tuple[str, ...]]]]
"""Returns the other nodes' active requests, of one account or all, and the ids of the nodes that did not answer."""

TICK_S = 1.0
"""Seconds between two snapshots."""
EARLY = 0.9
"""Age, as a share of a tick, from which a snapshot counts as old: timers may fire slightly early."""
LOOK_AGAIN_S = 10.0
"""Seconds between two checks of a viewer's session."""
MOST_WATCHING = 8
"""Maximum number of streams for each account. The bearers of the admin token count as one account."""


@attrs.define
class ActivityView:
    """A snapshot of the active requests. ``number``: counts the snapshots that differ from the previous one."""

    at: float
    number: int
    state: list[tuple[Any, ...]]
    data: str


@attrs.define
class OthersView:
    """The active requests of the other nodes at the time ``at``.

    Attributes:
        unanswered: the ids of the nodes that did not answer.
    """

    at: float
    calls: list[Fields] = attrs.Factory(list)
    unanswered: tuple[str, ...] = ()


class ActiveRequestsFeed:
    """Takes snapshots of the active requests, which viewers share.

    Args:
        running: this node's active requests.
        ask: queries the other nodes of the cluster; None for a single process. May raise ``StoreUnavailable``.

    Attributes:
        tick_s: seconds between two snapshots.
        again_s: seconds between two checks of a viewer's session.
        following: the limit of viewers.
        taken: the number of snapshots taken.
    """

    def __init__(self, running: ActiveRequests, ask: AskOthers | None) -> None:
        self._running = running
        self._watching: Counter[int | None] = Counter()
        self._snapshots: dict[int | None, ActivityView] = {}
        self._others: dict[int | None, OthersView] = {}
        self._asking = asyncio.Lock()
        self._ask = ask
        self.tick_s = TICK_S
        self.again_s = LOOK_AGAIN_S
        self.following = SubscriberLimit(MOST_WATCHING, "lists of what is under way")
        self.taken = 0

    @contextmanager
    def watch(self, scope: int | None) -> Iterator[None]:
        """Register a viewer of the account ``scope``, or of all accounts if None, until the block ends."""
        self._watching[scope] += 1
        try:
            yield
        finally:
            self._watching[scope] -= 1
            if not self._watching[scope]:
                del self._watching[scope]
                self._snapshots.pop(scope, None)
                self._others.pop(scope, None)

    async def ask_others(self, scope: int | None, now: float) -> tuple[str, ...]:
        """Query the other nodes, at most once per tick. Return the ids of the nodes that did not answer."""
        if self._ask is None:
            return ()
        async with self._asking:
            known = self._others.get(scope)
            if known is None or now - known.at >= self.tick_s * EARLY:
                known = OthersView(now)
                with suppress(StoreUnavailable):  # the list of nodes is unavailable
                    known.calls, known.unanswered = await self._ask(scope)
                self._others[scope] = known
        return known.unanswered

    def snapshot(self, scope: int | None, now: float) -> ActivityView:
        """Return the last snapshot, or a new one if it is older than a tick. ``now``: loop time."""
        known = self._snapshots.get(scope)
        if known is not None and now - known.at < self.tick_s * EARLY:
            return known
        calls = self._running.list_calls(scope, now)
        if scope in self._others:
            calls = merge_calls(calls, self._others[scope].calls)
        self.taken += 1
        state = [(call["id"], call["phase"], call["model"], call["channel"], call["attempts"]) for call in calls]
        if known is None or state != known.state:
            number = 1 if known is None else known.number + 1
            self._snapshots[scope] = ActivityView(now, number, state, orjson.dumps(calls).decode())
        else:
            known.at = now
        return self._snapshots[scope]


def merge_calls(own: list[Fields], others: list[Fields]) -> list[Fields]:
    """Return the active requests of several nodes, the oldest first."""
    return sorted([*own, *others], key=lambda call: (call["started_at"], call["id"]))[:MOST_LISTED]
