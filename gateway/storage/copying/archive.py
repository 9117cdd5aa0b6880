"""Copies a server's database into the SQLite file of a backup, and such a file into a server's empty database."""

import sqlite3
from contextlib import closing
from pathlib import Path

from gateway.storage.copying.postgres_store import open_snapshot, open_target
from gateway.storage.copying.sqlite_store import make_target, open_source
from gateway.storage.copying.store_copy import copy_store
from gateway.storage.sqlite_database import open_sqlite


async def save_server(url: str, path: Path) -> None:
    """Copy a database, even one in use, as of this moment into the new file ``path``. Raises ``CopyFailed``."""
    async with open_snapshot(url) as source, make_target(path) as target:
        await copy_store(source, target, _show_nothing)


async def fill_server(path: Path, url: str) -> None:
    """Upgrade the file ``path``, and copy its rows into an empty, unused database: all of them or none.

    Sinks begin again with the oldest row if the file came from a server.

    Raises ``CopyFailed``, ``DatabaseStartupError``.
    """
    await (await open_sqlite(f"sqlite:///{path}")).close()
    _begin_sinks_again(path)
    with open_source(path) as source:
        async with open_target(url) as target:
            await copy_store(source, target, _show_nothing)


def _begin_sinks_again(path: Path) -> None:
    """Let sinks begin with the oldest row, because a cursor of transactions is valid only on its own server."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE sinks SET cursor = '0' WHERE cursor LIKE 't%'")


def _show_nothing(_table: str, _rows: int) -> None:
    pass
