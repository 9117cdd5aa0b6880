"""Video jobs are brought back into a database that lacks their last changes, in any order of the nodes, once."""

from collections.abc import Awaitable, Callable

import attrs
import pytest
from sqlalchemy import Engine, event, select

from gateway.cluster.kept.kept_changes import ChangeFile
from gateway.cluster.kept.restore import restore_changes
from gateway.domain.video import Claim, VideoJob
from gateway.errors import StoreUnavailable
from gateway.storage.database import Database
from gateway.storage.kept_videos import KeptVideo, build_state, parse_state
from gateway.storage.schema import deliveries, requests, usage_days, video_prompts, videos
from gateway.storage.videos import VideoRepository
from tests.support.lacking_stores import open_lacking
from tests.support.postgres import SharedPostgres
from tests.support.request_records import ROW
from tests.support.video_records import DELIVERY, JOB, NOW, end, list_jobs, make_delivery, make_job, mute

CREATED = make_job(1, state="created", owner="me:1")
SUBMITTING = CREATED.move("submitting", NOW + 1, channel="up")
QUEUED = SUBMITTING.move("queued", NOW + 2, upstream_id="theirs").release(NOW + 3)
DONE, ROW_OF_DONE = end(QUEUED, cost=9)
JOBS = 24
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


async def test_no_node_claims_a_job_before_all_have_restored(shared_postgres: SharedPostgres) -> None:
    """The job was finished by another node, which has not restored it yet."""
    async with open_lacking(shared_postgres, use(submit), use(nothing)) as database:
        restoring = [True]
        database.keep_changes(ChangeFile(None, lambda: "", lambda: "", find_restoring=lambda: restoring[0]))
        store = VideoRepository(database)
        long_after = NOW + 1_000_000
        claim = Claim("us:1", long_after, duration_ms=1_000, max_jobs=9, max_per_channel=9, fetching=False)
        with pytest.raises(StoreUnavailable):
            await store.claim_due(claim)
        assert list((await list_jobs(store)).values()) == [SUBMITTING]
        restoring[0] = False
        assert [job.id for job in await store.claim_due(claim)] == [CREATED.id]


async def play(database: Database, number: int, stage: int) -> None:
    """Create a job and bring it to ``stage``: 1: it is submitted, 2: accepted, 3: done."""
    repository = VideoRepository(database)
    created = make_job(number, state="created", owner="me:1", prompt=f"prompt {number}")
    submitting = created.move("submitting", NOW + 1, channel="up")
    queued = submitting.move("queued", NOW + 2, upstream_id=f"theirs {number}").release(NOW + 3)
    done, row = end(queued, cost=number)
    await repository.create(created)
    if stage > 0:
        await repository.advance([(created, submitting)])
    if stage > 1:
        await repository.advance([(mute(submitting), mute(queued))])
    if stage > 2:
        assert await repository.finish(mute(done), row, make_delivery(number))


async def read_all(database: Database) -> list[set[tuple[object, ...]]]:
    """Return the rows that belong to jobs, without their numbers and without the times of the next polls."""
    tables = (videos, video_prompts, requests, usage_days, deliveries)
    columns = [[column for column in table.c if column.name not in {"sequence", "due_ms"}] for table in tables]
    return [set(map(tuple, await database.read(select(*names)))) for names in columns]


async def test_many_jobs_come_back_in_few_statements(shared_postgres: SharedPostgres) -> None:
    expected_rows, statements = list[set[tuple[object, ...]]](), list[str]()

    async def know(database: Database) -> None:
        for number in range(0, JOBS, 3):
            await play(database, number, number % 4 // 2)

    async def lose(database: Database) -> None:
        for number in range(JOBS):
            await play(database, number, number % 4)
        expected_rows.extend(await read_all(database))

    def add_statement(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    async with open_lacking(shared_postgres, know, lose) as database:
        event.listen(Engine, "before_cursor_execute", add_statement)
        try:
            await restore_changes(database, "", "me:1")
        finally:
            event.remove(Engine, "before_cursor_execute", add_statement)
        for stored, expected in zip(await read_all(database), expected_rows, strict=True):
            assert stored ^ expected == set()
    assert len(statements) < 2 * JOBS  # it was 17 a job


def test_every_field_is_kept() -> None:
    video = KeptVideo(JOB, ROW, DELIVERY, removed=True)
    assert parse_state(build_state(video)) == video
