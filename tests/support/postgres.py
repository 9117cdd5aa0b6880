"""PostgreSQL servers from Debian's packages: one for all tests of a run, and servers of a test's own.

The template of their databases has the collation of a language, so that a comparison which follows it shows.
"""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any

import asyncpg
import attrs
import pytest

from gateway.storage.open import open_database
from tests.support.networks import HERE, THERE, Network, open_network
from tests.support.sockets import find_free_port

USER = "gateway"
TEMPLATE = "gateway_template"
PACKAGES = Path("/usr/lib/postgresql")
QUICK = (
    *("fsync=off", "full_page_writes=off", "max_connections=200", "shared_buffers=32MB"),
    "autovacuum=off",  # of the template, one would hold up who copies it
    "dynamic_shared_memory_type=mmap",  # in the server's folder: a server that is killed leaves nothing elsewhere
)
"""No disk is waited for. Commits are still written before they are answered: a crash of the server must lose none."""
# A test that failed has not closed the database: the next ones would find its gateway in use.
_END_OTHERS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()
    AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_EMPTY = """
DO $$ DECLARE one record; BEGIN
    SET LOCAL session_replication_role = replica;  -- nothing logs what is deleted here
    FOR one IN SELECT relname, relkind, pg_relation_size(oid) AS size FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'
            AND CASE relkind WHEN 'r' THEN pg_relation_size(oid) > 0
                WHEN 'S' THEN pg_sequence_last_value(oid) IS NOT NULL ELSE false END  -- what was used
        ORDER BY relkind DESC
    LOOP
        IF one.relkind = 'r' THEN
            EXECUTE format(
                CASE WHEN one.size > 500000 THEN 'TRUNCATE %I CASCADE' ELSE 'DELETE FROM %I' END, one.relname);
        ELSE
            PERFORM setval(one.relname::regclass, 1, false);
        END IF;
    END LOOP;
END $$
"""
_SHAPE = """
SELECT count(*), sum(relnatts), (SELECT count(*) FROM pg_trigger), (SELECT count(*) FROM pg_constraint),
    (SELECT string_agg(prosrc, ' ' ORDER BY proname, prosrc) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)
FROM pg_class WHERE relnamespace = 'public'::regnamespace
"""
WAITED_FOR = """
SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE datname = current_database() AND NOT granted
"""
"""Finds a lock that is waited for, in the connection's own database: other tests use the same server."""


async def await_waiter(connection: asyncpg.Connection, task: asyncio.Task[Any], lock: int | None = None) -> None:
    """Wait until ``task`` waits in the database of ``connection``: for the advisory ``lock``, or for any if None."""
    query = WAITED_FOR if lock is None else f"{WAITED_FOR} AND objid = {lock}"
    while not await connection.fetchval(query):
        assert not task.done()
        await asyncio.sleep(0.01)


COPIED = "copied"
"""The folder, beside the files of the server of the run, that files of other servers are copied from."""
_numbers = count()


@attrs.frozen
class PostgresServer:
    """A server over the files in ``folder``; stopped until ``start``.

    ``network``: the server runs at the other end of it, and else at the loopback.
    """

    folder: Path
    port: int
    network: Network | None = None

    @property
    def host(self) -> str:
        return "127.0.0.1" if self.network is None else THERE

    def name_url(self, database: str) -> str:
        return f"postgresql://{USER}:hidden@{self.host}:{self.port}/{database}"

    def start(self) -> None:
        place = f"unix_socket_directories={self.folder}", f"listen_addresses={self.host}"
        options = " ".join(f"-c {one}" for one in (f"port={self.port}", *place, *QUICK))
        start = partial(self._control, "start", "-w", "-l", str(self.folder / "log"), "-o", options)
        if self.network is None:
            start()
        else:
            self.network.run_there(start)

    def stop(self, mode: str = "immediate") -> None:
        self._control("stop", "-w", "-m", mode)

    def restart(self) -> None:
        """Restart as after a crash: connections are cut, and nothing under way is finished."""
        self.stop()
        self.start()

    def make_standby(self, folder: Path, *settings: str) -> "PostgresServer":
        """Copy the running server to ``folder`` as a standby that follows it; ``settings``: its own, ``name=value``."""
        standby = PostgresServer(folder, find_free_port())
        _run(
            *("pg_basebackup", "-D", str(folder), "-d", self.name_url("postgres").removesuffix("/postgres")),
            *("-R", "-X", "stream", "-c", "fast", "--no-sync"),
        )
        with (folder / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, _, value in (each.partition("=") for each in settings))
        return standby

    def promote(self) -> None:
        """Make this standby a primary; it takes writes when this method returns."""
        self._control("promote", "-w")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the server: SIGKILL, SIGSTOP or SIGCONT."""
        first = int((self.folder / "postmaster.pid").read_text().split()[0])
        found = subprocess.run(["pgrep", "-P", str(first)], capture_output=True, text=True, check=False)
        for pid in (first, *map(int, found.stdout.split())):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _control(self, *command: str) -> None:
        _run("pg_ctl", "-D", str(self.folder), "-s", *command)

    async def make_database(self) -> str:
        """Make an empty database with the schema; return its URL."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        await self.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        return self.name_url(name)

    async def execute(self, statement: str, database: str = "postgres") -> None:
        connection = await asyncpg.connect(self.name_url(database))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def make_template(self) -> None:
        language = "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C.UTF-8' ENCODING 'UTF8'"
        await self.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0 {language}")
        await (await open_database(self.name_url(TEMPLATE))).close()


