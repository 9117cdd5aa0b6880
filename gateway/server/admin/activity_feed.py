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

from gateway.answer_fields import Count, Moment
from gateway.domain.account_spec import build_time
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.proxy.active_requests import MAX_LISTED, ActiveRequest, ActiveRequests, Phase, find_phase
from gateway.server.admin.answer import read_answer, write_answer
from gateway.server.subscriber_limit import SubscriberLimit

AskOthers = Callable[[int | None], Awaitable[tuple[list[Any], tuple[str, ...]]]]
"""Returns the other nodes' active requests as JSON, of one account or all, and the nodes that did not answer."""

TICK_S = 1.0
"""Seconds between two snapshots."""
EARLY_SHARE = 0.9
"""Age, as a share of a tick, from which a snapshot counts as old: timers may fire slightly early."""
SESSION_CHECK_S = 10.0
"""Seconds between two checks of a viewer's session."""
MAX_WATCHERS = 8
"""Maximum number of streams for each account. The bearers of the admin token count as one account."""


@frozen(kw_only=True)
class RunningRequest:
    """A request that is being processed. Only administrators see its channel, address and node."""

    id: str
    account: str
    key_name: str
    model: str
    operation: str
    stream: bool
    started_at: Moment
    running_ms: Count
    phase: Phase
    channel: str | None
    attempts: Count
    address: str | None
    node: str | None
    session: str = ""


@attrs.define
class ActivityView:
    """A snapshot of the active requests. ``number`` counts the snapshots that differ from the previous one."""

    at: float
    number: int
    state: list[tuple[Any, ...]]
    data: str


@attrs.define
class OthersView:
    """The active requests of the other nodes. ``unanswered`` are ids of the nodes that did not answer."""

    at: float
    calls: list[RunningRequest] = attrs.Factory(list)
    unanswered: tuple[str, ...] = ()


class ActiveRequestsFeed:
    """Takes snapshots of the active requests, which viewers share.

    Args:
        ask: queries the other nodes of the cluster and may raise ``StoreUnavailable``; None for a single process.

    Attributes:
        tick_s: the seconds between two snapshots.
        retry_s: the seconds between two checks of a viewer's session.
        following: limits how many viewers an account may have at a time.
        taken: the number of snapshots that were taken.
    """

    def __init__(self, running: ActiveRequests, ask: AskOthers | None) -> None:
        self._active_requests = running
        self._watcher_counts: Counter[int | None] = Counter()
        self._snapshots: dict[int | None, ActivityView] = {}
        self._other_views: dict[int | None, OthersView] = {}
        self._query_lock = asyncio.Lock()
        self._ask = ask
        self.tick_s = TICK_S
        self.retry_s = SESSION_CHECK_S
        self.following = SubscriberLimit(MAX_WATCHERS, "lists of what is under way")
        self.taken = 0

    @contextmanager
    def watch(self, scope: int | None) -> Iterator[None]:
        """Register a viewer of the account ``scope``, or of all accounts if None, until the block ends."""
        self._watcher_counts[scope] += 1
        try:
            yield
        finally:
            self._watcher_counts[scope] -= 1
            if not self._watcher_counts[scope]:
                del self._watcher_counts[scope]
                self._snapshots.pop(scope, None)
                self._other_views.pop(scope, None)

    async def ask_others(self, scope: int | None, now_s: float) -> tuple[str, ...]:
        """Query the other nodes, at most once per tick. Return the ids of the nodes that did not answer."""
        if self._ask is None:
            return ()
        async with self._query_lock:
            view = self._other_views.get(scope)
            if view is None or now_s - view.at >= self.tick_s * EARLY_SHARE:
                view = OthersView(now_s)
                with suppress(StoreUnavailable):  # the list of nodes is unavailable
                    calls, view.unanswered = await self._ask(scope)
                    view.calls = read_answer(list[RunningRequest], calls)
                self._other_views[scope] = view
        return view.unanswered

    def snapshot(self, scope: int | None, now_s: float) -> ActivityView:
        """Return the last snapshot, or a new one if it is older than a tick. ``now_s`` is loop time."""
        snapshot = self._snapshots.get(scope)
        if snapshot is not None and now_s - snapshot.at < self.tick_s * EARLY_SHARE:
            return snapshot
        calls = list_running(self._active_requests, scope, now_s)
        if scope in self._other_views:
            calls = merge_calls(calls, self._other_views[scope].calls)
        self.taken += 1
        state = [(call.id, call.phase, call.model, call.channel, call.attempts) for call in calls]
        if snapshot is None or state != snapshot.state:
            number = 1 if snapshot is None else snapshot.number + 1
            data = orjson.dumps(calls, default=write_answer).decode()
            self._snapshots[scope] = ActivityView(now_s, number, state, data)
        else:
            snapshot.at = now_s
        return self._snapshots[scope]


def list_running(active: ActiveRequests, scope: int | None, now_s: float) -> list[RunningRequest]:
    """Return this node's active requests of the account ``scope``, without what only administrators see.

    With None, return those of all accounts, with everything. ``now_s`` is loop time.
    """
    return [
        _build_running_request(call, now_s, active.node, with_details=scope is None)
        for call in active.list_calls(scope)
    ]


def _build_running_request(
    call: ActiveRequest, now_s: float, node: str | None, *, with_details: bool
) -> RunningRequest:
    """Describe a request as the API shows it. ``with_details`` adds what only administrators see."""
    ctx, inference = call.context, call.context.parsed
    return RunningRequest(
        id=ctx.id,
        account=ctx.caller.account.name,
        key_name=ctx.caller.key.name,
        model=inference.model if inference else "",
        operation=ctx.operation,
        stream=inference.stream if inference else False,
        started_at=build_time(ctx.started_ms // 1000),
        running_ms=round((now_s - ctx.started_at) * 1000),
        phase=find_phase(ctx),
        channel=ctx.attempts[-1].channel.name if with_details and ctx.attempts else None,
        attempts=len(ctx.attempts),
        address=call.address if with_details else None,
        node=node if with_details else None,
        session=ctx.attribution.session,
    )


def merge_calls(own_calls: list[RunningRequest], other_calls: list[RunningRequest]) -> list[RunningRequest]:
    """Return the active requests of several nodes, the oldest first, at most ``MAX_LISTED``."""
    return sorted([*own_calls, *other_calls], key=lambda call: (call.started_at, call.id))[:MAX_LISTED]
