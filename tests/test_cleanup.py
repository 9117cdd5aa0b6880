"""Answers that could be given again go after a day, tellings and jobs after a month, sessions when they are over."""

import asyncio
from contextlib import suppress
from itertools import pairwise

from sqlalchemy import select
from structlog.testing import capture_logs
from typing_extensions import override

from gateway.cleanup import (
    DELIVERY_RETENTION_MS,
    FIRST_DELAY_S,
    MAX_JOBS,
    SWEEP_INTERVAL_S,
    VIDEO_RETENTION_MS,
    RecordCleanup,
)
from gateway.domain.account import Account
from gateway.domain.idempotency import KEEP_MS, IdempotencyRecord
from gateway.domain.member import IDLE_MS, Credential, InviteLink, Member, Session
from gateway.errors import StoreUnavailable
from gateway.proxy.idempotency import IdempotencyService
from gateway.storage.database import Database
from gateway.storage.idempotency import IdempotencyRepository
from gateway.storage.members import MemberRepository
from gateway.storage.schema import replays
from gateway.storage.videos import VideoRepository
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from tests.support.repositories import Repositories
from tests.support.video_records import add_delivery, list_jobs, make_delivery, make_job
from tests.support.worker_loop import run_hurried

NOW_S = 1_750_000_000.0
NOW_MS = int(NOW_S * 1000)
DAY_MS = 24 * 3_600 * 1000


class Videos(VideoRepository):
    """It remembers how many were to go at a time."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.most: list[int] = []

    @override
    async def sweep_ended(self, before_ms: int, most: int) -> int:
        self.most.append(most)
        return await super().sweep_ended(before_ms, most)


class Replays(IdempotencyRepository):
    """A repository that fails as often as ``failing`` says."""

    def __init__(self, database: Database, failing: int) -> None:
        super().__init__(database)
        self.failing = failing
        self.asked: list[float] = []

    @override
    async def sweep_replays(self, before_ms: int) -> int:
        self.asked.append(asyncio.get_running_loop().time())
        if self.failing:
            self.failing -= 1
            raise StoreUnavailable("not now")
        return await super().sweep_replays(before_ms)


class StoreDouble:
    """Both stores, with what is young and what is old in them; they fail as often as they are told to."""

    def __init__(self, failing: int = 0) -> None:
        self.books = Repositories()
        database = self.books.database
        self.idempotency, self.deliveries = Replays(database, failing), WebhookDeliveryRepository(database)
        self.videos, self.members = Videos(database), MemberRepository(database)
        idempotency = IdempotencyService(self.idempotency, "me", self.clock)
        self.job = RecordCleanup(idempotency, self.deliveries, self.videos, self.members, self.clock)

    def clock(self) -> float:
        return NOW_S

    async def put(self) -> None:
        for age_ms in (0, KEEP_MS, KEEP_MS + 1):
            name = f"of {age_ms}"
            await self.idempotency.begin_replay(
                IdempotencyRecord(5, name, "ab", f"req_{age_ms}", created_ms=NOW_MS - age_ms, owner="me")
            )
        for name, ended_ms in (("live", None), ("young", NOW_MS - DAY_MS), ("old", NOW_MS - DELIVERY_RETENTION_MS - 1)):
            status = "pending" if ended_ms is None else "delivered"
            due_ms = NOW_MS - 90 * DAY_MS if ended_ms is None else None
            delivery = make_delivery(name, status=status, ended_ms=ended_ms, due_ms=due_ms)
            await add_delivery(self.deliveries, delivery)

    async def put_videos(self, *names: object, over_ms: int | None) -> None:
        ended = {"state": "completed", "completed_ms": NOW_MS - 90 * DAY_MS, "expires_ms": over_ms, "due_ms": None}
        for name in names:
            await self.videos.create(make_job(name, **({"due_ms": 0} if over_ms is None else ended)))

    async def list_left(self) -> tuple[set[str], set[str]]:
        deliveries = await self.deliveries.list_deliveries(video_id=None, limit=9)
        names = await self.books.database.read(select(replays.c.name))
        return {row.name for row in names}, {one.id for one in deliveries}


async def test_what_is_old_goes_and_what_goes_on_stays_however_old_it_is() -> None:
    shelf = StoreDouble()
    await shelf.put()
    with capture_logs() as lines:
        await shelf.job.sweep()
        await shelf.job.sweep()
    assert await shelf.list_left() == ({"of 0", f"of {KEEP_MS}"}, {"evt_live", "evt_young"})
    assert lines == [{"event": "records_swept", "log_level": "info", "rows": 2}], "and says so where something went"


async def test_jobs_go_a_month_after_their_videos_and_not_all_in_one_commit() -> None:
    shelf = StoreDouble()
    await shelf.put_videos(*range(2 * MAX_JOBS), over_ms=NOW_MS - VIDEO_RETENTION_MS - 1)
    await shelf.put_videos("young", over_ms=NOW_MS - VIDEO_RETENTION_MS)
    await shelf.put_videos("live", over_ms=None)
    with capture_logs() as lines:
        await shelf.job.sweep()
    assert set(await list_jobs(shelf.videos)) == {"video_young", "video_live"}
    assert shelf.videos.most == [MAX_JOBS] * 3
    assert lines == [{"event": "records_swept", "log_level": "info", "rows": 2 * MAX_JOBS}]


async def test_sessions_and_links_go_once_they_are_no_longer_good() -> None:
    shelf = StoreDouble()
    account = await shelf.books.add_account(Account(0, "acme"))
    ann = await shelf.members.add_member(Member(0, account.id, "ann", "member", passphrase="hash"))
    for name, seen_ms in ((b"idle", NOW_MS - IDLE_MS), (b"used", NOW_MS - IDLE_MS + 1)):
        await shelf.members.add_session(Session(name, ann.id, seen_ms, seen_ms), Credential("hash"))
        await shelf.members.add_link(InviteLink(name, "invite", account.id, "viewer", 0, seen_ms + IDLE_MS))
    with capture_logs() as lines:
        await shelf.job.sweep()
    assert [session.digest for session in await shelf.members.list_sessions(ann.id)] == [b"used"]
    assert [link.digest for link in await shelf.members.list_links()] == [b"used"]
    assert lines == [{"event": "records_swept", "log_level": "info", "rows": 2}]


async def test_a_store_that_fails_is_swept_the_next_time() -> None:
    shelf = StoreDouble(failing=1)
    await shelf.put()
    with capture_logs() as lines:
        await shelf.job.sweep()
        assert len((await shelf.list_left())[0]) == 3
        await shelf.job.sweep()
    assert [line["event"] for line in lines] == ["records_not_swept", "records_swept"]


def test_it_sweeps_soon_after_the_start_and_then_every_hour_for_ever() -> None:
    shelf = StoreDouble(failing=1)

    began: list[float] = []

    async def scene() -> None:
        began.append(asyncio.get_running_loop().time())
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_DELAY_S + 3 * SWEEP_INTERVAL_S + 60):
                await shelf.job.run()

    run_hurried(scene())
    waits = [after - before for before, after in pairwise(began + shelf.idempotency.asked)]
    assert [round(wait) for wait in waits] == [round(FIRST_DELAY_S), *[round(SWEEP_INTERVAL_S)] * 3]
