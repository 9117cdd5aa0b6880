"""Servers of shared rate limits: Redis from Debian's package, PostgreSQL, and both with a clock that tests set."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import attrs
from valkey.asyncio import Valkey

from gateway.cluster.limits.limiter import SharedRateLimiter
from gateway.cluster.limits.postgres import PostgresLimitServer
from gateway.domain.limit_server import LimitServer
from gateway.storage.valkey.limit_script import RULES
from gateway.storage.valkey.limits import ValkeyLimitServer
from tests.support.postgres import SharedPostgres
from tests.support.sockets import find_free_port
from tests.support.tools import find_tool

LONG_S = 30.0
"""How long a limiter of a test waits for its server: a busy machine is no reason to do without."""
TEST_CLOCK = "local function read_clock() return tonumber(redis.call('GET', 'test:clock')) end\n"
TEST_CLOCK_SQL = """
CREATE FUNCTION read_limit_clock_VERSION() RETURNS double precision LANGUAGE sql VOLATILE AS $$
  SELECT at FROM test_clock
$$
"""


@attrs.define(eq=False)
class RedisServer:
    """A server without persistence, at a port of the loopback; stopped until ``start``."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        program = shutil.which("valkey-server") or find_tool("redis-server", "redis-server")
        self.process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)],
            stdout=subprocess.DEVNULL,
        )
        async with asyncio.timeout(60), Valkey.from_url(self.url) as client:
            while True:
                with suppress(Exception):
                    await client.ping()
                    return
                await asyncio.sleep(0.02)

    async def follow(self, other: "RedisServer") -> None:
        async with Valkey.from_url(self.url) as client:
            await client.replicaof("127.0.0.1", str(other.port))

    async def count_keys(self) -> int:
        async with Valkey.from_url(self.url) as client:
            return int(await client.dbsize())

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@asynccontextmanager
async def running_redis() -> AsyncIterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        server = RedisServer(Path(folder), find_free_port())
        try:
            await server.start()
            yield server
        finally:
            server.kill()


@attrs.define(eq=False)
class SentinelServer:
    """A sentinel that knows one server as ``gateway`` and replaces it soon after it is gone."""

    port: int

    @property
    def url(self) -> str:
        return f"valkey+sentinel://127.0.0.1:{self.port}/gateway/0"

    async def wait_for_replica(self) -> None:
        async with asyncio.timeout(60), Valkey.from_url(f"valkey://127.0.0.1:{self.port}") as client:
            while True:
                known = await client.execute_command("SENTINEL", "REPLICAS", "gateway")
                if any(b"ok" in one or "ok" in one for one in known):
                    return
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running_sentinel(server: RedisServer, folder: Path) -> AsyncIterator[SentinelServer]:
    program = shutil.which("valkey-server") or find_tool("redis-server", "redis-server")
    port = find_free_port()
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\nsentinel monitor gateway 127.0.0.1 {server.port} 1\n"
        "sentinel down-after-milliseconds gateway 500\nsentinel failover-timeout gateway 5000\n"
    )
    process = subprocess.Popen([program, str(config), "--sentinel"], stdout=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        async with asyncio.timeout(60), Valkey.from_url(f"valkey://127.0.0.1:{port}") as client:
            while True:
                with suppress(Exception):
                    await client.ping()
                    break
                await asyncio.sleep(0.02)
        yield SentinelServer(port)
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def running(limiter: SharedRateLimiter) -> AsyncIterator[SharedRateLimiter]:
    """The limiter with its background job, once it has reached its server."""
    job = asyncio.get_running_loop().create_task(limiter.sender.run())
    try:
        await wait_until_reached(limiter, away=False)
        yield limiter
    finally:
        job.cancel()
        with suppress(asyncio.CancelledError):
            await job


async def wait_until_reached(limiter: SharedRateLimiter, *, away: bool) -> None:
    async with asyncio.timeout(60):
        while limiter.sender.away is not away:  # noqa: ASYNC110 - a test has no other way to see it
            await asyncio.sleep(0.01)


@attrs.define(eq=False)
class SetClock:
    """Seconds that a test sets, for gateways and for the server at ``url`` alike."""

    url: str
    now: float = 5_000.0
    _valkey: Valkey | None = None
    _postgres: asyncpg.Connection | None = None

    def __call__(self) -> float:
        return self.now

    def make_server(self) -> LimitServer:
        """A connection to the server, which reads this clock."""
        if self.url.startswith("valkey"):
            return ValkeyLimitServer(self.url, TEST_CLOCK + RULES)
        return PostgresLimitServer(self.url, TEST_CLOCK_SQL)

    async def open(self) -> None:
        if self.url.startswith("valkey"):
            self._valkey = Valkey.from_url(self.url)
        else:
            self._postgres = await asyncpg.connect(self.url)
            await self._postgres.execute("CREATE TABLE test_clock AS SELECT 0::double precision AS at")
        await self.set(self.now)

    async def set(self, now: float) -> None:
        self.now = now
        if self._valkey is not None:
            await self._valkey.set("test:clock", f"{now:.17g}")
        if self._postgres is not None:
            await self._postgres.execute("UPDATE test_clock SET at = $1", now)

    async def close(self) -> None:
        if self._valkey is not None:
            await self._valkey.aclose()
        if self._postgres is not None:
            await self._postgres.close()


@asynccontextmanager
async def open_clock(kind: str, postgres: SharedPostgres) -> AsyncIterator[SetClock]:
    """The clock of a server of this ``kind`` that has just been started, or of a new database."""
    async with AsyncExitStack() as stack:
        if kind == "valkey":
            url = (await stack.enter_async_context(running_redis())).url
        else:
            url = await (await postgres.get_server()).make_database()
        clock = SetClock(url)
        stack.push_async_callback(clock.close)
        await clock.open()
        yield clock
