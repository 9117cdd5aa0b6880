"""The database itself: durability, one writer, and what it refuses to open."""

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import delete, insert, text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.account import Account
from gateway.errors import StoreUnavailable
from gateway.storage.accounts import AccountRepository
from gateway.storage.database import Database, DatabaseStartupError
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.schema import accounts
from gateway.storage.sqlite_database import BUSY_TIMEOUT_MS
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.request_records import ROW


async def read_pragma(database: Database, engine: str, name: str) -> object:
    async with getattr(database, engine).connect() as connection:
        return (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Another connection is in the middle of a write."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@SQLITE_ONLY
async def test_a_commit_is_on_the_disk_when_it_returns(database: Database) -> None:
    assert await read_pragma(database, "_writer", "journal_mode") == "wal"
    assert await read_pragma(database, "_writer", "synchronous") == 2
    assert await read_pragma(database, "_writer", "foreign_keys") == 1
    assert await read_pragma(database, "_writer", "query_only") == 0
    assert await read_pragma(database, "_writer", "busy_timeout") == BUSY_TIMEOUT_MS


@SQLITE_ONLY
async def test_readers_cannot_write(database: Database) -> None:
    assert await read_pragma(database, "_reader", "query_only") == 1
    store = AccountRepository(database)
    kept = await store.add_account(Account(0, "a"))
    for statement in (delete(accounts), text("DROP TABLE accounts"), text("CREATE TABLE x (y)"), insert(accounts)):
        with pytest.raises(StoreUnavailable):
            await database.read(statement)
    assert list(await store.list_accounts()) == [kept]


async def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    good = {"name": "a", "status": "active", "quota_period": "none", "groups": [], "declared": False, "created_ms": 1}

    async def fail(connection: AsyncConnection) -> None:
        await connection.execute(insert(accounts).values(good))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.write(fail)
    assert list(await database.read(text("SELECT * FROM accounts"))) == []
    await database.check_writable()


async def test_a_write_that_was_cancelled_leaves_the_writer_free(database: Database) -> None:
    store = AccountRepository(database)
    for number in range(5):
        task = asyncio.create_task(store.add_account(Account(0, f"cancelled{number}")))
        for _ in range(number):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with asyncio.timeout(3):
        await store.add_account(Account(0, "after"))
    assert "after" in {account.name for account in await store.list_accounts()}


async def test_a_commit_is_seen_by_every_reader_at_once(database: Database) -> None:
    store = AccountRepository(database)
    for number in range(10):
        await store.add_account(Account(0, f"a{number}"))
        lists = await asyncio.gather(*(store.list_accounts() for _ in range(5)))
        assert {len(found) for found in lists} == {number + 1}


async def test_rows_stay_when_the_process_ends_without_closing(database_path: Path, tmp_path: Path) -> None:
    database = await open_database(f"sqlite:///{database_path}")
    await LedgerRepository(database).post([ROW])
    copy = tmp_path / "crash.db"  # what the disk holds at this moment: the file and its log
    copy.write_bytes(database_path.read_bytes())
    copy.with_name("crash.db-wal").write_bytes(database_path.with_name("gateway.db-wal").read_bytes())
    await database.close()
    with closing(sqlite3.connect(copy)) as other:
        assert other.execute("SELECT id FROM requests").fetchall() == [(ROW.id,)]


async def test_closing_folds_the_log_into_the_file(database_path: Path) -> None:
    database = await open_database(f"sqlite:///{database_path}")
    await AccountRepository(database).add_account(Account(0, "a"))
    await database.close()
    assert {path.name for path in database_path.parent.iterdir()} == {"gateway.db"}


@pytest.mark.parametrize("size", [100, 4096, 100_000])
async def test_a_corrupt_file_is_refused_and_left_as_it_is(tmp_path: Path, size: int) -> None:
    path = tmp_path / "gateway.db"
    content = os.urandom(size)
    path.write_bytes(content)
    with pytest.raises(DatabaseStartupError):
        await open_database(f"sqlite:///{path}")
    assert path.read_bytes() == content
    assert [item.name for item in tmp_path.iterdir()] == ["gateway.db"]


async def test_a_file_with_a_good_beginning_and_a_corrupt_rest_is_refused_and_left_as_it_is(
    database_path: Path,
) -> None:
    content = database_path.read_bytes()
    broken = content[:100] + os.urandom(len(content) - 100)
    database_path.write_bytes(broken)
    with pytest.raises(DatabaseStartupError):
        await open_database(f"sqlite:///{database_path}")
    assert database_path.read_bytes() == broken


async def test_a_newer_schema_is_refused_and_left_as_it_is(database_path: Path) -> None:
    with closing(sqlite3.connect(database_path)) as other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")
        other.commit()
    content = database_path.read_bytes()
    with pytest.raises(DatabaseStartupError, match="newer version"):
        await open_database(f"sqlite:///{database_path}")
    assert database_path.read_bytes() == content


async def test_a_database_that_was_refused_is_let_go_of(database_path: Path) -> None:
    with closing(sqlite3.connect(database_path)) as other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")
        other.commit()
    for _ in range(3):
        with pytest.raises(DatabaseStartupError):
            await open_database(f"sqlite:///{database_path}")
    descriptors = Path("/proc/self/fd")
    held_open = {str(item.readlink()) for item in descriptors.iterdir() if item.exists()}
    assert not {name for name in held_open if name.startswith(str(database_path))}


async def test_a_path_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "gateway.db", tmp_path):
        with pytest.raises(DatabaseStartupError):
            await open_database(f"sqlite:///{path}")


