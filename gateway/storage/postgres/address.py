"""The address of a database on a PostgreSQL server, connections to it, and what ``gateway doctor`` reads there."""

import asyncio
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from urllib.parse import parse_qs, urlsplit

import asyncpg

from gateway.storage.postgres.hosts import CONNECT_TIMEOUT_S, FAILURES, Host, share_hosts
from gateway.storage.postgres.timeline import NewestTimeline

NODE_PREFIX = "gateway node "
"""The prefix of the names of a node's connections. The id and a space follow, except in ``upgrade_user``."""
_LIST_CONFIGURATIONS = "SELECT id, config_digest FROM nodes WHERE state = 'live' ORDER BY id"
_IS_UNFINISHED = "SELECT EXISTS (SELECT 1 FROM cluster WHERE starts_with(name, 'unfinished '))"
_READ_ONLY = "SET default_transaction_read_only = on"
_KEEP_ALIVE = {"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3"}


class Address:
    """The address in ``store.url``. Its options take precedence over the gateway's settings of a connection.

    The name of a connection (``application_name``) is always the gateway's own, because nodes find each other's
    connections by it. ``node`` is the id of this node, empty for a single gateway.

    Attributes:
        name: the address without user, password and options.
        user: the name of this process's connections (``application_name``).
        upgrade_user: the name of the connection that upgrades the schema. If a former process of this node is declared
            dead, other nodes end the connections whose names begin like ``user``, but not this one.
    """

    def __init__(self, url: str, node: str = "", timeline: NewestTimeline | None = None) -> None:
        self._url = url
        self.timeline = NewestTimeline() if timeline is None else timeline
        self._options = parse_qs(urlsplit(url).query)
        self._hosts = share_hosts(url)
        # Of several servers at most one takes writes, and its standbys answer as quickly.
        chooses_host = self._hosts.has_several and "target_session_attrs" not in self._options
        self._attributes = {"target_session_attrs": "read-write"} if chooses_host else {}
        self.name = describe_url(url)
        default_user = f"{NODE_PREFIX}{node}" if node else f"gateway {socket.gethostname()[:30]}"
        self.user = f"{default_user} {os.getpid()} {secrets.token_hex(4)}"
        prefix = NODE_PREFIX if node else "gateway "
        self.upgrade_user = f"{prefix}upgrade {self.user.removeprefix(prefix)}"

    async def connect(self, **settings: str) -> asyncpg.Connection:
        """Open a connection with these server ``settings``. Raises ``FAILURES`` and ``ValueError``."""
        # JIT compilation pays off only for statements that take seconds, and the gateway has none.
        default_settings = {"jit": "off", **_KEEP_ALIVE, **settings}
        used_settings = {name: value for name, value in default_settings.items() if name not in self._options}
        used_settings["application_name"] = settings.get("application_name", self.user)
        return await self._hosts.connect(partial(self._open, used_settings))

    def suspect(self, connection: asyncpg.Connection, tries: int = 1) -> None:
        """Check the server of a ``connection`` whose statement takes long; see ``Hosts.suspect``."""
        self._hosts.suspect(connection, partial(self._open, {"application_name": self.user}), tries)

    async def _open(self, settings: Mapping[str, str], host: Host) -> asyncpg.Connection:
        connection = await asyncpg.connect(
            dsn=self._url,
            timeout=CONNECT_TIMEOUT_S,
            server_settings=dict(settings),
            **host.arguments,
            **self._attributes,
        )
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self.timeline.check(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def connect_reader(self, **settings: str) -> asyncpg.Connection:
        """Open a connection that refuses every write. Raises the errors of ``connect``."""
        connection = await self.connect(**settings)
        try:  # a setting from the start would be taken for that of a server which is not "read-write"
            await connection.execute(_READ_ONLY, timeout=CONNECT_TIMEOUT_S)
        except BaseException:
            connection.terminate()
            raise
        return connection


def describe_url(url: str) -> str:
    """Return a database URL without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


async def find_schema(url: str) -> str | Exception:
    """Return the schema revision of a database, empty if it has none; or the error if the database cannot be read."""
    try:
        connection = await Address(url).connect(statement_timeout="3s")
        try:
            return str(await connection.fetchval("SELECT version_num FROM alembic_version"))
        except asyncpg.UndefinedTableError:
            return ""
        finally:
            connection.terminate()
    except (*FAILURES, ValueError) as error:
        return error


async def find_unfinished(url: str) -> bool:
    """Return whether an upgrade of the schema ended half-way, or is under way; False if the database cannot be read."""
    try:
        connection = await Address(url).connect(statement_timeout="3s")
        try:
            return bool(await connection.fetchval(_IS_UNFINISHED))
        finally:
            connection.terminate()
    except (*FAILURES, ValueError):
        return False


async def find_configurations(url: str) -> Sequence[tuple[str, str]] | Exception:
    """Return the id and configuration digest of each live node; or the error if the database cannot be read."""
    try:
        connection = await Address(url).connect(statement_timeout="3s")
        try:
            return [tuple(row) for row in await connection.fetch(_LIST_CONFIGURATIONS)]
        finally:
            connection.terminate()
    except (*FAILURES, ValueError) as error:
        return error
