"""How much memory values take, as Python's allocators count it: more than their length, if a buffer was too large."""

import tracemalloc
from collections.abc import Callable


def measure_bytes_each(make: Callable[[int], object], count: int = 200) -> float:
    """Return the bytes that ``count`` results of ``make(0)``, ``make(1)``, … take each while all are in use."""
    make(0)  # what is made once, is made here
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        values = [make(number) for number in range(count)]
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(values) == count
    return taken / count
