"""The servers of one database: a primary, which takes writes, and its standbys.

``asyncpg`` gives all hosts of a URL one time limit, so a host that drops packets would use up the time of the others.
Here the host that answered last is tried first, and after ``HEAD_START_S`` all others at once.

A server that stops without closing its connections leaves statements waiting. ``Hosts.suspect`` then opens a new
connection; if the server does not answer that either, all its connections are closed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit
from weakref import WeakKeyDictionary

import asyncpg
import structlog

from gateway.frozen import frozen

Connection: TypeAlias = Any
"""asyncpg's ``Connection``, which is untyped."""
HEAD_START_S = 1.0
"""How long the preferred host is tried alone, in seconds."""
CONNECT_TIMEOUT_S = 3.0
"""How long each host is tried, in seconds."""
SUSPECT_S = 2.0
"""How long a statement runs before its server is tried with a new connection, in seconds."""
FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The errors of asyncpg if a server ends, restarts, does not answer, or refuses a statement.

The last type occurs if a connection breaks in the middle of a reply.
"""
_PORT = 5432

log = structlog.stdlib.get_logger(__name__)


@frozen
class Host:
    """A server. Unless the URL names several, ``name`` is empty.

    asyncpg then takes the host from the URL, from ``PGHOST``, or its default.
    """

    name: str = ""
    port: int = _PORT

    def __str__(self) -> str:
        return f"{self.name or 'the host of the URL'}:{self.port}"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``asyncpg.connect``, which take precedence over the URL."""
        return {"host": self.name, "port": self.port} if self.name else {}


class Hosts:
    """The servers named by a URL. Their order, and what is known of them, is shared by all pools of the process."""

    def __init__(
        self, hosts: Sequence[Host], head_start_s: float = HEAD_START_S, pause_s: float = CONNECT_TIMEOUT_S
    ) -> None:
        self._hosts = list(hosts)
        self._head_start_s, self._pause_s = head_start_s, pause_s
        self._connections: WeakKeyDictionary[Connection, Host] = WeakKeyDictionary()
        self._checks: dict[Host, asyncio.Task[None]] = {}

    @property
    def has_several(self) -> bool:
        return len(self._hosts) > 1

    async def connect(self, open_connection: Callable[[Host], Awaitable[Connection]]) -> Connection:
        """Return the first connection that any host opens; that host is preferred from then on.

        The others are tried if the preferred host has failed, or has not answered within its head start.

        If all fail, raises the first error that a server has sent, such as a wrong password; if no server answered,
        the first error.
        """
        preferred_host, *other_hosts = self._hosts
        if not other_hosts:
            return self._remember(await open_connection(preferred_host), preferred_host)
        tasks: dict[asyncio.Task[Connection], Host] = {
            asyncio.ensure_future(open_connection(preferred_host)): preferred_host
        }
        winner: asyncio.Task[Connection] | None = None
        try:
            await asyncio.wait(tasks, timeout=self._head_start_s)
            if (winner := _find_winner(tasks)) is None:
                tasks |= {asyncio.ensure_future(open_connection(host)): host for host in other_hosts}
                winner = await _await_winner(tasks)
            if winner is None:
                raise _pick_error([task.exception() for task in tasks])
            self._prefer(tasks[winner])
            return self._remember(winner.result(), tasks[winner])
        finally:
            await _abandon([task for task in tasks if task is not winner])

    def suspect(
        self, connection: Connection, open_connection: Callable[[Host], Awaitable[Connection]], tries: int = 1
    ) -> None:
        """Check the server of a ``connection`` whose statement takes long, unless a check is running.

        A server that ``tries`` times in a row does not answer, or refuses connections, loses all its connections.
        """
        host = self._connections.get(connection)
        if host is None or ((check := self._checks.get(host)) is not None and not check.done()):
            return
        self._checks[host] = asyncio.get_running_loop().create_task(self._check(host, open_connection, tries))

    async def _check(self, host: Host, open_connection: Callable[[Host], Awaitable[Connection]], tries: int) -> None:
        failure: OSError | None = None
        for _ in range(tries):
            if failure is not None and not isinstance(failure, TimeoutError):
                await asyncio.sleep(self._pause_s)  # a refusal comes at once: it must count no more than a silence
            try:
                (await open_connection(host)).terminate()
            except OSError as error:  # a time-out is one, too
                failure = error
            except FAILURES:  # the server answers: it may only have too many connections
                return
            else:
                return
        if failure is not None:
            self._drop(host, failure)

    def _drop(self, host: Host, error: Exception) -> None:
        """Close all connections to a server that takes no new ones, and try it last."""
        lost_connections = [
            connection for connection, connection_host in self._connections.items() if connection_host == host
        ]
        for connection in lost_connections:
            connection.terminate()
        self._hosts.sort(key=lambda candidate: candidate == host)
        reason = str(error) or type(error).__name__
        log.warning("store_silent", address=str(host), error=reason)

    def _prefer(self, host: Host) -> None:
        if self._hosts[0] != host:
            log.warning("store_host_changed", address=str(host))
            self._hosts.sort(key=lambda candidate: candidate != host)

    def _remember(self, connection: Connection, host: Host) -> Connection:
        self._connections[connection] = host
        return connection


