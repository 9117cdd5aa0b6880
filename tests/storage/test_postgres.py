"""What only PostgreSQL does: it restarts, may belong to another installation, has own types, and takes one gateway."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import attrs
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.account import Account
from gateway.domain.request_log import RequestFilter
from gateway.errors import StoreUnavailable
from gateway.storage import schema
from gateway.storage.accounts import AccountRepository
from gateway.storage.data_folder import DATABASE, JOURNAL, DataFolder, DataFolderDamaged
from gateway.storage.database import Database, DatabaseStartupError
from gateway.storage.identity import check_secrets
from gateway.storage.open import open_database
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.database import MAX_LONG_READERS, open_address
from gateway.storage.postgres.sole_user import DatabaseInUse, SoleUser
from tests.support.database_kinds import POSTGRES_ONLY
from tests.support.postgres import PostgresServer, SharedPostgres
from tests.support.request_records import make_row
from tests.support.stores import open_stores

HELD = """
SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE locktype = 'advisory' AND granted AND datname = current_database()
"""
HOLDER = "AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)"


async def break_connections(url: str, server: PostgresServer, which: str = "") -> None:
    """End sessions of a database, all as a restart of its server does, or those that ``which`` selects."""
    others = f"datname = current_database() AND pid <> pg_backend_pid() {which}"
    ending = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"  # noqa: S608 - our own words
    await server.execute(ending, url.rpartition("/")[2])


async def await_free(url: str) -> None:
    """Return once no session holds an advisory lock of the database."""
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(30):
            while await connection.fetchval(HELD):  # noqa: ASYNC110 - the database has no event of ours
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


CLUSTER = (
    "nodes",
    "beats",
    "changes",
    "cluster",
    "credit_balances",
    "credit_leases",
    "model_lists",
    "shared_values",
    "failed_sign_ins",
    "request_notes",
)
"""Tables that only PostgreSQL has; tests/storage/test_cluster_schema.py uses them."""


@pytest.fixture
async def server(shared_postgres: SharedPostgres) -> PostgresServer:
    return await shared_postgres.get_server()


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    return await shared_postgres.empty()


@POSTGRES_ONLY
async def test_columns_hold_what_sqlite_holds_and_texts_are_ordered_by_their_bytes(database: Database) -> None:
    narrow = text(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' AND "
        "table_name <> 'alembic_version' AND (data_type IN ('integer', 'character varying') OR "
        "(data_type = 'text' AND collation_name IS DISTINCT FROM 'C'))"
    )
    assert await database.read(narrow) == []
    language = text("SELECT datlocprovider = 'i' FROM pg_database WHERE datname = current_database()")
    assert [tuple(row) for row in await database.read(language)] == [(True,)]


@POSTGRES_ONLY
async def test_migrations_make_the_tables_and_indexes_of_the_schema(database: Database) -> None:
    columns = text("SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'")
    made = {tuple(row) for row in await database.read(columns) if row[0] not in {"alembic_version", *CLUSTER}}
    common = {(table.name, column.name) for table in schema.metadata.tables.values() for column in table.c}
    assert made == common | {("requests", "txid")}
    indexes = text("SELECT indexname, indexdef LIKE '% WHERE %' FROM pg_indexes WHERE schemaname = 'public'")
    partial = {row[0]: row[1] for row in await database.read(indexes)}  # type: ignore[misc]
    wanted = {
        index.name: index.dialect_kwargs.get("sqlite_where") is not None
        for table in schema.metadata.tables.values()
        for index in table.indexes
    }
    assert {name: partial.get(name) for name in wanted} == wanted


@POSTGRES_ONLY
@pytest.mark.parametrize("count", [3, 100], ids=["inserted", "copied"])
async def test_a_row_that_does_not_fit_is_mended_and_no_other_is_lost(database: Database, count: int) -> None:
    stores = open_stores(database)
    rows = [make_row(number, error="as it came") for number in range(count)]
    rows[1] = attrs.evolve(rows[1], model="a\0b", error="\ud800 and é", first_byte_ms=2**70)
    await stores.ledger.post(rows)
    stored = {row.row.id: row.row for row in await stores.requests.list_requests(RequestFilter(), count + 1)}
    assert len(stored) == count
    mended = stored[rows[1].id]
    assert (mended.model, mended.error, mended.first_byte_ms) == ("ab", "? and é", 2**63 - 1)
    assert all(stored[row.id] == row for row in rows if row is not rows[1])


@POSTGRES_ONLY
async def test_a_text_that_no_row_can_have_is_in_none(database: Database) -> None:
    assert await open_stores(database).requests.find_request("req_\0") is None


async def test_connections_that_broke_are_replaced_without_notice(url: str, server: PostgresServer) -> None:
    database = await open_database(url)
    accounts = AccountRepository(database)
    await accounts.add_account(Account(0, "before"))
    await break_connections(url, server)
    assert [account.name for account in await accounts.list_accounts()] == ["before"]
    await break_connections(url, server)
    await accounts.add_account(Account(0, "after"))
    assert [account.name for account in await accounts.list_accounts()] == ["before", "after"]
    await database.close()


async def test_a_write_that_broke_in_the_middle_is_not_made_twice(url: str) -> None:
    database = await open_database(url)
    begun = 0

    async def work(connection: AsyncConnection) -> None:
        nonlocal begun
        begun += 1
        await connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(StoreUnavailable):
        await database.write(work)
    assert begun == 1
    await database.check_writable()
    await database.close()


async def test_who_lost_the_database_to_another_gateway_does_not_write_to_it(url: str, server: PostgresServer) -> None:
    first = await open_database(url)
    other = SoleUser(Address(url))
    waiting = asyncio.create_task(other.acquire(wait_s=20))
    await break_connections(url, server, HOLDER)
    await waiting
    with pytest.raises(StoreUnavailable):
        await AccountRepository(first).add_account(Account(0, "lost"))
    assert await AccountRepository(first).list_accounts() == []
    await other.close()
    await await_free(url)  # the server frees the lock a moment after the connection has ended
    await AccountRepository(first).add_account(Account(0, "found"))
    await first.close()


async def test_a_lock_that_only_the_server_knows_to_be_lost_allows_no_write(url: str, server: PostgresServer) -> None:
    first = await open_database(url)
    other = SoleUser(Address(url))

    async def take_over() -> None:
        await break_connections(url, server, HOLDER)
        await other.acquire(wait_s=20)

    runner = asyncio.Runner()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(runner.run, take_over()).result()  # this loop stands still: it reads no end of a connection
        with pytest.raises(StoreUnavailable):
            await AccountRepository(first).add_account(Account(0, "lost"))
        thread.submit(runner.run, other.close()).result()
        thread.submit(runner.close).result()
    await await_free(url)
    await AccountRepository(first).add_account(Account(0, "found"))
    assert [account.name for account in await AccountRepository(first).list_accounts()] == ["found"]
    await first.close()


async def test_a_gateway_waits_for_the_one_before_it_and_says_which_it_is(url: str) -> None:
    first, second = SoleUser(Address(url)), SoleUser(Address(url))
    await first.acquire()
    with pytest.raises(DatabaseInUse, match=r"Another gateway uses the database postgresql://127\.0\.0\.1.*from 127"):
        await second.acquire()
    waiting = asyncio.create_task(second.acquire(wait_s=20))
    await asyncio.sleep(0)
    await first.close()
    await waiting
    await second.close()


async def test_a_session_of_our_own_that_the_server_still_knows_is_ended(url: str) -> None:
    address = Address(url)
    lost, ours = SoleUser(address), SoleUser(address)
    await lost.acquire()
    await ours.acquire(wait_s=20)
    await ours.close()
    await lost.close()


@pytest.mark.parametrize(
    ("option", "statement"),
    [("statement_timeout=2000", "SELECT pg_sleep(20)"), ("lock_timeout=2000", "SELECT pg_advisory_xact_lock(5)")],
)
async def test_no_statement_waits_for_ever(url: str, option: str, statement: str) -> None:
    database = await open_database(f"{url}?{option}")

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(text(statement))

    await database.read(text("SELECT pg_advisory_lock(5)"))  # by a reader's session
    with pytest.raises(StoreUnavailable):
        await database.write(work)
    await database.check_writable()
    await database.close()


async def test_an_upgrade_may_pause_longer_than_a_request(url: str) -> None:
    address = Address(url)

    async def find_longest_pause(connection: AsyncConnection) -> None:
        found.append((await connection.execute(text("SHOW idle_in_transaction_session_timeout"))).scalar_one())

    found: list[str] = []
    opened = await open_address(address, SoleUser(address), find_longest_pause, None)
    await opened.close()
    assert found == ["5min"]


async def test_long_reads_have_more_time_and_hold_up_no_other(url: str) -> None:
    database = await open_database(url)
    slow = text("SELECT current_setting('statement_timeout'), pg_sleep(0.5)")
    long = [asyncio.create_task(database.read_long(slow)) for _ in range(MAX_LONG_READERS + 1)]
    await asyncio.sleep(0)
    bounds = [(await database.read(text("SHOW statement_timeout")))[0][0] for _ in range(2)]
    assert not any(task.done() for task in long)
    assert (bounds, {(await task)[0][0] for task in long}) == (["10s"] * 2, {"10min"})
    await database.close()


async def test_a_reader_cannot_write_and_a_standby_is_not_writable(url: str) -> None:
    database = await open_database(url)
    with pytest.raises(StoreUnavailable):
        await database.read(text("DELETE FROM accounts"))
    await database.close()
    standby = await open_database(f"{url}?default_transaction_read_only=on")
    with pytest.raises(StoreUnavailable, match="standby"):
        await standby.check_writable()
    await standby.close()


@pytest.mark.parametrize("wanted", ["primary", "read-write", "any"])
async def test_the_server_that_the_address_asks_for_is_used_for_reads_and_writes(url: str, wanted: str) -> None:
    database = await open_database(f"{url}?target_session_attrs={wanted}")
    await database.check_writable()
    for read in (database.read, database.read_long, database.read_first):
        assert (await read(text("SHOW transaction_read_only")))[0][0] == "on"
        with pytest.raises(StoreUnavailable):
            await read(text("DELETE FROM accounts"))
    await database.close()


async def test_the_names_of_connections_are_not_the_addresses(url: str) -> None:
    """Those of a node that is dead are found by them, and ended."""
    database = await open_database(f"{url}?application_name=billing&statement_timeout=7s")
    name, limit = text("SHOW application_name"), text("SHOW statement_timeout")
    assert (await database.read(name))[0][0].startswith("gateway ")
    assert (await database.read(limit))[0][0] == "7s"
    node = await Address(f"{url}?application_name=billing", "0123456789abcdef").connect()
    assert (await node.fetchval("SHOW application_name")).startswith("gateway node 0123456789abcdef ")
    node.terminate()
    await database.close()


async def test_the_database_is_measured(url: str) -> None:
    database = await open_database(url)
    size = await database.measure()
    assert (size.bytes > 1_000_000, size.log_bytes) == (True, None)
    await database.close()


@POSTGRES_ONLY
async def test_an_empty_database_under_a_folder_that_was_in_use_is_not_begun_anew(
    tmp_path: Path, database: Database
) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.make_secret("pepper")
    folder.private_file(JOURNAL)
    with pytest.raises(DataFolderDamaged, match=r"is empty, but .* was in use: it has pepper, requests"):
        await check_secrets(folder, database)
    folder.private_file(DATABASE)  # the operator moves from SQLite to a server
    await check_secrets(folder, database)
    (folder.path / DATABASE).unlink()
    await check_secrets(folder, database)  # it knows the folder
    folder.close()


async def refuse(url: str) -> str:
    with pytest.raises(DatabaseStartupError) as refused:
        await open_database(url)
    assert "hidden" not in str(refused.value)
    return str(refused.value)


async def test_a_database_that_cannot_be_opened_is_refused_without_its_password(server: PostgresServer) -> None:
    assert 'database "nowhere" does not exist' in await refuse(server.name_url("nowhere"))
    assert "cannot be used" in await refuse("postgresql://me:hidden@127.0.0.1:1/gateway")
    assert "cannot be used" in await refuse(f"{server.name_url('postgres')}?sslmode=nonsense")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", "is of a newer version"),
        ("DROP TABLE alerts", "has lost its tables alerts"),
    ],
)
async def test_a_database_of_another_version_or_with_less_is_left_alone(
    server: PostgresServer, change: str, reason: str
) -> None:
    url = await server.make_database()
    await server.execute(change, url.rpartition("/")[2])
    assert reason in await refuse(url)
