"""Work on what is large, in threads: the event loop goes on between any two steps of it.

One step in C holds the interpreter, in whichever thread it is done: the largest body is parsed in one of some 25 ms.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple, Unpack

MAX_ON_LOOP = 1024 * 1024
"""Bytes of a body that the event loop itself unpacks, parses and translates: a few milliseconds."""
_WORKERS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="large")
"""Their own: a queue of large bodies must hold up neither the store nor the search for names."""

Args = TypeVarTuple("Args")
T = TypeVar("T")


async def work_aside(work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
    """What ``work`` returns or raises, done by a thread: it may change nothing that anybody else looks at.

    Whoever waits and is cancelled waits for its end all the same: what it works on may be used again then.
    """
    working = asyncio.get_running_loop().run_in_executor(_WORKERS, work, *args)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise
