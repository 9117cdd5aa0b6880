"""Jobs, webhooks of their ends, and named calls, for tests: one of each with a value in every field, and others."""

from typing import Any

import attrs
from sqlalchemy import insert, select, update

from gateway.domain.idempotency import IdempotencyRecord
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import Claim, VideoJob
from gateway.domain.webhook import WebhookDelivery
from gateway.storage.row_mapping import build_delivery_row, build_video_row
from gateway.storage.schema import deliveries, videos
from tests.support.request_records import ROW

NOW = 1_750_000_100_000
LEASE = 30_000
JOB = VideoJob(
    id="video_0",
    receipt=ROW,
    prompt="a cat that says “日本” \U0001f3ac",
    size="1280x720",
    seconds="8",
    remixed_from="video_00",
    state="processing",
    progress=42,
    updated_ms=NOW,
    deadline_ms=NOW + 86_400_000,
    completed_ms=NOW + 1,
    expires_ms=NOW + 2,
    error_code="upstream_error",
    error_message="ça ne va pas",
    held_nanos=2**62,
    cost_nanos=2**53 + 1,
    channel="up",
    provider="openai",
    wire="openai_videos",
    upstream_model="sora-2",
    upstream_id="operations/theirs-1",
    key_print="print",
    clue="https://files.test/1?signature=x",
    media_id="0" * 32 + ".mp4",
    media_bytes=2**40,
    media_type="video/mp4",
    owner="other",
    lease_until_ms=NOW + LEASE,
    due_ms=NOW - 1,
    polls=3,
    failures=4,
    webhook_url="https://hooks.test/1",
    status_words="openai",
)
"""A job that no other is like: it has what only a live one has, and what only one that ended has."""
DELIVERY = WebhookDelivery(
    id="evt_0",
    video_id="video_0",
    account_id=3,
    key_id=5,
    url="https://hooks.test/1",
    event="video.completed",
    body=b'{"id":"\xff\x00"}',
    created_ms=NOW,
    status="failed",
    attempts=2,
    answer=503,
    error="no answer",
    ended_ms=NOW + 1,
    due_ms=NOW + 2,
    owner="other",
    lease_until_ms=NOW + 3,
)
REPLAY = IdempotencyRecord(
    key_id=5,
    name="order 日本/1",
    digest="ab" * 32,
    request_id="req_0",
    created_ms=NOW,
    owner="me",
    state="answered",
    status=200,
    media_type="application/json",
    body=b"{}\x00\xff",
)


def make_job(name: object, *, account: int = 3, **values: Any) -> VideoJob:
    """A job that is at work, due now, with nobody at it: ``video_{name}`` of the call ``req_{name}``."""
    receipt = attrs.evolve(ROW, id=f"req_{name}", account_id=account)
    known: dict[str, Any] = {"prompt": "a cat", "state": "processing", "channel": "up", "due_ms": NOW}
    return VideoJob(id=f"video_{name}", receipt=receipt, **{**known, **values})


def mute(job: VideoJob) -> VideoJob:
    """The job as a worker gets it: without its prompt."""
    return attrs.evolve(job, prompt="")


def make_delivery(name: object, **values: Any) -> WebhookDelivery:
    """A delivery that is due now: ``evt_{name}`` of the job ``video_{name}``."""
    fresh = WebhookDelivery(f"evt_{name}", f"video_{name}", 3, 5, "https://hooks.test/1", "video.completed", b"{}", NOW)
    return attrs.evolve(fresh, **{"due_ms": NOW, **values})


def end(job: VideoJob, *, cost: int = 0) -> tuple[VideoJob, RequestRecord]:
    """The job with its video, and the row of its call."""
    done = attrs.evolve(job.complete(NOW, NOW + 1), cost_nanos=cost)
    return done, attrs.evolve(job.receipt, cost_nanos=cost)


def claim(owner: str = "me", now_ms: int = NOW, *, most: int = 10, each: int = 10, **values: Any) -> Claim:
    """A claim of everything that is due, for ``LEASE``."""
    return Claim(owner, now_ms, LEASE, most, each, **values)


async def put_job(repository: Any, job: VideoJob) -> None:
    """Make a job what no method of the repository makes it: without its owner, in another state, or new."""
    database = repository._database
    if not await database.change(update(videos).where(videos.c.id == job.id).values(build_video_row(job))):
        await repository.create(job)


async def list_jobs(repository: Any) -> dict[str, VideoJob]:
    """Every job, by its id, in the order of creation."""
    ids = [row.id for row in await repository._database.read(select(videos.c.id).order_by(videos.c.sequence))]
    return {video_id: await repository.find(video_id) for video_id in ids}


async def add_delivery(repository: Any, delivery: WebhookDelivery) -> None:
    await repository._database.change(insert(deliveries).values(build_delivery_row(delivery)))
