"""An event loop in a hurry: where there is nothing to do but wait, the wait is over at once."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

from tests.support.repositories import close_databases, is_working


class _Skipping(selectors.DefaultSelector):
    """Looks and does not wait; what it would have waited is added to ``skipped_s``."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0 and is_working():
            return super().select(None)  # a database's thread takes no time of the scene
        if ready or not timeout:
            return ready if ready or timeout is not None else super().select()
        self.skipped_s += timeout
        return []


class HurriedLoop(asyncio.SelectorEventLoop):
    """Its clock is everything that was skipped: computing takes no time, however slow the machine is.

    For code without sockets and without threads, except those of a database.
    """

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s


def run_hurried(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` to its end on a loop in a hurry."""
    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        try:
            runner.run(main)
        finally:
            runner.run(close_databases())
