"""Snapshots of the active requests, of all nodes of a cluster, for those who watch them.

All viewers of one account, and all who see every account, share one snapshot per tick. Without viewers none is taken.
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
"""Returns the active requests of an account, or of all, at the other nodes; and the ids of those without an answer."""

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


@attrs.define
class OthersView:
    """What the other nodes have under way, as they answered at the time ``at``.

    Attributes:
        unanswered: the ids of the nodes that did not answer.
    """

    at: float
    calls: list[Fields] = attrs.Factory(list)
    unanswered: tuple[str, ...] = ()


class ActiveRequestsFeed:
    """Takes the snapshots that viewers share.

    Args:
        running: the active requests.
        ask: asks the other nodes of the cluster; None: there are none. It may raise ``StoreUnavailable``.

    Attributes:
        tick_s: seconds between two snapshots.
        again_s: seconds between two checks of a viewer's session.
        following: limits the viewers.
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
        """Keep snapshots for a viewer of the account ``scope``, or of all if None, until the block ends."""
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
        """Ask the other nodes, if that was not done in this tick; return the ids of those that did not answer."""
        if self._ask is None:
            return ()
        async with self._asking:
            known = self._others.get(scope)
            if known is None or now - known.at >= self.tick_s * EARLY:
                known = OthersView(now)
                with suppress(StoreUnavailable):  # which nodes there are is not known
                    known.calls, known.unanswered = await self._ask(scope)
                self._others[scope] = known
        return known.unanswered

    def snapshot(self, scope: int | None, now: float) -> ActivityView:
        """Return the newest snapshot, a new one if the last is a tick old; ``now`` is the event loop's time."""
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
