"""Videos in the database: whole commits, few rows looked at, and the same answers as the store in memory."""

from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.video import VideoFilter, VideoJob, VideoState
from gateway.errors import StoreUnavailable
from gateway.storage.database import Database
from gateway.storage.open import open_database
from gateway.storage.schema import deliveries, entries, requests, usage_days, video_prompts, videos
from gateway.storage.videos import _CLAIM_DUE, _FIND_DUE, _list, _write_sweep
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.ledger_balances import read_ids
from tests.support.ledger_model import LedgerModel
from tests.support.request_records import ROW
from tests.support.stores import open_archive
from tests.support.video_model import VideoModel
from tests.support.video_records import JOB, NOW, claim, end, make_delivery, make_job, mute

EVERYTHING = VideoFilter(newest_first=False)


@pytest.mark.parametrize("state", ["created", "processing"])
async def test_what_cannot_be_charged_has_not_ended_either(database: Database, state: Any) -> None:
    archive, job = open_archive(database), make_job(0, state=state)
    await archive.videos.create(job)
    async with database._writer.begin() as connection:  # type: ignore[attr-defined]
        await connection.run_sync(entries.drop)
    row = attrs.evolve(job.receipt, cost_nanos=1)
    change = (
        archive.videos.drop(job, row)
        if state == "created"
        else archive.videos.finish(end(job)[0], row, make_delivery(0))
    )
    with pytest.raises(StoreUnavailable):
        await change
    assert await archive.videos.find(job.id) == job
    assert await read_ids(archive.requests) == []


async def test_an_end_that_cannot_be_told_of_is_none(database: Database) -> None:
    archive, jobs = open_archive(database), [make_job(0), make_job(1)]
    for job in jobs:
        await archive.videos.create(job)
    assert await archive.videos.finish(*end(jobs[0]), make_delivery(0))
    with pytest.raises(IntegrityError):
        await archive.videos.finish(*end(jobs[1]), make_delivery(0))
    assert await archive.videos.find(jobs[1].id) == jobs[1]
    assert await read_ids(archive.requests) == ["req_0"]


async def test_a_batch_goes_on_whole_or_not_at_all(database: Database) -> None:
    archive, jobs = open_archive(database), [make_job(0), make_job(1)]
    for job in jobs:
        await archive.videos.create(job)
    broken: Any = None
    with pytest.raises(IntegrityError):
        await archive.videos.advance(
            [(jobs[0], jobs[0].report_progress(5, NOW)), (jobs[1], attrs.evolve(jobs[1], wire=broken))]
        )
    assert list(await archive.videos.list_videos(EVERYTHING, 10)) == jobs


async def test_a_receipt_of_another_version_is_read_as_far_as_it_goes(database: Database) -> None:
    archive = open_archive(database)
    await archive.videos.create(JOB)
    reported = {**attrs.asdict(ROW), "of_the_future": {"seconds": 8}}
    del reported["characters"]
    await database.change(update(videos).values(receipt=orjson.dumps(reported).decode()))
    found = await archive.videos.find(JOB.id)
    assert found is not None
    assert found.receipt == attrs.evolve(ROW, characters=0)


async def explain(database: Database, statement: Any) -> list[str]:
    """How SQLite goes about it; a list of channels has one."""
    query = str(statement.compile(dialect=database._reader.dialect)).replace("__[POSTCOMPILE_full]", "'up'")  # type: ignore[attr-defined]
    rows = await database.read(text("EXPLAIN QUERY PLAN " + query.replace("?", "1")))
    return [str(row[3]) for row in rows]  # type: ignore[misc]


@SQLITE_ONLY
@pytest.mark.parametrize("fetching", [False, True])
async def test_no_claim_looks_at_jobs_that_are_not_due(database: Database, *, fetching: bool) -> None:
    steps = [step for part in (_CLAIM_DUE, _FIND_DUE) for step in await explain(database, part[fetching])]
    assert [step for step in steps if " videos" in step] == [
        "SEARCH videos USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH videos USING INDEX videos_due (due_ms<?)",
        "SEARCH videos USING INDEX videos_due (due_ms<?)",
    ]


