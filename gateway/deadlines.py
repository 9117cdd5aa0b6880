"""One timer for many deadlines: whoever waits is entered in a set, and the set is looked through when the first is due.

A timer of the loop's own costs each request three microseconds and more, to be armed and to be cancelled again before
it was ever needed. Here a deadline costs an entry and its removal.
"""

import asyncio
import math
from types import TracebackType
from typing import Protocol

GAP_S = 1e-5
"""Between two looks through the set, for each of those in it: with 5,000 streams a deadline may be met 50 ms late, and
looking takes a hundredth of the time."""


class Deadline(Protocol):
    """Who waits for something. ``due_at``: loop time; it may be put off meanwhile."""

    due_at: float

    def expire(self, now: float) -> None:
        """It is due. Either it leaves the sweep, or ``due_at`` is another afterwards."""
        ...


class DeadlineTimer:
    """Everybody who waits. One of the event loop it is first used in."""

    def __init__(self) -> None:
        self._waiting: set[Deadline] = set()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, one: Deadline) -> None:
        """Watch over ``one``, which leaves again by itself."""
        self._waiting.add(one)
        if self._handle is None or one.due_at < self._armed_at:
            self._arm(one.due_at)

    def leave(self, one: Deadline) -> None:
        """No more. The timer stays: the next one who waits may find it armed."""
        self._waiting.discard(one)

    def _arm(self, at: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_at = at
        self._handle = asyncio.get_running_loop().call_at(at, self._look)

    def _look(self) -> None:
        self._handle = None
        now = asyncio.get_running_loop().time()
        try:
            for one in [one for one in self._waiting if one.due_at <= now]:
                if one in self._waiting:
                    one.expire(now)
        finally:  # a bug in one of them must not be everybody's silence
            if self._waiting:
                self._arm(max(min(one.due_at for one in self._waiting), now + GAP_S * len(self._waiting)))


class Timeout:
    """A bound on what a task waits for: ``asyncio.timeout``, with the sweep for a timer. A plain ``with``.

    Args:
        sweep: watches over it.
        patience_s: from when it is entered, which is once.

    Raises ``TimeoutError`` at its end where it ran out.
    """

    __slots__ = ("_cancelling", "_out", "_sweep", "_task", "_timeout_s", "due_at")

    def __init__(self, sweep: DeadlineTimer, timeout_s: float) -> None:
        self._sweep = sweep
        self._timeout_s = timeout_s
        self._task: asyncio.Task[object] | None = None
        self._out = False
        self.due_at = math.inf

    def end(self) -> None:
        """Run out at once.

        Not within this very call: it may come from the task itself, which is not to be cancelled where
        it waits for nothing more: before Python 3.13 it would be so at its next wait, wherever that is.
        """
        asyncio.get_running_loop().call_soon(self.expire, self.due_at)

    def expire(self, now: float) -> None:  # noqa: ARG002 - the sweep's signature
        """Whatever the task waits for, it waits no longer."""
        self._sweep.leave(self)
        if self._task is not None and not self._out:
            self._out = True
            self._task.cancel()

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("only a task can be patient")
        self.due_at = loop.time() + self._timeout_s
        self._cancelling = task.cancelling()
        self._sweep.enter(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sweep.leave(self)
        task, self._task = self._task, None
        if self._out and task is not None and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
