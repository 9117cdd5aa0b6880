"""Many deadlines with one timer of the event loop.

An event loop timer per request costs three microseconds or more: it is set, and nearly always cancelled before it
fires. Here a deadline costs one insertion into a set and one removal.
"""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

GAP_S = 1e-5
"""Pause between two checks, per registered deadline. With 5,000 streams a deadline may fire 50 ms late, and the checks
take a hundredth of the CPU time."""
NEVER = math.inf


class Deadline(Protocol):
    """Something that expires at ``due_at`` (loop time), which may be moved at any time."""

    due_at: float

    def expire(self, now: float) -> None:
        """Handle the expiry at ``now`` (loop time): leave the timer, or set another ``due_at``."""
        ...


class DeadlineTimer:
    """Expires deadlines with one timer of the event loop in which it is first used.

    ``fires_at``: time of the timer's next check (loop time); ``NEVER`` if the timer is not set. A registered deadline
    that was moved needs another ``enter`` only if it is now due before ``fires_at``.
    """

    def __init__(self) -> None:
        self._waiting: set[Deadline] = set()
        self._handle: asyncio.TimerHandle | None = None
        self.fires_at = NEVER
        self.leave: Callable[[Deadline], None] = self._waiting.discard
        """Remove a deadline. The timer stays set: the next deadline probably needs it."""

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, one: Deadline) -> None:
        """Register a deadline, or schedule an earlier check of a registered deadline."""
        self._waiting.add(one)
        if one.due_at < self.fires_at:
            self._arm(one.due_at)

    def _arm(self, at: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self.fires_at = at
        self._handle = asyncio.get_running_loop().call_at(at, self._check)

    def _check(self) -> None:
        self._handle, self.fires_at = None, NEVER
        now = asyncio.get_running_loop().time()
        try:
            for one in [one for one in self._waiting if one.due_at <= now]:
                if one in self._waiting:
                    one.expire(now)
        finally:  # an error in one deadline must not stop the others
            due_at = min((one.due_at for one in self._waiting), default=NEVER)
            if due_at < NEVER:
                self._arm(max(due_at, now + GAP_S * len(self._waiting)))


class Timeout:
    """Bounds how long a task waits, like ``asyncio.timeout`` but on a ``DeadlineTimer`` and with a plain ``with``.

    ``timeout_s``: counted from ``__enter__``; an instance can be entered once. Raises ``TimeoutError`` at the end of
    the ``with`` block if the time has run out.
    """

    __slots__ = ("_cancelling", "_out", "_task", "_timeout_s", "_timer", "due_at")

    def __init__(self, timer: DeadlineTimer, timeout_s: float) -> None:
        self._timer = timer
        self._timeout_s = timeout_s
        self._task: asyncio.Task[object] | None = None
        self._out = False
        self.due_at = NEVER

    def end(self) -> None:
        """Expire in the next turn of the event loop."""
        # Deferred to the next turn because the task itself may call this when it waits for nothing more. Before Python
        # 3.13 the cancellation would then interrupt the task's next wait, wherever that is.
        asyncio.get_running_loop().call_soon(self.expire, self.due_at)

    def expire(self, now: float) -> None:  # noqa: ARG002 - the protocol's signature
        self._timer.leave(self)
        if self._task is not None and not self._out:
            self._out = True
            self._task.cancel()

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("only a task can have a timeout")
        self.due_at = loop.time() + self._timeout_s
        self._cancelling = task.cancelling()
        self._timer.enter(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.leave(self)
        task, self._task = self._task, None
        if self._out and task is not None and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
