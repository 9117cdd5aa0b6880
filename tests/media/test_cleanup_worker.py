"""Old media go, and the job says so."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.domain.media import CleanupResult, MediaRules
from gateway.media.cleanup_worker import FIRST_SWEEP_S, SWEEP_EVERY_S, MediaCleanup
from tests.support.worker_loop import run_hurried

NOW = 1_750_000_000.0


class StoreDouble:
    """A store that only notes when it was swept, by what rule, and answers from a list."""

    def __init__(self, *answers: CleanupResult) -> None:
        self._answers: Iterator[CleanupResult] = iter(answers)
        self.asked: list[tuple[float, int]] = []
        self.times: list[float] = []

    async def sweep(self, *, before_s: float, max_bytes: int) -> CleanupResult:
        self.asked.append((before_s, max_bytes))
        self.times.append(asyncio.get_running_loop().time())
        return next(self._answers, CleanupResult())


def make(shelf: Any, *rules: MediaRules) -> MediaCleanup:
    reported = iter(rules)
    return MediaCleanup(shelf, lambda: next(reported), lambda: NOW)


async def test_what_is_too_old_is_reckoned_from_now() -> None:
    shelf = StoreDouble()
    job = make(shelf, MediaRules(max_age_s=3600.0, max_bytes=10), MediaRules(max_age_s=60.0, max_bytes=20))
    await job.sweep()
    await job.sweep()
    assert shelf.asked == [(NOW - 3600, 10), (NOW - 60, 20)]


async def test_a_line_is_logged_only_where_something_went() -> None:
    shelf = StoreDouble(CleanupResult(0, 0, 700), CleanupResult(3, 4096, 100), CleanupResult(0, 0, 100))
    job = make(shelf, *[MediaRules(1.0, 1)] * 3)
    with capture_logs() as lines:
        for _ in range(3):
            await job.sweep()
    assert lines == [{"event": "media_swept", "log_level": "info", "files": 3, "bytes": 4096}]


def test_it_sweeps_soon_after_the_start_and_then_regularly() -> None:
    shelf = StoreDouble()
    job = make(shelf, *[MediaRules(1.0, 1)] * 100)
    began: list[float] = []

    async def run() -> None:
        began.append(asyncio.get_running_loop().time())
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SWEEP_S + 2 * SWEEP_EVERY_S + 1):
                await job.run()

    run_hurried(run())
    assert [at - began[0] for at in shelf.times] == pytest.approx(
        [FIRST_SWEEP_S, FIRST_SWEEP_S + SWEEP_EVERY_S, FIRST_SWEEP_S + 2 * SWEEP_EVERY_S], abs=0.9
    )
