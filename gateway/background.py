"""Runs jobs: one task each, restarted with a pause when one fails, cancelled together at the end."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

RESTART_AFTER_S = 5.0

log = structlog.stdlib.get_logger(__name__)


class JobRunner:
    """Owns the tasks of the house's jobs."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, job: Callable[[], Awaitable[None]]) -> None:
        """Run ``job``, which loops for ever, under ``name``."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._keep_running(name, job), name=name))

    async def stop(self) -> None:
        """Cancel every job and wait for it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    @staticmethod
    async def _keep_running(name: str, job: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await job()
            except Exception:
                log.exception("job_failed", job=name, restart_after_s=RESTART_AFTER_S)
            else:
                return
            await asyncio.sleep(RESTART_AFTER_S)
