"""What the fault tests of videos share: the call, what it costs, waiting for its end, and the audit of what is left."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from hashlib import sha256
from typing import Any

from gateway.domain.request_log import RequestRecord
from gateway.domain.video import VideoFilter, VideoJob
from gateway.server.context import SERVICES
from tests.support.fault_scene import WAIT_LIMIT_S, Heard, hear
from tests.support.gateway import RunningGateway
from tests.support.openai_videos import OpenAiVideos, write_pieces

VIDEOS = "/v1/videos"
PRICE = {"model": "*", "usd_per_second": 0.25}
SECONDS = 4
A_VIDEO = 1_000_000_000
"""Nano-USD."""


def site(*channels: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """A configuration of channels, with a price on the videos of every model; files may come from this machine."""
    return {"channel": list(channels), "price": [PRICE], "egress": {"allow": ["127.0.0.1"]}, **sections}


async def submit(
    gateway: RunningGateway, prompt: str, *, key: str | None = None, mark: str | None = None, **body: Any
) -> Heard:
    """A call for a video, heard to its end; ``key`` is its ``Idempotency-Key``. Its mark is its prompt, or another."""
    fields = {"model": "m", "prompt": prompt, "seconds": str(SECONDS), **body}
    headers = {"X-Request-Id": write_mark(mark or prompt)} | ({} if key is None else {"Idempotency-Key": key})
    async with gateway.post(fields, VIDEOS, headers=headers) as response:
        return await hear(response)


def write_mark(prompt: str) -> str:
    """What the row of a call is found by."""
    return re.sub(r"[^A-Za-z0-9]", ".", prompt)


async def look(gateway: RunningGateway, path: str = VIDEOS, **headers: str) -> Heard:
    """What is there for the caller."""
    async with gateway.client.get(gateway.url + path, headers=headers) as response:
        return await hear(response)


async def list_jobs(gateway: RunningGateway) -> Sequence[VideoJob]:
    """Every job, the oldest first."""
    found: Sequence[VideoJob] = await gateway.app[SERVICES].videos.jobs.store.list_videos(
        VideoFilter(newest_first=False), 1_000
    )
    return found


async def find_jobs(gateway: RunningGateway) -> dict[str, VideoJob]:
    """Every job by its prompt; fails where one has two."""
    jobs = await list_jobs(gateway)
    found = {job.prompt: job for job in jobs}
    assert len(found) == len(jobs)
    return found


async def await_job(gateway: RunningGateway, prompt: str, *states: str) -> VideoJob:
    """Once it is in one of these states, or has ended; fails where it never is, or ends otherwise."""
    async with asyncio.timeout(WAIT_LIMIT_S):
        while (job := (await find_jobs(gateway)).get(prompt)) is None:  # noqa: ASYNC110 - it has no bell yet
            await asyncio.sleep(0.01)
    job = await follow(gateway, job, states)
    assert not states or job.state in states, job
    return job


async def follow(gateway: RunningGateway, job: VideoJob, states: Sequence[str] = ()) -> VideoJob:
    """A job, once it is in one of these states, or has ended."""
    videos = gateway.app[SERVICES].videos
    async with asyncio.timeout(WAIT_LIMIT_S), videos.notifier.listen(job.id) as bell:
        while True:
            bell.clear()
            job = await videos.jobs.get(job.id)
            if job.ended or job.state in states:
                return job
            await bell.wait()


async def await_ends(gateway: RunningGateway) -> dict[str, VideoJob]:
    """Every job by its prompt, once all have ended."""
    return {job.prompt: await follow(gateway, job) for job in (await find_jobs(gateway)).values()}


async def audit(gateway: RunningGateway, *providers: OpenAiVideos, rows: int | None = None) -> dict[str, RequestRecord]:
    """After a scenario in which everything has ended: every job and its call agree, and nothing is held or left over.

    Each call has one row, found by its mark; each job was begun at most once, by one provider; what is completed is
    paid for and there, whole, and the rest costs nothing. ``rows``: how many there are, if not one a job.
    """
    jobs = await find_jobs(gateway)
    stored = await gateway.rows(len(jobs) if rows is None else rows)
    by_id = {row.id: row for row in stored}
    for prompt, job in jobs.items():
        assert job.ended, job
        check_row(job, by_id[job.receipt.id])
        assert sum(provider.count(prompt) for provider in providers) <= max(by_id[job.receipt.id].attempts, 1)
        assert sum(task.prompt == prompt for one in providers for task in one.tasks.values()) <= 1
        if job.media_id is not None:
            await check_content(
                gateway, job, next(one.find_play(prompt).size for one in providers if one.count(prompt))
            )
    for provider in providers:
        assert set(provider.marks.values()) <= {1}
    assert await gateway.app[SERVICES].videos.jobs.store.list_contradictions() == []
    assert gateway.app[SERVICES].videos.jobs.reservations.list_held() == {}
    report = await gateway.check_books()
    assert report["charged_nanos"] == sum(row.cost_nanos for row in stored)
    return {row.client_request_id or row.id: row for row in stored}


def check_row(job: VideoJob, row: RequestRecord) -> None:
    """The row of a job that has ended says how, and what it costs."""
    completed = job.state == "completed"
    assert row.cost_nanos == (A_VIDEO if completed else 0), (job, row)
    assert row.error_code == job.error_code
    assert (row.outcome == "completed") == completed
    assert row.reserved_nanos == A_VIDEO
    assert (job.due_ms, job.owner, job.lease_until_ms) == (None, "", 0)


async def check_content(gateway: RunningGateway, job: VideoJob, size: int) -> None:
    """The caller has the very bytes that the provider had, under the task of that prompt."""
    heard = await look(gateway, f"{VIDEOS}/{job.id}/content")
    assert (heard.status, heard.whole, len(heard.body)) == (200, True, size)
    assert sha256(heard.body).digest() == digest(job.prompt, size)


@asynccontextmanager
async def auditing(gateway: RunningGateway) -> AsyncIterator[None]:
    """The books are looked at again and again meanwhile: whatever jobs are at, every purse and every hold agrees."""
    looked = 0

    async def keep_looking() -> None:
        nonlocal looked
        while True:
            report = await gateway.app[SERVICES].billing.accounting.reconcile()
            assert report["ok"], report["problems"]
            looked += 1
            await asyncio.sleep(0.2)

    looking = asyncio.create_task(keep_looking())
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
    assert looked


@asynccontextmanager
async def without(gateway: RunningGateway, table: str) -> AsyncIterator[None]:
    """A store that can neither write nor read what is in ``table``, and is well again afterwards."""
    path = gateway.folder.path / "gateway.db"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        await _alter(other, f"ALTER TABLE {table} RENAME TO away")
        try:
            yield
        finally:
            await _alter(other, f"ALTER TABLE away RENAME TO {table}")


async def _alter(other: sqlite3.Connection, statement: str) -> None:
    """As soon as the gateway's own writer lets go of the database."""
    async with asyncio.timeout(WAIT_LIMIT_S):
        while True:
            with suppress(sqlite3.OperationalError):
                other.execute(statement)
                return
            await asyncio.sleep(0.002)


def digest(prompt: str, size: int) -> bytes:
    """Of a prompt's file."""
    made = sha256()
    for piece in write_pieces(prompt, 0, size):
        made.update(piece)
    return made.digest()
