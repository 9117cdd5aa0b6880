"""This process's tasks that work on video jobs, and its claims on these jobs."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog

from gateway.background import TaskSet
from gateway.errors import StoreUnavailable
from gateway.storage.videos import VideoRepository

CLAIM_MS = 30_000
RETRY_TIMEOUT_S = 10.0
"""How long a request waits for a failing store, in seconds. The work continues afterwards, and its result is stored
later."""
CLOSE_TIMEOUT_S = 3.0
_RETRY_INTERVAL_S = 0.5

log = structlog.stdlib.get_logger(__name__)
T = TypeVar("T")


class JobTasks:
    """Tasks that outlive a request, and marks for jobs that are being processed outside the poll worker.

    Args:
        process: the name of this process in claims. For None a new, unique name is made.
        wait_scale: factor for every wait.
    """

    def __init__(self, store: VideoRepository, process: str | None = None, *, wait_scale: float = 1.0) -> None:
        self._store = store
        self.process = process or secrets.token_hex(8)
        self._wait_scale = wait_scale
        self._tasks = TaskSet()
        self._active_counts: Counter[str] = Counter()

    @property
    def busy(self) -> bool:
        """Whether this process may have claims that the poll worker does not know."""
        return bool(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        return self._tasks.start(work)

    async def close(self) -> None:
        """Wait up to ``CLOSE_TIMEOUT_S`` for pending results to be stored, cancel the rest, and release every claim."""
        await self._tasks.close(CLOSE_TIMEOUT_S)
        try:
            await self._store.release(self.process)
        except StoreUnavailable:
            log.warning("leases_not_released")  # the claims expire by themselves

    @contextmanager
    def mark_active(self, video_id: str) -> Iterator[None]:
        """Mark a job as worked on outside the poll worker until the block ends."""
        self._active_counts[video_id] += 1
        try:
            yield
        finally:
            self._active_counts[video_id] -= 1
            if not self._active_counts[video_id]:
                del self._active_counts[video_id]

    def is_active(self, video_id: str) -> bool:
        return video_id in self._active_counts

    async def retry_until_stored(self, video_id: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """Repeat ``work`` on a job until the store accepts it, and return its result.

        Return None after ``RETRY_TIMEOUT_S``; the repetition then goes on in the background.
        """
        done_tasks, _ = await asyncio.wait({task := self.start(self._retry(video_id, work))}, timeout=RETRY_TIMEOUT_S)
        return task.result() if done_tasks else None

    async def _retry(self, video_id: str, work: Callable[[], Awaitable[T]]) -> T:
        with self.mark_active(video_id):
            while True:
                try:
                    return await work()
                except StoreUnavailable:
                    await asyncio.sleep(_RETRY_INTERVAL_S * self._wait_scale)
