"""Whatever the gateway can write of a request, a job, a delivery or a replay is read back from either database."""

from itertools import count
from typing import Any, get_args

import attrs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.idempotency import MAX_KEY_CHARS, IdempotencyRecord
from gateway.domain.request_log import Outcome, RequestRecord
from gateway.domain.video import VideoJob
from gateway.domain.webhook import WebhookDelivery
from gateway.storage.database import Database
from gateway.storage.idempotency import IdempotencyRepository
from gateway.storage.ledger import LedgerRepository
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.videos import VideoRepository
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from tests.support.video_records import end, make_delivery, make_job

EXAMPLES = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
"""What a text of PostgreSQL can have; other characters are left out (``gateway.storage.postgres.values``)."""
AMOUNTS = st.integers(0, 2**50)
MOMENTS = st.integers(0, 2**42)
_numbers = count()


def texts(most: int) -> st.SearchStrategy[str]:
    return st.text(LETTERS, max_size=most)


def names() -> st.SearchStrategy[str]:
    """Of what an index has."""
    return texts(64) | st.sampled_from(["\U0010ffff" * 64, "é" * 64, "%_'\"\\", "ﬁ ß İ"])


def models() -> st.SearchStrategy[str]:
    return texts(256) | st.just("\U0001f600" * 256)


ROWS = st.builds(
    RequestRecord,
    id=st.builds(lambda: f"req_any_{next(_numbers)}"),
    started_ms=MOMENTS,
    settled_ms=MOMENTS,
    operation=names(),
    account_id=AMOUNTS,
    account=names(),
    key_id=AMOUNTS,
    key_name=names(),
    model=models(),
    channel=st.none() | names(),
    status=st.integers(0, 999),
    outcome=st.sampled_from(get_args(Outcome)),
    error_code=st.none() | texts(128),
    stream=st.booleans(),
    attempts=AMOUNTS,
    prompt_tokens=AMOUNTS,
    completion_tokens=AMOUNTS,
    cached_tokens=AMOUNTS,
    usage_source=st.sampled_from(["upstream", "estimate", "none", "bound"]),
    cost_nanos=AMOUNTS,
    reserved_nanos=AMOUNTS,
    overrun_nanos=AMOUNTS,
    first_byte_ms=st.none() | MOMENTS,
    total_ms=MOMENTS,
    client_request_id=st.none() | texts(64),
    tried=texts(2_000),
    images=AMOUNTS,
    duration_ms=AMOUNTS,
    characters=AMOUNTS,
    error=texts(2_000),
    unpriced=st.booleans(),
    batch_id=st.none() | names(),
    batch_multiplier_ppm=AMOUNTS,
    adapted=texts(2_000),
    served_model=texts(200),
    units=texts(500),
)
JOB_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "prompt": texts(5_000), "size": texts(100), "seconds": texts(100), "remixed_from": st.none() | names(),
    "progress": st.integers(0, 100), "updated_ms": MOMENTS, "deadline_ms": MOMENTS, "completed_ms": st.none() | MOMENTS,
    "expires_ms": st.none() | MOMENTS, "error_code": st.none() | texts(500), "error_message": st.none() | texts(2_000),
    "held_nanos": AMOUNTS, "cost_nanos": AMOUNTS, "channel": names(), "provider": names(), "wire": names(),
    "upstream_model": texts(5_000), "upstream_id": st.none() | texts(5_000), "key_print": names(),
    "clue": st.none() | texts(500), "media_id": st.none() | names(), "media_bytes": AMOUNTS, "media_type": names(),
    "owner": names(), "polls": AMOUNTS, "failures": AMOUNTS, "webhook_url": st.none() | texts(2_000),
}  # fmt: skip
DELIVERY_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "url": texts(5_000), "event": names(), "body": st.binary(max_size=5_000), "created_ms": MOMENTS,
    "attempts": AMOUNTS, "answer": st.none() | st.integers(100, 999), "error": st.none() | texts(2_000),
    "account_id": AMOUNTS, "key_id": AMOUNTS,
}  # fmt: skip
REPLAYS = st.builds(
    IdempotencyRecord,
    key_id=AMOUNTS,
    name=texts(MAX_KEY_CHARS - 20).map(lambda name: f"{name}{next(_numbers)}"),
    digest=names(),
    request_id=names(),
    created_ms=st.integers(2**41, 2**42),
    owner=names(),
    state=st.sampled_from(["running", "answered", "lost"]),
    status=st.integers(0, 999),
    media_type=texts(500),
    body=st.binary(max_size=5_000),
)


def test_every_field_is_drawn() -> None:
    """So that a field which is added is one that these tests look at."""
    drawn = {field.name for field in attrs.fields(VideoJob)} - {
        "id", "receipt", "state", "lease_until_ms", "due_ms", "status_words",
    }  # fmt: skip
    assert drawn == set(JOB_VALUES)
    kept = {"id", "video_id", "status", "ended_ms", "due_ms", "owner", "lease_until_ms"}
    assert {field.name for field in attrs.fields(WebhookDelivery)} - kept == set(DELIVERY_VALUES)


@EXAMPLES
@given(rows=st.lists(ROWS, min_size=1, max_size=40))
async def test_any_request_is_read_back(database: Database, rows: list[RequestRecord]) -> None:
    await LedgerRepository(database).post(rows)
    log = RequestLogRepository(database)
    for row in rows:
        stored = await log.find_request(row.id)
        assert stored is not None
        assert stored.row == row


@EXAMPLES
@given(values=st.fixed_dictionaries(JOB_VALUES), row=ROWS, delivery=st.fixed_dictionaries(DELIVERY_VALUES))
async def test_any_job_and_its_delivery_are_read_back(
    database: Database, values: dict[str, Any], row: RequestRecord, delivery: dict[str, Any]
) -> None:
    videos, number = VideoRepository(database), next(_numbers)
    job = attrs.evolve(make_job(f"any-{number}", **values), receipt=row)
    await videos.create(job)
    assert await videos.find(job.id) == job
    done, charged = end(job, cost=job.cost_nanos)
    sent = attrs.evolve(make_delivery(f"any-{number}", **delivery), video_id=job.id)
    assert await videos.finish(done, charged, sent)
    (stored,) = await WebhookDeliveryRepository(database).list_deliveries(video_id=job.id, limit=2)
    assert stored == sent


@EXAMPLES
@given(replay=REPLAYS)
async def test_any_replay_is_read_back(database: Database, replay: IdempotencyRecord) -> None:
    replays = IdempotencyRepository(database)
    assert await replays.begin_replay(replay) is None
    assert await replays.begin_replay(attrs.evolve(replay, request_id="another")) == replay
