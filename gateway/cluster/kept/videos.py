"""Video jobs among the kept changes: their states, their ends with their charges, and their reservations.

A node that has lost 80 seconds brings thousands of jobs back, and serves nothing meanwhile: each step is one statement
for all jobs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from sqlalchemy import bindparam, insert, select, text, update

from gateway.cluster.credit.rows import build_arrays, build_key
from gateway.cluster.credit.unposted import list_charged_balances
from gateway.domain.credit import BalanceId
from gateway.domain.video import ENDED_STATES, TRANSITIONS, UNACCEPTED_STATES, VideoJob
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bulk import BulkInsert
from gateway.storage.database import Database
from gateway.storage.kept_videos import KeptVideo, parse_state
from gateway.storage.ledger_rows import find_stored_ids
from gateway.storage.row_mapping import build_delivery_row, build_progress, build_receipt, build_video_row
from gateway.storage.schema import deliveries, videos
from gateway.storage.videos import VideoRepository, post_ends

_STATE_ORDER = tuple(TRANSITIONS)
# Balances of accounts and keys exist; those of limits appear with their first reservation. Leases change the same rows
# at any time, so the rows are locked in the order of all writers.
_ADD_RESERVATIONS = text("""
WITH a AS (
  SELECT owner, owner_id, n.held
  FROM unnest(CAST(:owners AS smallint[]), CAST(:ids AS bigint[]), CAST(:held AS bigint[])) AS n(owner, owner_id, held)
  JOIN credit_balances b USING (owner, owner_id) WHERE owner < 2 ORDER BY owner, owner_id FOR UPDATE OF b)
