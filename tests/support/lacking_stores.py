"""Databases that lack the last changes of a node, which the node has kept."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gateway.cluster.kept.kept_changes import ChangeFile
from gateway.storage.database import Database
from gateway.storage.open import open_database
from tests.support.postgres import SharedPostgres

Work = Callable[[Database], Awaitable[object]]


@asynccontextmanager
async def open_lacking(postgres: SharedPostgres, known: Work, lost: Work) -> AsyncIterator[Database]:
    """A database after ``known``, whose node has kept what ``lost`` has done to another one."""
    database = await open_database(await postgres.empty())
    kept = ChangeFile(None, lambda: "", lambda: "", find_restoring=lambda: False)
    database.keep_changes(kept)
    try:
        await lost(database)
    finally:
        await database.close()
    database = await open_database(await postgres.empty())
    try:
        await known(database)
        database.keep_changes(kept)
        yield database
    finally:
        await database.close()
