"""Many deadlines with one timer of the event loop.

An event loop timer per request costs three microseconds or more: it is set, and nearly always cancelled before it
fires. Here a deadline costs one insertion into a set and one removal.
"""

import asyncio
import math
from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import Protocol

GAP_S = 1e-5
"""Pause between two checks, per registered deadline. With 5,000 streams a deadline may fire 50 ms late, and the checks
take a hundredth of the CPU time."""
NEVER = math.inf


class Deadline(Protocol):
    """Something that expires at ``due_at`` (loop time), which may be moved at any time."""

    due_at: float

    def expire(self, now_s: float) -> None:
        """Handle the expiry at ``now_s`` (loop time).

        Must remove this deadline from the timer (``DeadlineTimer.leave``) or set a later ``due_at``.
        """
        ...


class DeadlineTimer:
    """Expires deadlines with one timer of the event loop in which it is first used.

    ``fires_at`` is the time of the timer's next check (loop time); ``NEVER`` if the timer is not set. A registered
    deadline that was moved needs another ``enter`` only if it is now due before ``fires_at``.
    """

    def __init__(self) -> None:
        self._deadlines: set[Deadline] = set()
        self._handle: asyncio.TimerHandle | None = None
        self.fires_at = NEVER
        self.leave: Callable[[Deadline], None] = self._deadlines.discard
        """Remove a deadline. The timer stays set: the next deadline probably needs it."""

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The timer's event loop. Code of a request uses it, too: before Python 3.12, finding it is a system call."""
        return asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._deadlines)

    def enter(self, deadline: Deadline) -> None:
        """Register a deadline, or schedule an earlier check of a registered deadline."""
        self._deadlines.add(deadline)
        if deadline.due_at < self.fires_at:
            self._arm(deadline.due_at)

    def _arm(self, due_at: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self.fires_at = due_at
        self._handle = self.loop.call_at(due_at, self._check)

    def _check(self) -> None:
        self._handle, self.fires_at = None, NEVER
        now_s = self.loop.time()
        try:
            for deadline in [deadline for deadline in self._deadlines if deadline.due_at <= now_s]:
                if deadline in self._deadlines:
                    deadline.expire(now_s)
        finally:  # an error in one deadline must not stop the others
            due_at = min((deadline.due_at for deadline in self._deadlines), default=NEVER)
            if due_at < NEVER:
                self._arm(max(due_at, now_s + GAP_S * len(self._deadlines)))


class Timeout:
    """Bounds how long a task waits, like ``asyncio.timeout`` but on a ``DeadlineTimer`` and with a plain ``with``.

    ``timeout_s`` is counted from ``__enter__``; an instance can be entered once. Raises ``TimeoutError`` from the
    ``with`` block if the time runs out while the task waits in it.
    """

    __slots__ = ("_cancelling", "_has_expired", "_task", "_timeout_s", "_timer", "due_at")

    def __init__(self, timer: DeadlineTimer, timeout_s: float) -> None:
        self._timer = timer
        self._timeout_s = timeout_s
        self._task: asyncio.Task[object] | None = None
        self._has_expired = False
        self.due_at = NEVER

    def end(self) -> None:
        """Expire in the next turn of the event loop."""
        # Deferred to the next turn because the task itself may call this when it waits for nothing more. Before Python
        # 3.13 the cancellation would then interrupt the task's next wait, wherever that is.
        self._timer.loop.call_soon(self.expire, self.due_at)

    def expire(self, now_s: float) -> None:  # noqa: ARG002 - the protocol's signature
        self._timer.leave(self)
        if self._task is not None and not self._has_expired:
            self._has_expired = True
            self._task.cancel()

    def __enter__(self) -> None:
        loop = self._timer.loop
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
        if (
            self._has_expired
            and task is not None
            and task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error
