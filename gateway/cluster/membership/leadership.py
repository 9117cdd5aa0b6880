"""Runs the jobs of the leader while this node is the leader."""

import asyncio
from collections.abc import Awaitable, Callable


class Leadership:
    """Whether this node leads. Two nodes may lead for a moment: the jobs must tolerate that."""

    def __init__(self) -> None:
        self._leading, self._following = asyncio.Event(), asyncio.Event()
        self._following.set()

    @property
    def leads(self) -> bool:
        return self._leading.is_set()

    def begin(self) -> None:
        """Make this node the leader."""
        self._following.clear()
        self._leading.set()

    def end(self) -> None:
        """Make this node a follower."""
        self._leading.clear()
        self._following.set()

    async def run(self, job: Callable[[], Awaitable[None]]) -> None:
        """Run ``job`` each time that this node begins to lead, and cancel it when another leads.

        Returns or raises an error as soon as the job does so by itself.
        """
        while True:
            await self._leading.wait()
            job_task = asyncio.ensure_future(job())
            following_task = asyncio.ensure_future(self._following.wait())
            try:
                await asyncio.wait({job_task, following_task}, return_when=asyncio.FIRST_COMPLETED)
                if job_task.done():
                    return job_task.result()
            finally:
                job_task.cancel()
                following_task.cancel()
                await asyncio.gather(job_task, following_task, return_exceptions=True)
