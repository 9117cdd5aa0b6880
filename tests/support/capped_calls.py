"""Calls of a key that has a cap."""

import asyncio
from typing import Any

from tests.support.scripted_upstream import DONE, LAST_CHUNK, SSE_HEAD, Step, chunk, delta, event, usage_frame

RESERVE = 18 * 1_000 + 4_096 * 2_000
"""Of ``HELLO``: 18 tokens of prompt at the most, and the output of a caller who does not bound it; nano-USD."""


FIRST = event(delta("good"))


def stream_until(go: asyncio.Event, usage: dict[str, Any] | None = None) -> list[Step]:
    """A good stream that stands still after its first event until ``go`` is set."""

    async def wait(_received: object) -> None:
        await go.wait()

    rest = event(delta(" words", "stop")) + event(usage or usage_frame()) + DONE
    return [SSE_HEAD, chunk(FIRST), wait, chunk(rest), LAST_CHUNK]
