"""The database driver: a statement is one call into the thread of its connection, and says what SQLite says of it."""

import logging
from typing import Any

import pytest
from sqlalchemy import Executable, bindparam, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.storage.database import Database
from tests.support.database_kinds import SQLITE_ONLY

INSERT = text("INSERT INTO settings (path, value, changed_ms) VALUES (:name, :value, 0)")
SELECT = text("SELECT path, value FROM settings ORDER BY path")


@pytest.fixture
def count_calls(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The library's debug lines: it logs every call into a connection's thread before it executes it."""
    caplog.set_level(logging.DEBUG, "aiosqlite")
    return caplog


def count(caplog: pytest.LogCaptureFixture) -> int:
    calls = sum(record.getMessage().startswith("executing") for record in caplog.records)
    caplog.clear()
    return calls


@SQLITE_ONLY
async def test_a_read_is_one_call(database: Database, count_calls: pytest.LogCaptureFixture) -> None:
    await database.read(SELECT)  # it opens the connection
    count(count_calls)
    await database.read(SELECT)
    assert count(count_calls) == 1


@SQLITE_ONLY
async def test_a_write_is_one_call_a_statement_and_two_for_its_transaction(
    database: Database, count_calls: pytest.LogCaptureFixture
) -> None:
    count(count_calls)

    async def work(connection: AsyncConnection) -> None:
        for name in "abc":
            await connection.execute(INSERT, {"name": name, "value": "1"})

    await database.write(work)
    assert count(count_calls) == 5


async def execute(database: Database, statement: Executable, given: Any = None) -> tuple[int, list[object]]:
    async def work(connection: AsyncConnection) -> tuple[int, list[object]]:
        result = await connection.execute(statement, given)
        return result.rowcount, [tuple(row) for row in result] if result.returns_rows else []

    return await database.write(work)


@SQLITE_ONLY
async def test_rows_are_counted_and_returned(database: Database) -> None:
    many = [{"name": name, "value": "1"} for name in "abc"]
    assert (await execute(database, INSERT, many))[0] == 3
    changed = text("UPDATE settings SET value = '2' WHERE path != 'b' RETURNING path, value")
    assert (await execute(database, changed))[1] == [("a", 2), ("c", 2)]
    removed = text("DELETE FROM settings WHERE path = :name").bindparams(bindparam("name", "b"))
    assert await execute(database, removed) == (1, [])
    assert await execute(database, removed) == (0, [])
    assert [tuple(row) for row in await database.read(SELECT)] == [("a", 2), ("c", 2)]


async def test_a_failed_statement_takes_its_transaction_back_and_leaves_the_connection(database: Database) -> None:
    async def work(connection: AsyncConnection) -> None:
        await connection.execute(INSERT, {"name": "a", "value": "1"})
        await connection.execute(INSERT, {"name": "a", "value": "2"})

    with pytest.raises(IntegrityError):
        await database.write(work)
    assert await database.read(SELECT) == []
    assert (await execute(database, INSERT, {"name": "a", "value": "3"}))[0] == 1
