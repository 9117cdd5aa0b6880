"""Counts for a new limit what its subjects have spent earlier in its window, while requests are served.

A step counts some hundred stored requests and takes a few milliseconds; other writers get in between. A stored request
has the limit in its ``limit_charges`` already, or a step adds the limit: each counts once, even after ``kill -9``.
Until a fill ends, the limit refuses by what is counted so far. Earlier spending may exceed the limit; the excess is no
overrun.

Requests that run when the limit comes into force are counted like earlier ones, once they are stored: a fill ends when
they have ended. The leader of a cluster does not know the requests of other nodes, so a fill there goes on for
``FOLLOW_S``.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable

import attrs
import structlog

from gateway.billing.limits import SpendingLimits, SubjectRule, build_rule, find_subject
from gateway.billing.write_queue import WriteQueue
from gateway.domain.limit import Limit, LimitCharge, parse_charges
from gateway.domain.request_log import RequestRecord
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.limit_fills import BEFORE_UPGRADE, ChargedRow, FillState, FillStep, LimitFill, LimitFillRepository

STEP_S = 0.006
"""How long a step should keep other writers waiting, in seconds, besides its commit."""
MIN_ROWS, FIRST_ROWS, MAX_ROWS = 20, 100, 1_000
"""The lowest, the first and the highest number of requests per step; it follows how long the last step took."""
PAUSE_S = 0.02
"""The shortest pause between two steps, in seconds. A pause is at least three times as long as the step."""
FOLLOW_PAUSE_S, NODE_FOLLOW_PAUSE_S = 0.25, 5.0
"""Seconds between two looks for requests that ran when a limit came into force: of a single process, of nodes."""
FOLLOW_S = 86_400.0
RETRY_S = 2.0
_MAX_RULES = 10_000
_MAX_SKEW_S = 5.0
"""By how much the clocks of two nodes may differ."""

FindWindow = Callable[[Limit, int, float], tuple[int, int]]
"""Returns start and end of a limit's window for an account (its id) that contains a moment (Unix seconds)."""

log = structlog.stdlib.get_logger(__name__)


@frozen
class CountingStart:
    """From when on a limit counts requests.

    Attributes:
        since_s: Unix seconds; None: from the start of the limit's window, or the time is unknown.
        is_filling: whether requests that ended before ``since_s`` are still being counted.
    """

    since_s: int | None = None
    is_filling: bool = False


async def list_counting_starts(
    database: Database, spending: SpendingLimits, now_s: float, limits: Iterable[Limit]
) -> dict[str, CountingStart]:
    """Return the ``CountingStart`` of each of ``limits`` that limits money and is in force, by counter."""
    fills = await LimitFillRepository(database).list_fills()
    counters, starts = {limit.counter for limit in spending.limits}, {}
    for limit in limits:
        fill, new_at_s = fills.get(limit.counter), spending.new_counters.get(limit.counter)
        if limit.counter not in counters or not limit.counts_money(now_s):
            continue
        if new_at_s is not None and (fill is None or fill.created_s < new_at_s - _MAX_SKEW_S):
            starts[limit.counter] = CountingStart(int(new_at_s), is_filling=True)
        elif fill is not None:
            start_s = spending.find_earliest_start(limit, now_s)
            since_s = fill.find_counting_start_s(start_s - limit.window.rolling_s)
            starts[limit.counter] = CountingStart(since_s, fill.is_filling)
    return starts


