"""Background work: jobs that are restarted when they fail, and tasks that outlive their requests."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

import structlog

RESTART_AFTER_S = 5.0

log = structlog.stdlib.get_logger(__name__)
T = TypeVar("T")


class JobRunner:
    """Runs each job in its own task and restarts it after a pause when it fails."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, job: Callable[[], Awaitable[None]]) -> None:
        """Run ``job`` under ``name`` until it returns or ``stop`` is called."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._keep_running(name, job), name=name))

    async def stop(self) -> None:
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


async def await_tasks(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Wait until ``tasks`` have ended.

    If the waiting task is cancelled, ``tasks`` go on; ``asyncio.gather`` would cancel them, too.
    """
    if pending_tasks := {*tasks}:
        await asyncio.wait(pending_tasks)


class TaskSet:
    """Tasks that outlive the request that starts them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        return task

    def add(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    async def close(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while self._tasks and loop.time() < deadline_s:  # a task may start another one as it ends
            await asyncio.wait(self._tasks, timeout=deadline_s - loop.time())
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait(self) -> None:
        await await_tasks(self._tasks)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio logs the exception if all waiters were cancelled
