"""Repositories over a temporary SQLite file."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.database import Database, open_database
from gateway.storage.idempotency import IdempotencyRepository
from gateway.storage.ledger import LedgerRepository
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.retention import RetentionRepository
from gateway.storage.traffic import TrafficRepository
from gateway.storage.videos import VideoRepository
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from tests.support.gateway import make_template
from tests.support.repositories import close_databases


@attrs.frozen
class Stores:
    """Repositories of accounts, requests and money."""

    accounts: AccountRepository
    keys: ApiKeyRepository
    requests: RequestLogRepository
    ledger: LedgerRepository
    traffic: TrafficRepository
    retirement: RetentionRepository


def open_stores(database: Database) -> Stores:
    """Those of the database."""
    return Stores(
        AccountRepository(database),
        ApiKeyRepository(database),
        RequestLogRepository(database),
        LedgerRepository(database),
        TrafficRepository(database),
        RetentionRepository(database),
    )


@attrs.frozen
class Archive:
    """Repositories of videos, and of the requests and charges of videos."""

    videos: VideoRepository
    deliveries: WebhookDeliveryRepository
    replays: IdempotencyRepository
    requests: RequestLogRepository
    ledger: LedgerRepository
    retirement: RetentionRepository


def open_archive(database: Database) -> Archive:
    """Those of the database."""
    return Archive(
        VideoRepository(database),
        WebhookDeliveryRepository(database),
        IdempotencyRepository(database),
        RequestLogRepository(database),
        LedgerRepository(database),
        RetentionRepository(database),
    )


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


async def copy_template(template: Path, folder: Path) -> Path:
    """A migrated, empty database that nobody has open."""
    if not template.exists():
        await make_template(template)
    return Path(shutil.copy(template, folder / "gateway.db"))


@pytest.fixture
async def database_path(tmp_path: Path, template_path: Path) -> Path:
    return await copy_template(template_path, tmp_path)


@pytest.fixture
async def database(database_path: Path) -> AsyncIterator[Database]:
    opened = await open_database(f"sqlite:///{database_path}")
    yield opened
    await opened.close()


@pytest.fixture
def stores(database: Database) -> Stores:
    return open_stores(database)


@pytest.fixture
def archive(database: Database) -> Archive:
    return open_archive(database)