@SQLITE_ONLY
@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (VideoFilter(), "SCAN videos"),
        (VideoFilter(live=True), "SCAN videos USING INDEX videos_live"),
        (VideoFilter(state="processing"), "SCAN videos USING INDEX videos_live"),
        (VideoFilter(state="failed", newest_first=False), "SCAN videos USING INDEX videos_failed"),
        (VideoFilter(state="completed", account_id=3), "SEARCH videos USING INDEX videos_by_account (account_id=?)"),
        (VideoFilter(account_id=3), "SEARCH videos USING INDEX videos_by_account (account_id=?)"),
    ],
)
async def test_a_list_sorts_nothing_and_reads_the_prompts_of_what_it_lists_alone(
    database: Database, wanted: VideoFilter, index: str
) -> None:
    steps = await explain(database, _list(wanted).limit(10))
    assert steps == [index, "SEARCH video_prompts USING INDEX sqlite_autoindex_video_prompts_1 (video_id=?) LEFT-JOIN"]


@SQLITE_ONLY
async def test_what_has_long_been_over_is_known_without_looking_for_it(database: Database) -> None:
    assert await explain(database, _write_sweep(1, 1)) == [
        "SEARCH videos USING INTEGER PRIMARY KEY (rowid=?)",
        "LIST SUBQUERY 1",
        "SEARCH videos USING COVERING INDEX videos_over (over_ms<?)",
        "SEARCH video_prompts USING COVERING INDEX sqlite_autoindex_video_prompts_1 (video_id=?)",
    ]


@pytest.mark.parametrize("state", ["created", "failed"])
@pytest.mark.parametrize("way", ["drop", "remove", "sweep"])
async def test_a_prompt_goes_with_its_job_and_with_no_other(database: Database, way: str, state: VideoState) -> None:
    """And where a job may not be forgotten that way, it stays."""
    store = open_archive(database).videos
    job = make_job(0, state=state, completed_ms=NOW)
    for one in (job, make_job(1)):
        await store.create(one)
    if way == "drop":
        gone: object = await store.drop(job, job.receipt)
    else:
        gone = await (store.remove(job) if way == "remove" else store.sweep_ended(NOW + 1, 10))
    assert bool(gone) == ((way == "drop") == (state == "created"))
    prompts = {video_id for (video_id,) in await database.read(select(video_prompts.c.video_id))}
    assert prompts == {"video_1"} | (set() if gone else {"video_0"})


async def test_a_job_that_lost_its_prompt_is_still_a_job(database: Database) -> None:
    store = open_archive(database).videos
    await store.create(make_job(0))
    await database.change(delete(video_prompts))
    assert await store.find("video_0") == mute(make_job(0))
    assert list(await store.list_videos(EVERYTHING, 10)) == [mute(make_job(0))]


async def test_whoever_works_on_jobs_writes_little_however_long_their_prompts_are(database_path: Path) -> None:
    """Twenty jobs are claimed and go on in fewer bytes than two of their prompts have."""
    url, prompt = f"sqlite:///{database_path}", "p" * 50_000
    database = await open_database(url)
    for number in range(20):
        await open_archive(database).videos.create(make_job(number, prompt=prompt))
    await database.close()
    database = await open_database(url)  # what is written from now on is counted from nothing
    store = open_archive(database).videos
    taken = await store.claim_due(claim(most=20, each=20))
    assert (
        list(await store.advance([(job, job.report_progress(5, NOW).release(NOW + 1)) for job in taken])) == [True] * 20
    )
    written = Path(f"{database_path}-wal").stat().st_size
    await database.close()
    assert 0 < written < 2 * len(prompt)


