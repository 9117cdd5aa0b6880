"""Bounds the freed memory that glibc's ``malloc`` keeps: resident memory falls again after a burst.

By default glibc gives each thread its own arena, up to eight per core, and each arena keeps the memory of the largest
bodies that its thread has handled. After a large block has been freed, glibc also allocates blocks of that size in the
arenas, where smaller, longer-lived blocks prevent their return to the system (mallopt(3), ``M_MMAP_THRESHOLD``).
"""

import asyncio
import ctypes
from collections.abc import Callable

ARENAS = 2
"""One arena for the event loop, one for all other threads: while they allocate, most of them hold the interpreter
lock."""
MMAP_THRESHOLD_BYTES = 1024 * 1024
"""Blocks of at least this many bytes are mapped separately and unmapped when freed. Mapping a new page costs more than
copying into it, so ordinary bodies stay below this size."""
MAX_FREE_BYTES = 8 * 1024 * 1024
"""Free bytes at the end of an arena that are kept for later requests."""
CHECK_INTERVAL_S = 60.0
MAX_GROWTH_BYTES = 32 * 1024 * 1024
"""Growth of resident memory, in bytes, after which free pages inside the arenas are returned to the system, too."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # glibc's malloc.h


def bound_free_memory() -> bool:
    """Limit the free memory that glibc keeps. Return False if the C library is not glibc.

    Call it before threads start, because existing arenas stay.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS
        return False
    for name, value in (
        (_M_ARENA_MAX, ARENAS),
        (_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, MAX_FREE_BYTES),
    ):
        mallopt(name, value)
    return True


def give_back_free_memory() -> None:
    """Return free pages to the system; do nothing without glibc.

    The call takes about 1 ms per 4 MB, during which no other thread can allocate.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class MemoryTrimmer:
    """Returns freed memory to the system after resident memory has grown. ``measure`` returns that memory in bytes."""

    def __init__(self, measure: Callable[[], int]) -> None:
        self._measure = measure
        self._usual_bytes = measure()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await self.check()

    async def check(self) -> None:
        resident = self._measure()
        if resident - self._usual_bytes > MAX_GROWTH_BYTES:
            await asyncio.to_thread(give_back_free_memory)
            self._usual_bytes = self._measure()
        self._usual_bytes = min(self._usual_bytes, resident)
