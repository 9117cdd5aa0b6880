"""The sockets that this process of tests has open, where the system tells: on Linux; and free ports."""

import asyncio
import contextlib
import os
import socket
import stat

_OPEN = "/proc/self/fd"


def count_sockets() -> int:
    """How many; 0 where that is not told."""
    count = 0
    with contextlib.suppress(FileNotFoundError):
        for number in os.listdir(_OPEN):  # noqa: PTH208 - with paths it takes three times as long, several times a test
            with contextlib.suppress(OSError):  # the one that lists them
                count += stat.S_ISSOCK(os.fstat(int(number)).st_mode)
    return count


def find_free_port() -> int:
    """A port of the loopback that is free now, for a program that cannot choose one and say which."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def check_sockets(before: int) -> None:
    """There are no more than ``before``; those that are about to be closed are waited for."""
    for _ in range(40):
        if count_sockets() <= before:
            break
        await asyncio.sleep(0.005)
    assert count_sockets() <= before
