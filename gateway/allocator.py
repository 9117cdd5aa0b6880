"""Bounds the freed memory that glibc's ``malloc`` keeps, so that resident memory falls again after a burst.

Left alone, glibc gives each thread an arena of its own, up to eight per core, and each arena keeps the memory of the
largest bodies that its thread has had. Once a large block is freed, glibc also takes blocks of that size from the
arenas from then on, where smaller ones that live longer prevent their return (mallopt(3), ``M_MMAP_THRESHOLD``).
"""

import asyncio
import ctypes
from collections.abc import Callable

ARENAS = 2
"""The event loop's, and one for all other threads: while they allocate, most of them hold the interpreter lock."""
LARGE = 1024 * 1024
"""Blocks of so many bytes are mapped one by one, and unmapped when they are freed. A page that is mapped anew costs
more than the copy into it: ordinary bodies are smaller."""
MOST_FREE = 8 * 1024 * 1024
"""Free bytes at the end of an arena that are kept for the next requests."""
LOOK_EVERY_S = 60.0
MOST_GROWN = 32 * 1024 * 1024
"""After so many bytes more of resident memory, what is free within the arenas is given back, too."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # glibc's malloc.h


def bound_free_memory() -> bool:
    """Bound what the C library keeps; return whether it can be bounded: only glibc's can.

    Must be called before threads are started: an arena that exists stays.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS
        return False
    for name, value in ((_M_ARENA_MAX, ARENAS), (_M_MMAP_THRESHOLD, LARGE), (_M_TRIM_THRESHOLD, MOST_FREE)):
        mallopt(name, value)
    return True


def give_back_free_memory() -> None:
    """Give back the free pages within the arenas: what a burst of bodies in many pieces has left. Only with glibc.

    It takes about a millisecond for each 4 MB, in which no other thread can allocate.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class MemoryTrimmer:
    """Gives freed memory back after resident memory has grown. ``measure``: returns the resident memory in bytes."""

    def __init__(self, measure: Callable[[], int]) -> None:
        self._measure = measure
        self._usual = measure()

    async def run(self) -> None:
        """Look once a minute, forever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Give memory back if the process has grown since the last time."""
        resident = self._measure()
        if resident - self._usual > MOST_GROWN:
            await asyncio.to_thread(give_back_free_memory)
            self._usual = self._measure()
        self._usual = min(self._usual, resident)
