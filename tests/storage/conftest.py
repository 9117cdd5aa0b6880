"""Fixtures of the tests of storage: a database of each test's own, and its repositories."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.database import Database
from gateway.storage.open import open_database
from tests.support.database_kinds import KINDS
from tests.support.postgres import SharedPostgres
from tests.support.repositories import close_databases
from tests.support.stores import Archive, Stores, copy_template, open_archive, open_stores


def find_workers() -> set[threading.Thread]:
    """The driver's threads, one a connection."""
    return {thread for thread in threading.enumerate() if "_connection_worker_thread" in thread.name}


@pytest.fixture(autouse=True)
async def workers_end() -> AsyncIterator[None]:
    """No connection outlives its test; a worker that is told to stop still answers the loop of its connection."""
    before = find_workers()
    yield
    await close_databases()
    for worker in find_workers() - before:
        await asyncio.to_thread(worker.join, 3)
    assert not find_workers() - before, "a connection was not closed"


@pytest.fixture
async def database_path(tmp_path: Path, template_path: Path) -> Path:
    return await copy_template(template_path, tmp_path)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    """What database the test has; a test of one kind only is marked (``tests/support/database_kinds.py``)."""
    return request.param


@pytest.fixture
async def database(kind: str, database_path: Path, shared_postgres: SharedPostgres) -> AsyncIterator[Database]:
    url = f"sqlite:///{database_path}" if kind == "sqlite" else await shared_postgres.empty()
    opened = await open_database(url)
    yield opened
    await opened.close()


@pytest.fixture
def stores(database: Database) -> Stores:
    return open_stores(database)


@pytest.fixture
def archive(database: Database) -> Archive:
    return open_archive(database)
