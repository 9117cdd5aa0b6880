"""What PostgreSQL has for several gateways: the log of changes, numbered as they are committed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import asyncpg
import pytest

from gateway.domain.account import Account, ApiKey
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.database import Database
from gateway.storage.migrations.run import downgrade
from gateway.storage.open import open_database
from gateway.storage.postgres.functions import CHANGES, CHANGES_KEPT_MS
from gateway.storage.postgres.lock_numbers import CHANGES_LOCK
from gateway.storage.settings import SettingRepository
from tests.support.postgres import SharedPostgres, await_waiter

Change = tuple[str, str]

_FUNCTIONS = """
SELECT pg_get_functiondef(oid) AS made FROM pg_proc WHERE pronamespace = current_schema()::regnamespace ORDER BY 1
"""


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    return await shared_postgres.empty()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    found = await open_database(url)
    yield found
    await found.close()


@pytest.fixture
async def observers(url: str) -> AsyncIterator[list[asyncpg.Connection]]:
    async with AsyncExitStack() as closing:
        connections = [await asyncpg.connect(url) for _ in range(2)]
        for connection in connections:
            closing.push_async_callback(connection.close)
        yield connections


async def read_changes(connection: asyncpg.Connection) -> list[Change]:
    return [(row["kind"], row["id"]) for row in await connection.fetch("SELECT * FROM changes ORDER BY sequence")]


def make_key(account: Account, name: str) -> ApiKey:
    return ApiKey(0, account.id, name, name.encode().ljust(32), "0000")


async def test_every_change_is_logged_and_announced_once_a_commit(
    database: Database, observers: list[asyncpg.Connection]
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    connection, _ = observers
    await connection.add_listener(CHANGES, lambda *words: heard.put_nowait(words[-1]))
    accounts, keys, settings = AccountRepository(database), ApiKeyRepository(database), SettingRepository(database)
    account = await accounts.add_account(Account(0, "acme"))
    first, second = [await keys.add_key(make_key(account, name)) for name in ("first", "second")]
    await keys.put_key(first)
    await settings.change_settings({"routing.retry_ratio": 0.5}, 1)
    await accounts.delete_account(account.id)
    logged = [
        ("account", "1"), ("key", str(first.id)), ("key", str(second.id)), ("key", str(first.id)),
        ("setting", "routing.retry_ratio"), ("account", "1"), ("key", str(first.id)), ("key", str(second.id)),
    ]  # fmt: skip
    found = await read_changes(connection)
    assert found[:5] == logged[:5]
    assert sorted(found[5:]) == sorted(logged[5:]), "the keys of a deleted account are changes, too"
    assert [await asyncio.wait_for(heard.get(), 30) for _ in range(6)] == [""] * 6
    assert heard.empty()


async def test_a_change_that_is_not_committed_is_not_logged(observers: list[asyncpg.Connection]) -> None:
    connection, _ = observers
    insert = "INSERT INTO settings (path, value, changed_ms) VALUES ($1, '1', 1)"
    begun = connection.transaction()
    await begun.start()
    await connection.execute(insert, "rolled back")
    await begun.rollback()
    await connection.execute(insert, "committed")
    assert await read_changes(connection) == [("setting", "committed")]


async def test_changes_are_numbered_in_the_order_of_their_commits(observers: list[asyncpg.Connection]) -> None:
    early, late = observers
    insert = "INSERT INTO settings (path, value, changed_ms) VALUES ($1, '1', 1)"
    begun = early.transaction()
    await begun.start()
    await early.execute(insert, "first to begin")
    await late.execute(insert, "first to commit")
    assert await read_changes(late) == [("setting", "first to commit")]
    await begun.commit()
    assert await read_changes(late) == [("setting", "first to commit"), ("setting", "first to begin")]


async def test_a_change_gets_its_number_only_when_no_other_is_being_committed(
    observers: list[asyncpg.Connection],
) -> None:
    holder, waiter = observers
    await holder.execute(f"SELECT pg_advisory_lock({CHANGES_LOCK})")
    writing = asyncio.create_task(waiter.execute("INSERT INTO settings (path, value, changed_ms) VALUES ('a', '1', 1)"))
    async with asyncio.timeout(30):
        await await_waiter(holder, writing, CHANGES_LOCK)
    assert await holder.fetchval("SELECT is_called FROM changes_sequence_seq") is False
    await holder.execute(f"SELECT pg_advisory_unlock({CHANGES_LOCK})")
    await writing
    assert await read_changes(holder) == [("setting", "a")]


async def test_old_changes_are_removed_and_new_ones_kept(observers: list[asyncpg.Connection]) -> None:
    connection, _ = observers
    put = "INSERT INTO settings SELECT 'p' || n, '1', 1 FROM generate_series($1::int, $2::int) n"
    await connection.execute(put, 1, 200)
    await connection.execute("UPDATE changes SET at_ms = at_ms - $1 WHERE sequence <= 100", CHANGES_KEPT_MS + 1)
    await connection.execute(put, 201, 255)
    assert await connection.fetchval("SELECT count(*) FROM changes") == 255
    await connection.execute(put, 256, 256)
    assert await connection.fetchrow("SELECT min(sequence), max(sequence) FROM changes") == (101, 256)


async def test_the_schema_goes_back_and_comes_again(shared_postgres: SharedPostgres) -> None:
    url = await (await shared_postgres.get_server()).make_database()
    database = await open_database(url)
    named = "SELECT count(*) FROM pg_class WHERE relname IN ('nodes', 'beats', 'changes', 'cluster', 'credit_leases')"
    logging = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE '%_changed'"

    await database.write(lambda connection: connection.run_sync(downgrade, "0020"))
    await SettingRepository(database).change_settings({"a.b": 1}, 1)
    await database.close()
    connection = await asyncpg.connect(url)
    try:
        assert (await connection.fetchval(named), await connection.fetchval(logging)) == (0, 0)
        await (await open_database(url)).close()
        assert (await connection.fetchval(named), await connection.fetchval(logging)) == (5, 6)
        await connection.execute("DELETE FROM settings")
        assert await read_changes(connection) == [("setting", "a.b")]
    finally:
        await connection.close()


async def test_a_database_of_a_development_version_gets_the_functions_of_this_one(
    url: str, database: Database, observers: list[asyncpg.Connection]
) -> None:
    """Its schema is 0022, whose functions of credit leases have changed since."""
    connection, _ = observers
    made = await connection.fetch(_FUNCTIONS)
    await database.write(lambda sync: sync.run_sync(downgrade, "0022"))
    await connection.execute("DROP FUNCTION fold_other_leases")
    await database.close()
    await (await open_database(url)).close()
    assert await connection.fetch(_FUNCTIONS) == made
