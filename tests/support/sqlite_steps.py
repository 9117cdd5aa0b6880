"""How much SQLite does for a question: the steps of its virtual machine."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from gateway.storage.database import Database
from gateway.storage.sqlite_database import READER_COUNT, SqliteDatabase

STEPS_PER_CALL = 100


@asynccontextmanager
async def count_steps(database: Database) -> AsyncIterator[Counter[str]]:
    """Count the steps in all connections that read as ``steps``, by hundreds."""
    counts: Counter[str] = Counter()
    assert isinstance(database, SqliteDatabase)
    async with AsyncExitStack() as stack:
        for _ in range(READER_COUNT):
            connection = await stack.enter_async_context(database._reader.connect())
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None
            await driver.set_progress_handler(lambda: counts.update({"steps": STEPS_PER_CALL}), STEPS_PER_CALL)
    yield counts
