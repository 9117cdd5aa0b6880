"""After every fault: no descriptor left open; and what was seen of it is noted for the table at the end of the run."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.table import Notes

_OPEN = Path("/proc/self/fd")


def _count_sockets() -> int:
    count = 0
    for descriptor in _OPEN.iterdir():
        with contextlib.suppress(OSError):  # the one that lists them
            count += str(descriptor.readlink()).startswith("socket:")
    return count


@pytest.fixture(autouse=True)
async def no_socket_is_left() -> AsyncIterator[None]:
    """Set up before the gateway and looked at after it."""
    if not _OPEN.exists():
        yield
        return
    before = _count_sockets()
    yield
    for _ in range(40):
        if _count_sockets() <= before:
            break
        await asyncio.sleep(0.005)
    assert _count_sockets() <= before
    gc.collect(1)  # what was not released says so now, in the test that is to blame


@pytest.fixture
def notes(request: pytest.FixtureRequest) -> Notes:
    return Notes(request.node)