_NUMBERS = st.integers(0, 5)
_TIMES = st.sampled_from([NOW - 9, NOW, NOW + 9])
_OWNERS = st.sampled_from(["", "a", "b"])
_JOBS = st.builds(
    lambda number, **values: make_job(number, account=1 + number % 2, **values),
    _NUMBERS,
    state=st.sampled_from(["created", "queued", "fetching", "failed"]),
    channel=st.sampled_from(["x", "y"]),
    owner=_OWNERS,
    due_ms=st.none() | _TIMES,
    completed_ms=st.none() | _TIMES,
    expires_ms=st.none() | _TIMES,
    lease_until_ms=st.sampled_from([0, NOW]),
)
_CLAIMS = st.builds(
    claim,
    st.sampled_from(["a", "b"]),
    _TIMES,
    most=_NUMBERS,
    each=st.integers(0, 2),
    fetching=st.booleans(),
    full_channels=st.frozensets(st.sampled_from(["x", "y"])),
)
_STEPS = st.one_of(
    st.tuples(st.just("create"), _JOBS),
    st.tuples(st.just("advance"), st.lists(st.tuples(_JOBS, _JOBS), max_size=3)),
    st.tuples(st.sampled_from(["finish", "drop", "remove"]), _JOBS),
    st.tuples(st.just("claim_due"), _CLAIMS),
    st.tuples(st.just("sweep_ended"), _TIMES),
    st.tuples(st.sampled_from(["release", "renew"]), _OWNERS),
)
_FILTERS = st.builds(
    VideoFilter,
    account_id=st.sampled_from([None, 1, 2]),
    after=st.none() | _NUMBERS.map("video_{}".format),
    newest_first=st.booleans(),
    live=st.booleans(),
    state=st.sampled_from([None, "queued", "completed", "failed"]),
)


async def tell(store: Any, log: Any, verb: str, body: Any) -> object:
    """What it returns; a job is made once, and ends at a cost of 7."""
    if verb == "create":
        known = await store.find(body.id) or body.receipt.id in await read_ids(log)
        return None if known else await store.create(body)
    if verb == "advance":
        return list(
            await store.advance([(old, attrs.evolve(new, id=old.id, receipt=old.receipt)) for old, new in body])
        )
    if verb in {"finish", "drop"}:
        row = attrs.evolve(body.receipt, cost_nanos=7)
        over = attrs.evolve(body, state="completed", cost_nanos=7, owner="", due_ms=None)
        return await (store.drop(body, row) if verb == "drop" else store.finish(over, row, None))
    answer = await getattr(store, verb)(body, *({"renew": [NOW + 1], "sweep_ended": [10]}.get(verb, [])))
    return list(answer) if verb == "claim_due" else answer


async def ask_all(store: Any, log: Any, wanted: VideoFilter) -> list[object]:
    """Everything that can be read."""
    return [
        list(await store.list_videos(wanted, 3)),
        list(await store.list_videos(EVERYTHING, 100)),
        list(await store.list_open()),
        await store.find_next_due(),
        list(await store.list_contradictions()),
        await read_ids(log),
    ]


async def empty(connection: AsyncConnection) -> None:
    for table in (videos, deliveries, requests, entries, usage_days):
        await connection.execute(delete(table))


@pytest.mark.timeout(400)  # a history that they disagree on is looked at again and again, until it is short
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    begun=st.lists(_JOBS, unique_by=lambda job: job.id, min_size=2), steps=st.lists(_STEPS, max_size=6), wanted=_FILTERS
)
async def test_every_history_comes_to_what_the_model_comes_to(
    database: Database, begun: list[VideoJob], steps: list[tuple[str, Any]], wanted: VideoFilter
) -> None:
    await database.write(empty)
    ledger, archive = LedgerModel(), open_archive(database)
    model = VideoModel(ledger)
    for verb, answer in [*(("create", job) for job in begun), *steps]:
        assert await tell(model, ledger, verb, answer) == await tell(archive.videos, archive.requests, verb, answer)
    assert await ask_all(model, ledger, wanted) == await ask_all(archive.videos, archive.requests, wanted)
