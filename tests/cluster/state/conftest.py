"""What nodes share is in a database on PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from gateway.storage.database import Database
from gateway.storage.open import open_database
from tests.support.postgres import SharedPostgres


@pytest.fixture
async def database(shared_postgres: SharedPostgres) -> AsyncIterator[Database]:
    opened = await open_database(await shared_postgres.empty())
    yield opened
    await opened.close()