class RowMatcher:
    """Finds what stored requests count for under one limit, by the same rules as for running requests."""

    def __init__(self, limit: Limit, since_s: int, find_window: FindWindow) -> None:
        self.limit = limit
        self._since_s = since_s
        self._find_window = find_window
        self._rules: dict[tuple[int, int], SubjectRule] = {}
        self._windows: dict[int, tuple[int, int]] = {}
        """The window of the last row by account; one entry if the windows of all accounts are the same."""

    def find_charge(self, row: ChargedRow) -> LimitCharge | None:
        """Return what the row counts for; None if it does not count, or is counted already."""
        limit, settled_s = self.limit, row.settled_ms / 1000
        if settled_s < self._since_s or not limit.counts_key(row.key_name):
            return None
        rule = self._rules.get((row.key_id, row.account_id))
        if rule is None:
            if len(self._rules) >= _MAX_RULES:
                self._rules.clear()
                self._windows.clear()
            rule = self._rules[row.key_id, row.account_id] = build_rule(limit, row.key_id, row.account_id)
        facts = row.model, (row.end_user, row.session, row.tags)
        subject = rule.prefix if rule.is_whole else find_subject(rule, facts)
        if subject is None or any(counter == limit.counter for counter, _, _ in parse_charges(row.limit_charges)):
            return None
        account_id = row.account_id if limit.follows_account else 0
        window = self._windows.get(account_id)
        if window is None or not window[0] <= settled_s < window[1]:
            window = self._windows[account_id] = self._find_window(limit, account_id, settled_s)
        return limit.counter, subject, window[0]

    def counts(self, record: RequestRecord) -> bool:
        """Return whether a request that waits to be stored has to be counted."""
        values = [getattr(record, name) for name in ChargedRow._fields[1:]]
        return bool(record.cost_nanos) and self.find_charge(ChargedRow(0, *values)) is not None


