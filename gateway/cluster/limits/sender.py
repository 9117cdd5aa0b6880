"""Sends commands to the server of shared rate limits, one at a time, and tells whether it can be reached."""

import asyncio
import contextlib
from typing import Literal, Protocol

import structlog

from gateway.domain.limit_server import LimitServer
from gateway.errors import StoreUnavailable

TIMEOUT_S = 0.05
"""How long a request waits for the server's answer, in seconds."""
BEAT_S = 2.0
"""How often a gateway without commands contacts the server, in seconds."""
_MAX_ANSWER_S = 1.0
_PROBE_INTERVAL_S = 1.0
_CONNECT_TIMEOUT_S = 5.0
_MAX_LATE_ANSWERS = 3

log = structlog.stdlib.get_logger(__name__)


class LimitWork(Protocol):
    """The source and receiver of a sender's batches. A batch runs from ``collect`` to ``deliver`` or ``drop``."""

    def collect(self, *, leaves: bool = False) -> bytes: ...

    def deliver(self, answer: bytes) -> None: ...

    def decide_locally(self) -> None:
        """Decide the waiting requests, in the batch and outside it, without the server."""
        ...

    def drop(self) -> None:
        """Forget the batch: it is unknown whether the server has decided it."""
        ...

    def begin_absence(self) -> None: ...


class LimitSender:
    """Runs one command at a time with all waiting work.

    If an answer takes longer than ``timeout_s``, the waiting requests are decided without it. After three late answers
    in a row, an answer that takes more than a second, or a broken connection, nothing is sent for a second.

    ``timeout_s``: how long a request waits. ``away``: whether requests must be decided without the server.
    """

    def __init__(self, server: LimitServer, work: LimitWork, timeout_s: float = TIMEOUT_S) -> None:
        self._server = server
        self._work = work
        self._timeout_s = timeout_s
        self._wake = asyncio.Event()
        self._state: Literal["new", "reached", "lost"] = "new"
        self._is_late = False
        self._late_answer_count = 0
        self._linger_timer: asyncio.TimerHandle | None = None
        self.away = True

    @property
    def reached(self) -> bool:
        """Whether the server is in use: a single late answer changes nothing."""
        return self._state == "reached"

    @property
    def server_name(self) -> str:
        return self._server.name

    def wake(self) -> None:
        """Send waiting work as soon as no other command is in progress."""
        self._wake.set()

    def wake_within(self, seconds: float) -> None:
        """Send waiting work with the next command, after ``seconds`` at the latest."""
        if self._linger_timer is None:
            self._linger_timer = asyncio.get_running_loop().call_later(seconds, self._end_linger)

    async def run(self) -> None:
        try:
            while True:
                if await self._connect():
                    await self._send_while_reached()
                _check_cancelled()
                await asyncio.sleep(_PROBE_INTERVAL_S)
        finally:
            self._switch_to_local("")
            await self._leave()

    async def _connect(self) -> bool:
        """Open the connection and test it; return whether the server answers in time."""
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await self._server.connect()
        except (StoreUnavailable, TimeoutError) as error:
            self._switch_to_local(str(error) or "no connection in time")
            return False
        self._late_answer_count = 0
        return await self._send() and not self._late_answer_count

    async def _send_while_reached(self) -> None:
        self.away = False
        if self._state == "lost":
            log.info("rate_limits_shared", url=self._server.name)
        self._state = "reached"
        while True:
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._wake.wait()
            except TimeoutError:
                pass  # the server must see that this gateway is alive
            if not await self._send():
                return
            _check_cancelled()
            if self._late_answer_count >= _MAX_LATE_ANSWERS:
                self._switch_to_local("its answers are late")
                return

    async def _send(self) -> bool:
        self._wake.clear()
        command = self._work.collect()
        self._is_late = False
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._decide_late_requests)
        try:
            async with asyncio.timeout(max(_MAX_ANSWER_S, self._timeout_s)):
                answer = await self._server.run(command)
        except (StoreUnavailable, TimeoutError) as error:
            self._switch_to_local(str(error) or "no answer in time")
            self._work.drop()
            return False
        finally:
            timer.cancel()
        self._late_answer_count = self._late_answer_count + 1 if self._is_late else 0
        self._work.deliver(answer)
        if self._state == "reached":
            self.away = False
        return True

    def _decide_late_requests(self) -> None:
        self._is_late = True
        self._begin_absence()
        self._work.decide_locally()

    def _switch_to_local(self, reason: str) -> None:
        """Switch to decisions without the server."""
        self._begin_absence()
        self._work.decide_locally()
        if self._state != "lost" and reason:
            self._state = "lost"
            log.warning("rate_limits_alone", url=self._server.name, reason=reason)

    def _begin_absence(self) -> None:
        if not self.away:
            self.away = True
            self._work.begin_absence()

    def _end_linger(self) -> None:
        self._linger_timer = None
        self.wake()

    async def _leave(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(_MAX_ANSWER_S):
                if self._state == "reached":
                    await self._server.run(self._work.collect(leaves=True))
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(_MAX_ANSWER_S):
                await self._server.close()


def _check_cancelled() -> None:
    """Raise ``CancelledError`` if the task was cancelled: a client library may have swallowed the cancellation."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
