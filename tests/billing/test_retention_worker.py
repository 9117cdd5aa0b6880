"""Rows of requests go after as many days as they are kept, a little at a time; hours of traffic after 400 days."""

import asyncio
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.billing.retention_worker import MAX_ROWS, RETENTION_HOURS, RETIRE_INTERVAL_S, RetentionWorker
from gateway.billing.write_queue import WriteQueue
from gateway.domain.request_log import RequestFilter
from gateway.domain.traffic import HOUR_MS, TrafficFilter
from gateway.errors import StoreUnavailable
from gateway.storage.retention import RetentionBatch
from tests.support.repositories import Repositories
from tests.support.request_records import make_row
from tests.support.worker_loop import run_hurried

NOW_S = 1_790_000_000.5
NOW_MS = int(NOW_S * 1000)
DAY_MS = 86_400_000


class Store(Repositories):
    """It remembers what it was asked for, and fails as often as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = 0
        self.asked: list[tuple[int, int, int]] = []
        self.at: list[float] = []

    async def retire_requests(self, before_ms: int, after: int, most: int) -> RetentionBatch:
        self.asked.append((before_ms, after, most))
        self.at.append(asyncio.get_running_loop().time())
        if self.failing:
            self.failing -= 1
            raise StoreUnavailable("not now")
        return await super().retire_requests(before_ms, after, most)


class RetentionScenario:
    """The job over a store in memory."""

    def __init__(self, keep_days: int = 90) -> None:
        self.store, self.write_queue, self.keep_days = Store(), WriteQueue(), keep_days
        self.job = RetentionWorker(self.store, self.write_queue, lambda: self.keep_days, lambda: NOW_S, pause_s=0)

    async def put(self, *ages_ms: int) -> None:
        rows = [make_row(age_ms, settled_ms=NOW_MS - age_ms, cost_nanos=1) for age_ms in ages_ms]
        await self.store.post(rows)

    async def list_left(self) -> list[int]:
        return [NOW_MS - one.row.settled_ms for one in await self.store.list_requests(RequestFilter(), 10**6)]

    async def count_hours(self) -> int:
        return len(await self.store.traffic.list_traffic("hour", TrafficFilter(0, 10**6)))


async def test_rows_are_kept_for_so_many_days_and_not_a_moment_longer() -> None:
    scenario = RetentionScenario(keep_days=2)
    await scenario.put(9 * DAY_MS, 2 * DAY_MS + 1, 2 * DAY_MS, 0)
    with capture_logs() as lines:
        await scenario.job.retire()
        await scenario.job.retire()
    assert await scenario.list_left() == [2 * DAY_MS, 0]
    assert lines == [{"event": "requests_retired", "log_level": "info", "rows": 2}], "and says so where something went"


@pytest.mark.parametrize(("keep_days", "session_days"), [(2, 2), (0, 30)])
async def test_budgets_of_sessions_are_kept_as_long_as_requests_and_thirty_days_otherwise(
    keep_days: int, session_days: int
) -> None:
    scenario, asked = RetentionScenario(), list[int]()

    async def retire_sessions(before_ms: int) -> int:
        asked.append(before_ms)
        return 0

    worker = RetentionWorker(
        scenario.store,
        scenario.write_queue,
        lambda: keep_days,
        lambda: NOW_S,
        pause_s=0,
        retire_sessions=retire_sessions,
    )
    await worker.retire()
    assert asked == [NOW_MS - session_days * DAY_MS]


async def test_refusals_by_sessions_go_after_thirty_days_where_requests_are_kept_forever() -> None:
    """All others stay, and the next run looks only at what has become old since."""
    scenario = RetentionScenario(keep_days=0)
    refused = {"outcome": "refused", "cost_nanos": 0, "attempts": 0, "settled_ms": NOW_MS - 30 * DAY_MS - 1}
    values: list[dict[str, Any]] = [
        {"error_code": "budget_exceeded"},
        {"error_code": "session_ended"},
        {"error_code": "quota_exceeded"},
        {"error_code": "budget_exceeded", "attempts": 1},
        {"error_code": "budget_exceeded", "outcome": "failed", "cost_nanos": 5},
        {"error_code": "budget_exceeded", "settled_ms": NOW_MS - 30 * DAY_MS},
    ]
    await scenario.put(31 * DAY_MS)
    await scenario.store.post([make_row(f"r{number}", **(refused | value)) for number, value in enumerate(values)])
    await scenario.put(0)
    await scenario.job.retire()
    stored = await scenario.store.list_requests(RequestFilter(), 10)
    assert [request.row.id for request in stored] == [
        f"req_{name}" for name in (31 * DAY_MS, "r2", "r3", "r4", "r5", 0)
    ]


async def test_age_is_counted_from_the_newest_row_where_the_clock_is_ahead_of_it() -> None:
    """However far that is: nothing has come since, and nothing newer than the newest less its days may go."""
    for ahead_ms in (DAY_MS, 366 * DAY_MS):
        scenario = RetentionScenario(keep_days=2)
        await scenario.put(*(ahead_ms + age_ms for age_ms in (3 * DAY_MS, 2 * DAY_MS, 0)))
        await scenario.job.retire()
        assert await scenario.list_left() == [ahead_ms + 2 * DAY_MS, ahead_ms]


async def test_how_long_is_asked_anew_each_time_and_zero_is_for_ever() -> None:
    scenario = RetentionScenario(keep_days=0)
    await scenario.put(9_999 * DAY_MS, 5 * DAY_MS, 0)
    await scenario.job.retire()
    assert len(await scenario.list_left()) == 3
    assert scenario.store.asked == []
    scenario.keep_days = 5
    await scenario.job.retire()
    assert await scenario.list_left() == [5 * DAY_MS, 0]


async def test_many_rows_go_in_many_commits() -> None:
    scenario = RetentionScenario()
    await scenario.put(*range(100 * DAY_MS + 2 * MAX_ROWS + 1, 100 * DAY_MS, -1), 0)
    await scenario.job.retire()
    assert await scenario.list_left() == [0]
    assert [(before_ms, most) for before_ms, _, most in scenario.store.asked] == [(NOW_MS - 90 * DAY_MS, MAX_ROWS)] * 3
    assert sorted({after for _, after, _ in scenario.store.asked}) == [after for _, after, _ in scenario.store.asked]
    assert [total.requests_nanos for total in await scenario.store.list_totals()] == [2 * MAX_ROWS + 2]


async def test_while_the_store_refuses_rows_none_is_retired() -> None:
    """One whose commit has come to nobody's knowledge is stored again, and then it must be found."""
    scenario = RetentionScenario()
    await scenario.put(100 * DAY_MS, 0)
    scenario.write_queue.failing = True
    await scenario.job.retire()
    assert len(await scenario.list_left()) == 2
    scenario.write_queue.failing = False
    await scenario.job.retire()
    assert await scenario.list_left() == [0]