@lru_cache(maxsize=16)
def share_hosts(url: str) -> Hosts:
    """Return the servers of ``url``: the same object for every pool, because a server fails for all of them."""
    return Hosts(parse_hosts(url))


def parse_hosts(url: str) -> Sequence[Host]:
    """Return the hosts of a URL in order if it names several.

    A URL of one host or with an invalid list gives one empty ``Host``: asyncpg then uses the URL itself, and reports
    what is wrong.
    """
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    netloc = parts.netloc.rpartition("@")[2]
    if netloc:
        names = [split_port(text) for text in netloc.split(",")]
    elif "host" in options:
        names = [(name, "") for name in options["host"][-1].split(",")]
    else:
        return [Host()]
    ports = options["port"][-1].split(",") if "port" in options else []
    if len(ports) == 1:
        ports *= len(names)
    ports += [""] * len(names)
    hosts = [(unquote(name), port or listed_port) for (name, port), listed_port in zip(names, ports, strict=False)]
    if len(hosts) < 2 or not all(name and (port or "1").isdecimal() for name, port in hosts):  # noqa: PLR2004
        return [Host()]
    return list(dict.fromkeys(Host(name, int(port or _PORT)) for name, port in hosts))


def split_port(text: str) -> tuple[str, str]:
    """Return the name and port of ``host:port``, ``[::1]:port`` or a host alone; the port is empty if missing."""
    if text.startswith("["):
        name, _, rest = text[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = text.partition(":")
    return name, port


def _find_winner(tasks: dict[asyncio.Task[Connection], Host]) -> asyncio.Task[Connection] | None:
    return next((task for task in tasks if task.done() and task.exception() is None), None)


async def _await_winner(tasks: dict[asyncio.Task[Connection], Host]) -> asyncio.Task[Connection] | None:
    while (winner := _find_winner(tasks)) is None:
        running_tasks = [task for task in tasks if not task.done()]
        if not running_tasks:
            return None
        await asyncio.wait(running_tasks, return_when=asyncio.FIRST_COMPLETED)
    return winner


def _pick_error(errors: Sequence[BaseException | None]) -> BaseException:
    """Return the first error that a server has sent, such as a wrong password; else the first error."""
    raised_errors = [error for error in errors if error is not None]
    return next((error for error in raised_errors if isinstance(error, asyncpg.PostgresError)), raised_errors[0])


async def _abandon(tasks: Sequence[asyncio.Task[Connection]]) -> None:
    """End the attempts at other hosts, and close the connections that they have opened meanwhile."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(result, BaseException):
            result.terminate()
