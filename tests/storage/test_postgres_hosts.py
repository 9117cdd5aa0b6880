"""Several servers in one URL. A silent server costs a second at most, and all connections to it are closed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit

import asyncpg
import pytest

from gateway.domain.account import Account
from gateway.storage.accounts import AccountRepository
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.database import PostgresDatabase, open_postgres
from gateway.storage.postgres.hosts import Host, Hosts, parse_hosts
from tests.support.postgres import SharedPostgres
from tests.support.stoppable_proxy import StoppableProxy
from tests.support.table_rows import table_rows


@table_rows(
    "url, hosts",
    [
        ("postgresql://u:p@db/x", [Host()]),
        ("postgresql:///x", [Host()]),
        ("postgresql://u:p@a:1,b:2/x", [Host("a", 1), Host("b", 2)]),
        ("postgresql://a,b:2/x", [Host("a", 5432), Host("b", 2)]),
        ("postgresql://u:p@[::1]:1,[fd00::2]/x", [Host("::1", 1), Host("fd00::2", 5432)]),
        ("postgresql:///x?host=a,b&port=1,2", [Host("a", 1), Host("b", 2)]),
        ("postgresql:///x?host=a,b&port=7", [Host("a", 7), Host("b", 7)]),
        ("postgresql://a:1,a:1/x", [Host("a", 1)]),
        ("postgresql://a:one,b/x", [Host()]),
        ("postgresql:///x?host=/run/a,/run/b", [Host("/run/a", 5432), Host("/run/b", 5432)]),
    ],
    ids=["one", "none", "two", "default port", "addresses", "in options", "one port", "twice", "not a port", "sockets"],
)
def test_hosts_of_a_url(url: str, hosts: list[Host]) -> None:
    assert parse_hosts(url) == hosts


class Opened:
    """A connection to a host that exists only in the test."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.closed = False

    def terminate(self) -> None:
        self.closed = True


class Opener:
    """Opens connections as each host's script says: an error, at once (None), or when its event is set."""

    def __init__(self, *scripts: asyncio.Event | Exception | None) -> None:
        self.hosts = [Host(f"host{number}") for number in range(len(scripts))]
        self._scripts = dict(zip(self.hosts, scripts, strict=True))
        self.tried: list[Host] = []
        self.opened: list[Opened] = []

    async def __call__(self, host: Host) -> Opened:
        self.tried.append(host)
        script = self._scripts[host]
        if isinstance(script, Exception):
            raise script
        if script is not None:
            await script.wait()
        self.opened.append(Opened(host))
        return self.opened[-1]


async def test_others_are_tried_beside_a_silent_host_and_the_one_that_answers_is_preferred() -> None:
    opener = Opener(asyncio.Event(), ConnectionRefusedError(), None)
    hosts = Hosts(opener.hosts, head_start_s=0.01)
    assert (await hosts.connect(opener)).host == opener.hosts[2]
    opener.tried.clear()
    assert (await hosts.connect(opener)).host == opener.hosts[2]
    assert opener.tried == [opener.hosts[2]]


async def test_a_host_that_refuses_costs_no_wait() -> None:
    opener = Opener(ConnectionRefusedError(), asyncio.Event(), None)
    async with asyncio.timeout(0.9):  # less than the head start of the first
        assert (await Hosts(opener.hosts).connect(opener)).host == opener.hosts[2]


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([ConnectionRefusedError("a"), TimeoutError("b")], "a"),
        ([TimeoutError("a"), asyncpg.InvalidPasswordError("b")], "b"),
        ([asyncpg.TargetServerAttributeNotMatched("a"), asyncpg.TargetServerAttributeNotMatched("b")], "a"),
    ],
)
async def test_an_error_of_a_server_comes_before_no_answer(errors: list[Exception], raised: str) -> None:
    opener = Opener(*errors)
    with pytest.raises(type(errors["ab".index(raised)]), match=raised):
        await Hosts(opener.hosts).connect(opener)