class LimitFiller:
    """Fills the limits in force. ``is_shared``: on a node of a cluster. ``max_rows``: the maximum per step."""

    def __init__(
        self,
        database: Database,
        queue: WriteQueue,
        spending: SpendingLimits,
        clock: Callable[[], float],
        *,
        is_shared: bool = False,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self._repository = LimitFillRepository(database)
        self._queue = queue
        self._spending = spending
        self._clock = clock
        self._is_shared = is_shared
        self._max_rows = max_rows
        self._rows_per_step = min(FIRST_ROWS, max_rows)
        self._fills: dict[str, LimitFill] = {}
        """The fills that are not done, by counter."""
        self._matchers: dict[str, RowMatcher] = {}
        self._step_task: asyncio.Task[FillStep | None] | None = None

    @property
    def open_counters(self) -> Collection[str]:
        """The counters of the limits that are not filled, or whose earlier requests may still run."""
        return self._fills.keys()

    async def run(self) -> None:
        """Fill limits as they come into force, forever."""
        while True:
            try:
                await self.open()
                while not self._spending.changed.is_set():
                    await self._pause(await self.step())
            except StoreUnavailable as error:
                log.warning("limits_not_filled", error=error.message)
                await asyncio.sleep(RETRY_S)

    async def _pause(self, held_s: float) -> None:
        """Wait for the next step, or until other limits are in force."""
        pause_s: float | None = None
        if any(fill.is_filling for fill in self._fills.values()):
            pause_s = RETRY_S if self._queue.crowded else max(PAUSE_S, 3 * held_s)
        elif self._fills:
            pause_s = NODE_FOLLOW_PAUSE_S if self._is_shared else FOLLOW_PAUSE_S
        try:
            async with asyncio.timeout(pause_s):
                await self._spending.changed.wait()
        except TimeoutError:
            return

    async def open(self) -> None:
        """Record which limits are in force, and begin to fill new ones."""
        spending, now_s = self._spending, self._clock()
        spending.changed.clear()
        new_counters = dict(spending.new_counters)
        limits = {limit.counter: limit for limit in spending.limits if limit.counts_money(now_s)}
        stored_fills = await self._repository.list_fills()
        is_first = BEFORE_UPGRADE in stored_fills
        fills: dict[str, LimitFill] = {}
        for counter, limit in limits.items():
            stored = stored_fills.get(counter)
            if stored is None and is_first and counter in spending.first_counters:
                fills[counter] = LimitFill(counter, limit.keys, limit.until_s)
            elif stored is None or self._is_new(limit, stored, new_counters.get(counter), now_s):
                fills[counter] = await self._begin(limit, now_s)
            else:
                fills[counter] = attrs.evolve(stored, keys=limit.keys, until_s=limit.until_s)
        changed_fills = [fill for counter, fill in fills.items() if fill != stored_fills.get(counter)]
        await self._repository.put(changed_fills, stored_fills.keys() - fills.keys())
        for counter, at_s in new_counters.items():
            if spending.new_counters.get(counter) == at_s:
                del spending.new_counters[counter]
        self._fills = {counter: fill for counter, fill in fills.items() if fill.state != "done"}
        self._matchers = {
            counter: RowMatcher(limits[counter], fill.since_s, spending.find_window)
            for counter, fill in self._fills.items()
        }
        self._note_filled()

    def _is_new(self, limit: Limit, stored_fill: LimitFill, new_at_s: float | None, now_s: float) -> bool:
        """Return whether a recorded limit has to be filled again: it was out of force, or it counts more keys now."""
        if new_at_s is not None and (not self._is_shared or stored_fill.created_s < int(new_at_s)):
            return True
        return limit.adds_keys(stored_fill.keys) or (stored_fill.until_s is not None and stored_fill.until_s <= now_s)

    async def _begin(self, limit: Limit, now_s: float) -> LimitFill:
        since_s = max(0, self._spending.find_earliest_start(limit, now_s) - limit.window.rolling_s)
        first_sequence = await self._repository.find_before(since_s)
        return LimitFill(limit.counter, limit.keys, limit.until_s, int(now_s), since_s, first_sequence, "filling")

    async def step(self) -> float:
        """Do a step for each fill that is not done; return for how many seconds other writers had to wait.

        Stops early if the queue is crowded or other limits are in force.
        """
        held_s = 0.0
        for counter, fill in list(self._fills.items()):
            if self._queue.crowded or self._spending.changed.is_set():
                break
            self._step_task = asyncio.get_running_loop().create_task(self._count(fill))
            step = await asyncio.shield(self._step_task)  # to the end: memory and store must not differ
            if step is None:
                del self._fills[counter]
                continue
            held_s += step.held_s
        self._note_filled()
        return held_s

    async def _count(self, fill: LimitFill) -> FillStep | None:
        counter, matcher = fill.counter, self._matchers[fill.counter]
        async with self._queue.writing:
            is_counted = False
            try:
                step = await self._repository.count(fill, self._rows_per_step, matcher.find_charge)
                is_counted = True
            finally:
                if not is_counted:  # the commit may have succeeded: the store knows
                    self._spending.reread(counter)
            if step is None:
                return None
            self._spending.count_earlier(counter, step.sums)
            state = self._find_state(fill, step, matcher)
        if not step.ended:
            factor = min(2.0, STEP_S / max(step.held_s, 1e-6))
            self._rows_per_step = min(self._max_rows, max(MIN_ROWS, int(self._rows_per_step * factor)))
        if state != fill.state:
            since_s = fill.since_s
            if fill.is_filling:
                since_s = max(since_s, await self._repository.find_retired_s())
            await self._repository.put_state(fill, state, since_s)
            self._fills[counter] = attrs.evolve(fill, state=state, since_s=since_s)
            if state == "done":
                del self._fills[counter]
        return step

    def _find_state(self, fill: LimitFill, step: FillStep, matcher: RowMatcher) -> FillState:
        """Return the state of ``fill`` after ``step``. Earlier reservations that are settled are forgotten.

        The caller holds ``queue.writing``, so a single process stores no row meanwhile.
        """
        if not step.ended:
            return fill.state
        is_waiting = any(matcher.counts(row) for row in self._queue.list_rows())
        if fill.is_filling and is_waiting:
            return "filling"
        if self._is_shared:
            return "done" if self._clock() - fill.created_s > FOLLOW_S else "following"
        spending = self._spending
        spending.earlier_reservations = {
            reservation for reservation in spending.earlier_reservations if reservation.charge is None
        }
        return "following" if spending.earlier_reservations or is_waiting else "done"

    def _note_filled(self) -> None:
        if not self._spending.new_counters and not any(fill.is_filling for fill in self._fills.values()):
            self._spending.filled.set()
