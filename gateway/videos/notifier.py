"""Signals: whoever waits for news of a job is woken when there are any."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class JobNotifier:
    """Bells by the id of what they are rung for. Nobody who does not listen costs anything."""

    def __init__(self) -> None:
        self._bells: dict[str, set[asyncio.Event]] = {}

    def ring(self, name: str) -> None:
        """There is news."""
        for bell in self._bells.get(name, ()):
            bell.set()

    @asynccontextmanager
    async def listen(self, name: str) -> AsyncIterator[asyncio.Event]:
        """A bell that is rung for ``name``; to be cleared by whoever has heard it."""
        bell = asyncio.Event()
        self._bells.setdefault(name, set()).add(bell)
        try:
            yield bell
        finally:
            bells = self._bells[name]
            bells.discard(bell)
            if not bells:
                del self._bells[name]