async def test_a_client_that_leaves_and_a_connection_too_many_leave_nothing_open() -> None:
    silent = asyncio.Event()
    opener = Opener(silent, None, None)
    hosts = Hosts(opener.hosts, head_start_s=0.01)
    kept = await hosts.connect(opener)
    assert [each for each in opener.opened if not each.closed] == [kept]
    leaving = asyncio.create_task(Hosts(opener.hosts[:2]).connect(opener))
    await asyncio.sleep(0)
    leaving.cancel()
    with suppress(asyncio.CancelledError):
        await leaving
    silent.set()
    await asyncio.sleep(0)
    assert [each for each in opener.opened if not each.closed] == [kept]


@pytest.mark.parametrize(
    ("answers", "closed"),
    [
        ([TimeoutError()], True),
        ([asyncpg.TooManyConnectionsError("full")], False),
        ([None], False),
        ([TimeoutError(), None], False),
        ([TimeoutError(), TimeoutError()], True),
        ([ConnectionRefusedError(), ConnectionRefusedError()], True),
    ],
)
async def test_only_a_server_that_does_not_answer_loses_its_connections(
    *, answers: list[Exception | None], closed: bool
) -> None:
    """It has as many tries as there are answers."""
    host = Host("a")
    hosts = Hosts([host], pause_s=0.0)
    opened = Opened(host)
    connecting: asyncio.Queue[Exception | Opened] = asyncio.Queue()

    async def open_connection(_: Host) -> Opened:
        found = await connecting.get()
        if isinstance(found, Exception):
            raise found
        return found

    connecting.put_nowait(opened)
    await hosts.connect(open_connection)
    hosts.suspect(opened, open_connection, tries=len(answers))
    for answer in answers:
        connecting.put_nowait(answer or Opened(host))
    (check,) = hosts._checks.values()
    await check
    assert opened.closed is closed


async def test_refusals_that_end_before_the_last_try_close_no_connection() -> None:
    """A refusal comes at once: without pauses between them, all tries would fall into one short fault."""
    opener = Opener(None)
    (host,) = opener.hosts
    hosts, ended = Hosts(opener.hosts, pause_s=0.1), asyncio.Event()
    opened = await hosts.connect(opener)

    async def open_connection(_: Host) -> Opened:
        if not ended.is_set():
            raise ConnectionRefusedError
        return await opener(host)

    asyncio.get_running_loop().call_later(0.05, ended.set)
    hosts.suspect(opened, open_connection, tries=4)
    (check,) = hosts._checks.values()
    await check
    assert not opened.closed
    assert ended.is_set()


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    return await shared_postgres.empty()


@pytest.fixture
async def proxies(url: str) -> AsyncIterator[tuple[StoppableProxy, StoppableProxy]]:
    port = urlsplit(url).port or 0
    async with StoppableProxy(port) as first, StoppableProxy(port) as second:
        yield first, second


def name_both(url: str, *proxies: StoppableProxy) -> str:
    parts = urlsplit(url)
    user, _, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}@{','.join(f'127.0.0.1:{each.port}' for each in proxies)}").geturl()


@pytest.fixture
async def database(url: str, proxies: tuple[StoppableProxy, StoppableProxy]) -> AsyncIterator[PostgresDatabase]:
    database = await open_postgres(name_both(url, *proxies))
    yield database
    await database.close()


@pytest.mark.slow
async def test_a_server_that_falls_silent_is_left_by_all_connections(
    url: str, database: PostgresDatabase, proxies: tuple[StoppableProxy, StoppableProxy]
) -> None:
    accounts = AccountRepository(database)
    await accounts.add_account(Account(0, "before"))
    idle = await Address(name_both(url, *proxies)).connect()
    proxies[0].stop()
    # Each of them succeeds at the first try: the read is repeated, and the write has not begun.
    assert [account.name for account in await accounts.list_accounts()][-1:] == ["before"]
    await accounts.add_account(Account(0, "after"))
    assert [account.name for account in await accounts.list_accounts()][-1:] == ["after"]
    assert idle.is_closed()
