"""Wakes the tasks that wait for changes of a video job."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.events import Events
from gateway.videos.events import JobChanged


class JobNotifier:
    """The listeners by job id. A job without listeners costs nothing."""

    def __init__(self, events: Events) -> None:
        self._listeners: dict[str, set[asyncio.Event]] = {}
        events.subscribe(JobChanged, self._wake)

    def _wake(self, change: JobChanged) -> None:
        for listener in self._listeners.get(change.video_id, ()):
            listener.set()

    @asynccontextmanager
    async def listen(self, video_id: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set at every change of a job; the listener has to clear it."""
        listener = asyncio.Event()
        self._listeners.setdefault(video_id, set()).add(listener)
        try:
            yield listener
        finally:
            listeners = self._listeners[video_id]
            listeners.discard(listener)
            if not listeners:
                del self._listeners[video_id]
