"""Parses and translates large bodies in threads to keep the event loop responsive.

A single call into C still holds the interpreter lock: parsing the largest body takes about 25 ms in one such call.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple, Unpack

MAX_ON_LOOP = 1024 * 1024
"""Largest body, in bytes, that is decompressed, parsed and translated on the event loop: a few milliseconds."""
_WORKERS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="large")
"""A separate pool: a queue of large bodies must delay neither the database nor DNS lookups."""

Args = TypeVarTuple("Args")
T = TypeVar("T")


def call_on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[Unpack[Args]], object], *args: *Args) -> None:
    """Run ``call`` on the event loop.

    On the loop's own thread it runs at once. From a thread of ``run_in_thread`` it runs before the coroutine that waits
    for that thread continues.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop.call_soon_threadsafe(call, *args)
    else:
        call(*args)


async def run_by_size(size: int, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
    """Run ``work`` on ``size`` bytes: with ``run_in_thread`` if the size is large, else on the event loop."""
    return await run_in_thread(work, *args) if size > MAX_ON_LOOP else work(*args)


async def run_in_thread(work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
    """Run ``work`` in a thread; wait for it even if cancelled, because the arguments may be reused then."""
    work_future = asyncio.get_running_loop().run_in_executor(_WORKERS, work, *args)
    try:
        return await asyncio.shield(work_future)
    except asyncio.CancelledError:
        await asyncio.wait([work_future])
        raise
