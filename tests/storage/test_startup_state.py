"""What an earlier process has left is seen at the start, each kind by itself."""

import attrs

from gateway.domain.account import Account
from gateway.domain.batch import Batch
from gateway.domain.idempotency import IdempotencyRecord
from gateway.storage.accounts import AccountRepository
from gateway.storage.batches import BatchRepository, find_no_process
from gateway.storage.database import Database
from gateway.storage.idempotency import IdempotencyRepository
from gateway.storage.settings import SettingRepository
from gateway.storage.startup_state import StartupState, find_leftovers
from gateway.storage.videos import VideoRepository
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from tests.support.video_records import NOW, end, make_delivery, make_job

NOTHING = StartupState(videos=False, deliveries=False, replays=False, settings=False, batches=False)


async def test_what_is_left_is_seen_until_it_is_over(database: Database) -> None:
    videos, deliveries, replays = (
        VideoRepository(database),
        WebhookDeliveryRepository(database),
        IdempotencyRepository(database),
    )
    assert await find_leftovers(database) == NOTHING
    job = make_job(1)
    await videos.create(job)
    assert await find_leftovers(database) == attrs.evolve(NOTHING, videos=True)
    delivery = make_delivery(1)
    await videos.finish(*end(job), delivery)
    assert await find_leftovers(database) == attrs.evolve(NOTHING, deliveries=True)
    await deliveries.note_delivery(attrs.evolve(delivery, status="delivered", due_ms=None, ended_ms=NOW))
    named = IdempotencyRecord(1, "name", "ab", "req_1", NOW, "me")
    await replays.begin_replay(named)
    assert await find_leftovers(database) == attrs.evolve(NOTHING, replays=True)
    await replays.end_replay(attrs.evolve(named, state="lost"))
    assert await find_leftovers(database) == NOTHING


async def test_a_batch_is_seen_until_it_has_ended(database: Database) -> None:
    store = BatchRepository(database, find_no_process)
    account = await AccountRepository(database).add_account(Account(0, "acme"))
    batch = Batch("batch_1", account.id, 1, NOW, NOW, "/v1/embeddings", "file-1", "in_progress")
    await store.add_batch(batch)
    assert await find_leftovers(database) == attrs.evolve(NOTHING, batches=True)
    await store.save_batch(batch.set_status("completed", NOW // 1000))
    assert await find_leftovers(database) == NOTHING


async def test_what_was_set_is_seen_until_it_is_taken_back(database: Database) -> None:
    settings = SettingRepository(database)
    await settings.change_settings({"routing.max_attempts": 4}, 1)
    assert await find_leftovers(database) == attrs.evolve(NOTHING, settings=True)
    await settings.change_settings({"routing.max_attempts": None}, 2)
    assert await find_leftovers(database) == NOTHING
