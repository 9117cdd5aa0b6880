"""Video jobs are brought back into a database that lacks their last changes, in any order of the nodes, once."""

from collections.abc import Awaitable, Callable

import attrs
import pytest
from sqlalchemy import select

from gateway.cluster.kept.restore import restore_changes
from gateway.domain.video import VideoJob
from gateway.storage.database import Database
from gateway.storage.kept_videos import KeptVideo, build_state, parse_state
from gateway.storage.schema import requests
from gateway.storage.videos import VideoRepository
from tests.support.lacking_stores import open_lacking
from tests.support.postgres import SharedPostgres
from tests.support.request_records import ROW
from tests.support.video_records import DELIVERY, JOB, NOW, end, list_jobs, make_delivery, make_job, mute

CREATED = make_job(1, state="created", owner="me:1")
SUBMITTING = CREATED.move("submitting", NOW + 1, channel="up")
QUEUED = SUBMITTING.move("queued", NOW + 2, upstream_id="theirs").release(NOW + 3)
DONE, ROW_OF_DONE = end(QUEUED, cost=9)
REFUSED = attrs.evolve(CREATED.receipt, cost_nanos=0, outcome="failed")
Work = Callable[[VideoRepository], Awaitable[object]]


async def create(videos: VideoRepository) -> None:
    await videos.create(CREATED)


async def submit(videos: VideoRepository) -> None:
    await create(videos)
    await videos.advance([(CREATED, SUBMITTING)])


async def start(videos: VideoRepository) -> None:
    await submit(videos)
    await videos.advance([(mute(SUBMITTING), mute(QUEUED))])


async def finish(videos: VideoRepository) -> None:
    await start(videos)
    assert await videos.finish(mute(DONE), ROW_OF_DONE, make_delivery(1))


async def remove(videos: VideoRepository) -> None:
    await finish(videos)
    assert await videos.remove(DONE)


async def refuse(videos: VideoRepository) -> None:
    await create(videos)
    assert await videos.drop(CREATED, REFUSED)


async def nothing(_videos: VideoRepository) -> None:
    pass


def use(work: Work) -> Callable[[Database], Awaitable[object]]:
    return lambda database: work(VideoRepository(database))


@pytest.mark.parametrize(
    ("known", "lost", "job", "charged"),
    [
        (nothing, create, CREATED, []),
        (create, submit, SUBMITTING, []),
        (nothing, start, QUEUED, []),
        (submit, start, QUEUED, []),
        (nothing, finish, DONE, [9]),
        (start, finish, DONE, [9]),
        (finish, start, DONE, [9]),  # another node knows less
        (nothing, remove, None, [9]),
        (finish, remove, None, [9]),
        (remove, start, None, [9]),
        (create, refuse, None, [0]),
        (nothing, refuse, None, [0]),
    ],
)
async def test_a_job_is_as_its_node_knows_it(
    shared_postgres: SharedPostgres, known: Work, lost: Work, job: VideoJob | None, charged: list[int]
) -> None:
    async with open_lacking(shared_postgres, use(known), use(lost)) as database:
        for _ in range(2):
            await restore_changes(database, "", "me:1")
            restored = list((await list_jobs(VideoRepository(database))).values())
            expected = [] if job is None else [job]
            assert [attrs.evolve(each, due_ms=None) for each in restored] == [
                attrs.evolve(each, due_ms=None) for each in expected
            ]
            stored = await database.read(select(requests.c.cost_nanos))
            assert [row.cost_nanos for row in stored] == charged


async def test_a_job_whose_process_ended_while_it_was_submitted_is_free(shared_postgres: SharedPostgres) -> None:
    async with open_lacking(shared_postgres, use(nothing), use(submit)) as database:
        await restore_changes(database, "", "me:2")
        found = await VideoRepository(database).find(CREATED.id)
        assert found == attrs.evolve(SUBMITTING, owner="", due_ms=SUBMITTING.updated_ms)


def test_every_field_is_kept() -> None:
    video = KeptVideo(JOB, ROW, DELIVERY, removed=True)
    assert parse_state(build_state(video)) == video