class SharedPostgres:
    """A database on the server of the run for the tests of this process, one after the other; made at first use."""

    def __init__(self) -> None:
        self._server: PostgresServer | None = None
        self._url = ""
        self._shape: object = None

    async def get_server(self) -> PostgresServer:
        if self._server is None:
            self._server = await asyncio.to_thread(share_server)
        return self._server

    async def empty(self) -> str:
        """Return the URL of a database that has no rows."""
        if not self._url or await _empty(self._url) != self._shape:  # a test has taken the tables apart
            self._url = await (await self.get_server()).make_database()
            self._shape = await _empty(self._url)
        return self._url


async def _empty(url: str) -> object:
    """Delete every row of a database, and begin its ids at 1 again: a tenth of the work of making another.

    Return its relations, columns and triggers by number, and its functions.
    """
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_END_OTHERS)
        await connection.execute(_EMPTY)
        return await connection.fetchrow(_SHAPE)
    finally:
        await connection.close()


_held: list[IO[str]] = []
"""Of the server of the run: it ends when the last process that has this file locked has ended, even if killed."""
_WATCH = 'flock "$0" sh -c \'kill -QUIT $1; while kill -0 $1; do sleep 0.05; done; rm -r "$2"\' "$0" "$1" "$2" &'


def find_root() -> Path:
    """Return the folder of all servers: in memory, if ``conftest`` has found room there."""
    return Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir())


def share_server() -> PostgresServer:
    """Return the server of this run of tests; the first process that asks for it starts it."""
    folder = find_root() / f"postgres-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    users = folder / "users"
    while True:
        folder.mkdir(mode=0o755, exist_ok=True)
        held = users.open("a")
        fcntl.flock(held, fcntl.LOCK_SH)
        if users.exists():  # else the last process before this one has just ended
            break
        held.close()
    _held.append(held)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = folder / "port"
        if note.exists():
            return PostgresServer(folder / "data", int(note.read_text()))
        server = make_server(folder / "data")
        server.start()
        asyncio.run(server.make_template())
        server.stop("fast")
        _copy(server.folder, folder / COPIED)
        server.start()
        pid = (folder / "data" / "postmaster.pid").read_text().split()[0]
        subprocess.run(
            ["setsid", "sh", "-c", _WATCH, users, pid, folder],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        note.write_text(str(server.port))
        return server


@asynccontextmanager
async def owning_server() -> AsyncIterator[PostgresServer]:
    """A server of the test's own, to be restarted: started, with the template."""
    with tempfile.TemporaryDirectory(prefix="postgres-", dir=find_root()) as folder:
        server = await _start_copy(Path(folder))
        try:
            yield server
        finally:
            await asyncio.to_thread(server.stop)


@asynccontextmanager
async def owning_pair(*settings: str, apart: bool = False) -> AsyncIterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and a standby of the test's own, started; ``settings`` are the standby's.

    ``apart``: this process and the standby are at one end of a new network, and the primary is at the other.
    """
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="postgres-", dir=find_root()))
        await asyncio.to_thread(share_server)  # before this process moves to the network: other tests use it
        primary = await _start_copy(Path(folder), await stack.enter_async_context(open_network()) if apart else None)
        stack.callback(primary.signal, signal.SIGKILL)
        standby = await asyncio.to_thread(primary.make_standby, Path(folder) / "standby", *settings)
        await asyncio.to_thread(standby.start)
        stack.callback(standby.signal, signal.SIGKILL)
        yield primary, standby


async def _start_copy(folder: Path, network: Network | None = None) -> PostgresServer:
    """Start a server with the template in ``folder``, over copied files: to make them takes seconds of a processor."""
    shared = await asyncio.to_thread(share_server)
    folder.chmod(0o777)  # the server may run as another user, who makes a standby's folder
    server = PostgresServer(folder / "data", find_free_port(), network)
    await asyncio.to_thread(_copy, shared.folder.with_name(COPIED), server.folder)
    if network is not None:
        with (server.folder / "pg_hba.conf").open("a") as file:
            file.writelines(f"host {database} all {HERE}/32 trust\n" for database in ("all", "replication"))
    await asyncio.to_thread(server.start)
    return server


def _copy(files: Path, to: Path) -> None:
    """Copy the files of a stopped server, with their owner."""
    subprocess.run(["cp", "-a", files, to], check=True)


def make_server(folder: Path) -> PostgresServer:
    """Make the files of a server that takes every password."""
    if not PACKAGES.is_dir():
        why = "no PostgreSQL: apt-get install postgresql"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    folder.mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    _run("initdb", "-D", str(folder), "-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
    return PostgresServer(folder, find_free_port())


def _run(program: str, *arguments: str) -> None:
    newest = max(PACKAGES.glob(f"*/bin/{program}"), key=lambda path: float(path.parts[-3]))
    who = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    found = subprocess.run(  # type: ignore[call-overload]
        [newest, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/", check=False, **who
    )
    assert found.returncode == 0, found.stderr
