"""A short-lived DNS cache, with one query per name at a time."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from aiohappyeyeballs import AddrInfoType

TTL_S = 10.0
MAX_NAMES = 512

Resolve = Callable[[str, int], Awaitable[Sequence[AddrInfoType]]]
_Key = tuple[str, int]


async def resolve(host: str, port: int) -> Sequence[AddrInfoType]:
    """Resolve a name with the system's resolver. Raises ``OSError``, or ``ValueError`` for an invalid name."""
    loop = asyncio.get_running_loop()
    return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)


def find_literal(host: str, port: int) -> Sequence[AddrInfoType]:
    """Parse an IP address; empty if ``host`` is a name. Sends no query."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return []


class DnsCache:
    """Addresses by name. Failures are not cached."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._entries: dict[_Key, tuple[float, Sequence[AddrInfoType]]] = {}
        self._queries: dict[_Key, asyncio.Task[Sequence[AddrInfoType]]] = {}

    async def find(self, host: str, port: int) -> Sequence[AddrInfoType]:
        """Return at least one address. Raises ``OSError``, or ``ValueError`` for an invalid name."""
        if infos := find_literal(host, port):
            return infos
        key = (host, port)
        loop = asyncio.get_running_loop()
        until_s, infos = self._entries.get(key, (0.0, []))
        if loop.time() < until_s:
            return infos
        task = self._queries.get(key)
        if task is None:
            task = self._queries[key] = loop.create_task(self._ask(key))
            task.add_done_callback(_retrieve_exception)
        # Cancelling one waiter does not cancel the query of the others.
        return await asyncio.shield(task)

    def forget(self, host: str, port: int) -> None:
        """Drop the cached addresses of a name after a failed connection. The next ``find`` resolves the name again."""
        self._entries.pop((host, port), None)

    async def close(self) -> None:
        tasks = list(self._queries.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, key: _Key) -> Sequence[AddrInfoType]:
        try:
            infos = await self._resolve(*key)
        finally:
            self._queries.pop(key, None)
        if not infos:
            raise OSError("The name has no address")
        if len(self._entries) >= MAX_NAMES:
            self._entries.clear()
        self._entries[key] = (asyncio.get_running_loop().time() + TTL_S, infos)
        return infos


def _retrieve_exception(task: asyncio.Task[Sequence[AddrInfoType]]) -> None:
    """Retrieve the exception, which asyncio would log otherwise: all waiters may have been cancelled."""
    if not task.cancelled():
        task.exception()
