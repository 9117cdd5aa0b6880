"""How long the event loop is held, as a multiple of the time that parsing the largest body takes."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable

import orjson

MB = 2**20
LARGEST = 4 * MB - 1024
"""A quarter of the largest body that is read: what is compared grows with the size as the measure does."""
TRIES = 5
"""The best of so many counts: what the code costs is the same in each."""
MAX_HANDLE = 4.0
"""Parsings of ``LARGEST`` bytes in one callback of the loop: 0.2 to 1.4 alone, 2.6 beside other tests, whose data takes
the caches. A response took 5.4 while the loop searched the whole event for its name."""


def converse(text: bytes) -> Callable[[], bytes]:
    """A conversation of one message, as long as it may be."""
    return lambda: b'{"model":"m","messages":[{"role":"user","content":"' + text * (LARGEST // len(text)) + b'"}]}'


PROSE = converse(b"the quick brown fox ")()


@contextlib.asynccontextmanager
async def watch_lag(clock: Callable[[], float] = time.process_time) -> AsyncIterator[list[float]]:
    """The most CPU time of one turn of the loop, in parsings; the one item of the list, when the block has ended.

    It is the time of all threads, as ``clock`` counts: a thread that holds the interpreter holds the loop.
    """
    worst = [0.0]
    gc.disable()  # the collector would walk what all tests keep; in a gateway that serves, such objects are frozen

    async def tick() -> None:
        before = clock()
        while True:
            await asyncio.sleep(0)
            now = clock()
            worst[0] = max(worst[0], now - before)
            before = now

    ticking = asyncio.create_task(tick())
    try:
        yield worst
    finally:
        gc.enable()
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
        worst[0] /= measure_parsing()


def measure_parsing() -> float:
    """CPU seconds that parsing ``LARGEST`` bytes takes at this moment, each time into memory that is new.

    So is what a gateway copies. Into memory that was used before, parsing takes two thirds of the time.
    """
    took, kept = [], []
    for _ in range(3):
        before = time.thread_time()
        kept.append(orjson.loads(PROSE))
        took.append(time.thread_time() - before)
    return sorted(took)[1]
