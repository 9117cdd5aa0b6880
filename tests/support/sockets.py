"""The sockets that this process of tests has open, where the system tells: on Linux."""

import asyncio
import contextlib
import os

_OPEN = "/proc/self/fd"


def count_sockets() -> int:
    """How many; 0 where that is not told."""
    count = 0
    with contextlib.suppress(FileNotFoundError):
        for number in os.listdir(_OPEN):  # noqa: PTH208 - with paths it takes three times as long, several times a test
            with contextlib.suppress(OSError):  # the one that lists them
                count += os.readlink(f"{_OPEN}/{number}").startswith("socket:")  # noqa: PTH115
    return count


async def check_sockets(before: int) -> None:
    """There are no more than ``before``; those that are about to be closed are waited for."""
    for _ in range(40):
        if count_sockets() <= before:
            break
        await asyncio.sleep(0.005)
    assert count_sockets() <= before
