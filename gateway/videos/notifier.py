"""Wake the tasks that wait for changes of a video job."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class JobNotifier:
    """Events by job id. A job without listeners costs nothing."""

    def __init__(self) -> None:
        self._bells: dict[str, set[asyncio.Event]] = {}

    def ring(self, name: str) -> None:
        """Wake the listeners of ``name``."""
        for bell in self._bells.get(name, ()):
            bell.set()

    @asynccontextmanager
    async def listen(self, name: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set at every change of ``name``; the listener clears it."""
        bell = asyncio.Event()
        self._bells.setdefault(name, set()).add(bell)
        try:
            yield bell
        finally:
            bells = self._bells[name]
            bells.discard(bell)
            if not bells:
                del self._bells[name]
