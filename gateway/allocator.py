"""Bounds the freed memory that glibc's ``malloc`` keeps, so that resident memory falls again after a burst.

Left alone, glibc gives each thread an arena of its own, up to eight per core, and each arena keeps the memory of the
largest bodies that its thread has had. Once a large block is freed, glibc also takes blocks of that size from the
arenas from then on, where smaller ones that live longer prevent their return (mallopt(3), ``M_MMAP_THRESHOLD``).
"""

import ctypes

from gateway.large_work import MAX_ON_LOOP

ARENAS = 2
"""The event loop's, and one for all other threads: while they allocate, most of them hold the interpreter lock."""
LARGE = MAX_ON_LOOP
"""Blocks of so many bytes are mapped one by one, and unmapped when they are freed. A page that is mapped anew costs
more than the copy into it: ordinary bodies are smaller."""
MOST_FREE = 8 * 1024 * 1024
"""Free bytes at the end of an arena that are kept for the next requests."""
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
