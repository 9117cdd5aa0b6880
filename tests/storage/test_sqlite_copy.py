"""A SQLite file as the target of a copy: what its disk refuses is an error of the copy."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.storage.copying.sqlite_store import SqliteStore
from gateway.storage.copying.store_copy import CopyFailed
from gateway.storage.copying.tables import list_tables
from gateway.storage.open import open_database


async def test_a_full_disk_ends_the_copy_with_its_own_error(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    await (await open_database(f"sqlite:///{path}")).close()
    (table,) = (table for table in list_tables() if table.name == "alerts")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        store = SqliteStore("The database new.db", connection)
        rows = [("kind", f"{number} {'x' * 500}", 1, 0) for number in range(100)]
        with pytest.raises(CopyFailed, match=r"^The database new.db cannot be written: .*full.*\. Nothing was copied$"):
            await store.write_rows(table, rows)
