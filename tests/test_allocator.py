"""What glibc keeps of freed memory, in a process of its own: settings of the allocator are for the whole process."""

import platform
import subprocess
import sys

import pytest

BURST = """
import asyncio, ctypes, resource, threading
from gateway.allocator import MAX_GROWTH_BYTES, MemoryTrimmer, bound_free_memory
bound_free_memory()
libc = ctypes.CDLL(None)
libc.open_memstream.restype = ctypes.c_void_p
kept = []

def measure():
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    return text.value.count(b"<heap nr"), resident // 2**20

def receive(together):
    for size in (1, 2, 3, 4, 3, 2, 1, 4):
        together.wait()
        body = b"x" * (size * 2**20)
        kept.append(bytes(2_000))  # as what a request leaves in a cache
        parts = [body[:-1], body[1:]]
        del body, parts
        together.wait()

pieces = [b"x" * 60_000 + b"%d" % number for number in range(1_500)]  # as a body arrives
kept += pieces[::7]
del pieces
free = measure()[1]
trimmer = MemoryTrimmer(lambda: 0)
asyncio.run(trimmer.check())
assert measure()[1] > free - 5  # it has not grown
trimmer = MemoryTrimmer(iter([0, MAX_GROWTH_BYTES + 1, 1]).__next__)
asyncio.run(trimmer.check())
given_back = free - measure()[1]
kept.clear()
before = measure()[1]
together = threading.Barrier(8)
threads = [threading.Thread(target=receive, args=(together,)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
arenas, after = measure()
print(arenas, after - before, given_back)
"""
MOST_KEPT_MB = 5
LEAST_GIVEN_BACK_MB = 50
"""Of the 70 MB that the pieces of bodies took and that others between them, still in use, would keep."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_a_burst_of_large_bodies_in_threads_leaves_two_arenas_and_little_memory() -> None:
    done = subprocess.run([sys.executable, "-c", BURST], capture_output=True, text=True, check=True)
    arenas, kept_mb, given_back_mb = map(int, done.stdout.split())
    assert arenas <= 2
    assert kept_mb <= MOST_KEPT_MB
    assert given_back_mb >= LEAST_GIVEN_BACK_MB
