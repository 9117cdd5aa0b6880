"""Wake the tasks that wait for changes of a video job."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class JobNotifier:
    """Events by job id. A job without listeners costs nothing.

    Attributes:
        publish_change: called with the name of each change of this process; wakes the listeners of others.
    """

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}
        self.publish_change: Callable[[str], None] = lambda _: None

    def notify(self, name: str) -> None:
        """Wake the listeners of ``name``, at other nodes, too."""
        self.wake(name)
        self.publish_change(name)

    def wake(self, name: str) -> None:
        """Wake the listeners of ``name`` in this process."""
        for event in self._events.get(name, ()):
            event.set()

    @asynccontextmanager
    async def listen(self, name: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set at every change of ``name``; the listener clears it."""
        event = asyncio.Event()
        self._events.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            events = self._events[name]
            events.discard(event)
            if not events:
                del self._events[name]