UPDATE credit_balances b SET reserved = b.reserved + a.held FROM a WHERE b.owner = a.owner AND b.owner_id = a.owner_id
""")
_ADD_LIMIT_RESERVATIONS = text("""
INSERT INTO credit_balances AS b (owner, owner_id, period, start, reserved)
SELECT owner, owner_id, 0, 0, held
FROM unnest(CAST(:owners AS smallint[]), CAST(:ids AS bigint[]), CAST(:held AS bigint[])) AS n(owner, owner_id, held)
WHERE owner = 2 ORDER BY owner_id
ON CONFLICT (owner, owner_id) DO UPDATE SET reserved = b.reserved + excluded.reserved
""")
_PUT_PROMPTS = text("""
INSERT INTO video_prompts AS p (video_id, prompt)
SELECT * FROM unnest(CAST(:ids AS text[]), CAST(:prompts AS text[]))
ON CONFLICT (video_id) DO UPDATE SET prompt = excluded.prompt WHERE p.prompt = '' AND excluded.prompt <> ''
RETURNING p.video_id
""")
_UPDATE_JOB = update(videos).where(videos.c.id == bindparam("job_id"))


class _RestoringRepository(VideoRepository):
    """A repository that does not raise ``StoreUnavailable`` for a missing job while jobs are being restored."""

    def check_found(self, *, found: bool) -> None:
        pass


@attrs.define
class _Work:
    """What the database lacks of some jobs.

    Attributes:
        new_jobs: jobs to insert; some have ended.
        changed_jobs: stored jobs to bring to a later state.
        ends: the jobs that end, among the new and the changed ones.
        unchanged_jobs: stored jobs that may lack their prompts.
        removals: jobs that were deleted, or refused before a provider accepted them.
    """

    new_jobs: list[VideoJob] = attrs.Factory(list)
    changed_jobs: list[VideoJob] = attrs.Factory(list)
    ends: list[KeptVideo] = attrs.Factory(list)
    unchanged_jobs: list[VideoJob] = attrs.Factory(list)
    removals: list[KeptVideo] = attrs.Factory(list)

    def add(self, kept_video: KeptVideo, job: VideoJob, stored: tuple[str, int] | None) -> None:
        """Note what is to be done for a job.

        ``job`` is the job without its end. ``stored``: its stored state and time; None if it is not stored.
        """
        is_end = kept_video.row is not None and kept_video.job.ended
        if kept_video.removed or (kept_video.row is not None and not is_end):
            self.removals.append(kept_video)
        if is_end and (stored is None or stored[0] not in ENDED_STATES):
            self.ends.append(kept_video)
            (self.new_jobs if stored is None else self.changed_jobs).append(kept_video.job)
        elif stored is None:
            self.new_jobs.append(job)
        elif _measure_progress(job.state, job.updated_ms) > _measure_progress(*stored):
            self.changed_jobs.append(job)
        elif job.prompt:
            self.unchanged_jobs.append(job)


async def restore_videos(
    database: Database, connection: AsyncConnection, states: Sequence[Mapping[str, Any]], process: str
) -> int:
    """Bring jobs back as far as the database lacks them, in the transaction of ``connection``; return their number.

    ``database``: writes to the same transaction. If several nodes have worked on a job, its latest state counts. A job
    that an ended process was submitting gets no owner, and is later found to be abandoned.
    """
    work = await _plan(connection, list(map(parse_state, states)), process)
    if work.new_jobs:
        columns = tuple(build_video_row(work.new_jobs[0]))
        rows = [tuple(build_video_row(job).values()) for job in work.new_jobs]
        await BulkInsert(videos, columns).run(connection, rows)
        await _add_reservations(connection, work.new_jobs)
    if work.changed_jobs:
        values = [{"job_id": job.id, **build_progress(job), **build_receipt(job)} for job in work.changed_jobs]
        await connection.execute(_UPDATE_JOB, values)
    changed_jobs = [*work.new_jobs, *work.changed_jobs]
    await _put_prompts(connection, changed_jobs)
    changed_ids = {job.id for job in changed_jobs} | await _put_prompts(connection, work.unchanged_jobs)
    if work.ends:
        await post_ends(database, connection, [(end.job, end.row) for end in work.ends if end.row is not None])
    if delivery_rows := [build_delivery_row(end.delivery) for end in work.ends if end.delivery is not None]:
        await connection.execute(insert(deliveries), delivery_rows)
    repository = _RestoringRepository(database)
    for kept_video in work.removals:
        job, row = kept_video.job, kept_video.row
        if row is not None and not job.ended and await repository.drop(job, row):
            changed_ids.add(job.id)
        if kept_video.removed:
            await repository.remove(job)
    return len(changed_ids)


async def _plan(connection: AsyncConnection, kept_videos: Sequence[KeptVideo], process: str) -> _Work:
    ids = [kept_video.job.id for kept_video in kept_videos]
    query = select(videos.c.id, videos.c.state, videos.c.updated_ms).where(videos.c.id.in_(ids)).with_for_update()
    stored_states = {row.id: (row.state, row.updated_ms) for row in await connection.execute(query)}
    receipt_ids = [each.job.receipt.id for each in kept_videos if each.job.id not in stored_states]
    ended_ids = await find_stored_ids(connection, receipt_ids, ended_only=True)
    work = _Work()
    for kept_video in kept_videos:
        job = kept_video.job
        if job.id in stored_states or job.receipt.id not in ended_ids:  # otherwise it has ended, and was deleted since
            work.add(kept_video, _free_job(job, process), stored_states.get(job.id))
    return work


def _free_job(job: VideoJob, process: str) -> VideoJob:
    """Return the job as it was before its end, without an owner unless this process is submitting it."""
    if job.ended:
        job = attrs.evolve(job, state="processing", completed_ms=None)
    if job.state in UNACCEPTED_STATES and job.owner == process:
        return job
    return job.release(job.updated_ms)


def _measure_progress(state: str, updated_ms: int) -> tuple[int, int]:
    """Return a sort key that grows with each change of a job."""
    return _STATE_ORDER.index(state), updated_ms


async def _add_reservations(connection: AsyncConnection, jobs: Sequence[VideoJob]) -> None:
    sums: Counter[BalanceId] = Counter()
    for job in jobs:
        for balance in list_charged_balances(job.receipt):
            sums[balance] += job.held_nanos
    balances = sorted(sums, key=build_key)
    owners, ids = build_arrays(balances)
    values = {"owners": owners, "ids": ids, "held": [sums[balance] for balance in balances]}
    await connection.execute(_ADD_RESERVATIONS, values)
    if any(owner == "limit" for owner, _ in balances):
        await connection.execute(_ADD_LIMIT_RESERVATIONS, values)


async def _put_prompts(connection: AsyncConnection, jobs: Sequence[VideoJob]) -> set[str]:
    """Store the prompts of jobs that have none; return the ids of the jobs that were changed."""
    if not jobs:
        return set()
    values = {"ids": [job.id for job in jobs], "prompts": [job.prompt for job in jobs]}
    return set(await connection.scalars(_PUT_PROMPTS, values))