async def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE accounts (theirs TEXT)")
        other.commit()
    with pytest.raises(DatabaseStartupError):
        await open_database(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as other:
        names = {row[0] for row in other.execute("SELECT name FROM sqlite_master")}
    assert names == {"accounts"}


@pytest.mark.slow
async def test_a_database_that_another_process_holds_is_refused_in_time(database_path: Path) -> None:
    with held(database_path):
        async with asyncio.timeout(4 * BUSY_TIMEOUT_MS / 1000):
            with pytest.raises(DatabaseStartupError, match="lock"):
                await open_database(f"sqlite:///{database_path}")
    database = await open_database(f"sqlite:///{database_path}")
    await database.close()


@SQLITE_ONLY
@pytest.mark.slow
async def test_a_write_that_another_process_blocks_fails_in_time_and_reads_go_on(
    database: Database, database_path: Path
) -> None:
    store = AccountRepository(database)
    with held(database_path):
        async with asyncio.timeout(4 * BUSY_TIMEOUT_MS / 1000):
            write = asyncio.create_task(store.add_account(Account(0, "a")))
            assert list(await store.list_accounts()) == []
            assert not write.done()
            with pytest.raises(StoreUnavailable) as caught:
                await write
    assert caught.value.retry_after_s
    await store.add_account(Account(0, "a"))


async def test_a_new_database_is_made_by_the_migrations(tmp_path: Path) -> None:
    database = await open_database(f"sqlite:///{tmp_path / 'new.db'}")
    await AccountRepository(database).add_account(Account(0, "a"))
    await database.close()


async def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    path.touch()
    database = await open_database(f"sqlite:///{path}")
    await database.check_writable()
    await database.close()


async def test_opening_again_keeps_what_is_there(database_path: Path) -> None:
    for number in range(3):
        database = await open_database(f"sqlite:///{database_path}")
        store = AccountRepository(database)
        await store.add_account(Account(0, f"a{number}"))
        assert len(await store.list_accounts()) == number + 1
        await database.close()


@SQLITE_ONLY
async def test_the_last_commit_is_timed_and_a_look_whether_one_could_be_made_is_none(database: Database) -> None:
    assert database.path.stat().st_size > 0  # type: ignore[attr-defined]
    await database.check_writable()
    before_ms = database.last_commit_ms
    assert before_ms is None
    await database.change(text("CREATE TABLE t (x)"))
    took_ms = database.last_commit_ms
    assert took_ms is not None
    assert took_ms > 0
    await database.check_writable()
    assert database.last_commit_ms == took_ms
