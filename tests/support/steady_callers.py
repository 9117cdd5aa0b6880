"""Callers that send a fixed number of requests a second, whatever becomes of those before."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import attrs

from tests.support.gateway import CHAT, HELLO
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.scripted_upstream import DONE

WHOLE = {**HELLO, "max_tokens": 10}
STREAM = {**WHOLE, "model": "s", "stream": True}


@attrs.frozen
class Answer:
    """What a node answered, when (seconds of the monotonic clock), and how long it took.

    A ``status`` of 0 is no answer, or a part of a stream.
    """

    node: int
    key: int
    status: int
    at_s: float
    took_s: float
    retry_after: str | None


class SteadyCallers:
    """Requests of each of ``secrets`` in turn, at each of ``nodes`` in turn.

    Each waits ``within_s`` seconds for its answer. ``bodies``: sent in turn.

    Attributes:
        answers: in the order in which they came.
        sent: how many requests were sent.
    """

    def __init__(
        self,
        nodes: Sequence[GatewayProcess],
        secrets: Sequence[str],
        within_s: float = 10,
        bodies: Sequence[Mapping[str, Any]] = (WHOLE,),
    ) -> None:
        self._nodes, self._secrets, self._within_s, self._bodies = nodes, secrets, within_s, bodies
        self._tasks: set[asyncio.Task[None]] = set()
        self.answers: list[Answer] = []
        self.sent = 0

    @asynccontextmanager
    async def run(self, per_s: float) -> AsyncIterator[None]:
        """Send requests while the block runs, and wait for the last answers."""
        callers = [open_caller(secret, self._within_s) for secret in self._secrets]
        task = asyncio.create_task(self._send(callers, per_s))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, *self._tasks, return_exceptions=True)
            for caller in callers:
                await caller.close()

    def count(self, node: int | None = None, since_s: float = 0.0, until_s: float = float("inf")) -> Counter[int]:
        """How often each status was answered, by all nodes or one of them, between two moments."""
        return Counter(
            each.status for each in self.answers if node in (None, each.node) and since_s <= each.at_s < until_s
        )

    async def wait(self, more: int, *, status: int = 200, node: int | None = None, within_s: float = 60) -> None:
        """Wait for more answers of ``status``."""
        until = self.count(node)[status] + more

        async def is_reached() -> bool:
            return self.count(node)[status] >= until

        try:
            await eventually(is_reached, within_s)
        except TimeoutError:
            raise AssertionError((self.count(node), status, more)) from None

    async def _send(self, callers: Sequence[aiohttp.ClientSession], per_s: float) -> None:
        began_s = time.monotonic()
        while True:
            key, node = self.sent % len(callers), self.sent // len(callers) % len(self._nodes)
            body = self._bodies[self.sent % len(self._bodies)]
            task = asyncio.create_task(self._call(callers[key], key, node, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self.sent += 1
            await asyncio.sleep(max(0.0, began_s + self.sent / per_s - time.monotonic()))

    async def _call(self, caller: aiohttp.ClientSession, key: int, node: int, body: Mapping[str, Any]) -> None:
        began_s, status, retry_after = time.monotonic(), 0, None
        try:
            async with caller.post(self._nodes[node].url + CHAT, json=body) as response:
                answer = await response.read()
                if response.status != 200 or "stream" not in body or answer.endswith(DONE):
                    status, retry_after = response.status, response.headers.get("Retry-After")
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        now_s = time.monotonic()
        self.answers.append(Answer(node, key, status, now_s, now_s - began_s, retry_after))
