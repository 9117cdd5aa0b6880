"""An event loop in a hurry: where there is nothing to do but wait, the wait is over at once."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Skipping(selectors.DefaultSelector):
    """Looks and does not wait; what it would have waited is added to ``skipped_s``."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or not timeout:
            return ready if ready or timeout is not None else super().select()
        self.skipped_s += timeout
        return []


class HurriedLoop(asyncio.SelectorEventLoop):
    """Its clock is the real one and everything that was skipped. For what touches no socket and no thread."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return super().time() + self._skipping.skipped_s


def run_hurried(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` to its end on a loop in a hurry."""
    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        runner.run(main)
