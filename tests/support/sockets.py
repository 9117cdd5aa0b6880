"""The sockets that this process of tests has open, where the system tells: on Linux; and free ports."""

import asyncio
import contextlib
import os
import secrets
import socket
import stat

_OPEN = "/proc/self/fd"
_QUIET_PORTS = range(12_000, 32_000)
"""Below those that Linux chooses by itself: 32,768 to 60,999 (``ip_local_port_range``)."""


def count_sockets() -> int:
    """How many; 0 where that is not told."""
    count = 0
    with contextlib.suppress(FileNotFoundError):
        for number in os.listdir(_OPEN):  # noqa: PTH208 - with paths it takes three times as long, several times a test
            with contextlib.suppress(OSError):  # the one that lists them
                count += stat.S_ISSOCK(os.fstat(int(number)).st_mode)
    return count


def find_free_port() -> int:
    """A port of the loopback that is free now, for a program that cannot choose one and say which.

    The system gives it to no client's end of a connection, as it does with the ports that it chooses: a server that
    starts later, or again, finds it free.
    """
    while True:
        with socket.socket() as sock, contextlib.suppress(OSError):
            port = secrets.choice(_QUIET_PORTS)
            sock.bind(("127.0.0.1", port))
            return port


async def check_sockets(before: int) -> None:
    """There are no more than ``before``; those that are about to be closed are waited for."""
    for _ in range(40):
        if count_sockets() <= before:
            break
        await asyncio.sleep(0.005)
    assert count_sockets() <= before
