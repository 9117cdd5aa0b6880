"""An event loop that does not wait: if nothing is ready, its clock jumps to the next timer, and else stands."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.support.repositories import close_databases, is_working

T = TypeVar("T")


class _Impatient(selectors.DefaultSelector):
    """Waits for databases only; adds up what else it was asked to wait."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0 and is_working():
            return super().select(None)
        if not ready:
            assert timeout is not None, "everything waits for something that will never happen"
            self.skipped += max(timeout, 0)
        return ready


class _SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._impatient = _Impatient()
        super().__init__(self._impatient)

    def time(self) -> float:
        return self._impatient.skipped


def run_skipping(scene: Coroutine[Any, Any, T]) -> T:
    """Run ``scene``, in which an hour passes in no time; only for scenes without sockets and other threads."""
    with asyncio.Runner(loop_factory=_SkippingLoop) as runner:
        try:
            return runner.run(scene)
        finally:
            runner.run(close_databases())
