"""The repositories that tests of storage use together, each over the database of the test."""

import shutil
from pathlib import Path

import attrs

from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.database import Database
from gateway.storage.idempotency import IdempotencyRepository
from gateway.storage.ledger import LedgerRepository
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.retention import RetentionRepository
from gateway.storage.traffic import TrafficRepository
from gateway.storage.videos import VideoRepository
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from tests.support.gateway import make_template


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


async def copy_template(template: Path, folder: Path) -> Path:
    """Copy a migrated, empty database, which nobody has open, into ``folder``."""
    if not template.exists():
        await make_template(template)
    return Path(shutil.copy(template, folder / "gateway.db"))