async def test_hours_go_after_400_days_whatever_becomes_of_rows() -> None:
    scenario = RetentionScenario(keep_days=0)
    kept_ms = RETENTION_HOURS * HOUR_MS
    ages_ms = (kept_ms + 2 * HOUR_MS, kept_ms + HOUR_MS, kept_ms, 0)
    await scenario.put(*ages_ms)
    await scenario.job.retire()
    assert await scenario.count_hours() == 2
    days = await scenario.store.traffic.list_traffic("day", TrafficFilter(0, 10**6))
    assert [int(line.label) for line in days] == sorted({(NOW_MS - age_ms) // DAY_MS for age_ms in ages_ms})
    assert sum(line.requests for line in days) == 4
    assert len(await scenario.list_left()) == 4


async def test_a_store_that_fails_is_asked_the_next_time() -> None:
    scenario = RetentionScenario()
    scenario.store.failing = 1
    await scenario.put(100 * DAY_MS, 0)
    with capture_logs() as lines:
        await scenario.job.retire()
        assert len(await scenario.list_left()) == 2
        await scenario.job.retire()
    assert [line["event"] for line in lines] == ["requests_not_retired", "requests_retired"]


def test_it_retires_at_once_and_then_every_hour_for_ever() -> None:
    scenario, began = RetentionScenario(), []
    scenario.store.failing = 1

    async def scene() -> None:
        began.append(asyncio.get_running_loop().time())
        with suppress(TimeoutError):
            async with asyncio.timeout(3 * RETIRE_INTERVAL_S + 60):
                await scenario.job.run()

    run_hurried(scene())
    waits = [after - before for before, after in pairwise(began + scenario.store.at)]
    assert [round(wait) for wait in waits] == [0, *[round(RETIRE_INTERVAL_S)] * 3]
