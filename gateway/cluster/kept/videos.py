"""Video jobs among the kept changes: their state, their end with its charge, and their reservation."""

from collections.abc import Mapping
from typing import Any

import attrs
from sqlalchemy import insert, select, text, update

from gateway.cluster.credit.unposted import list_limit_balances
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import TRANSITIONS, UNACCEPTED_STATES, VideoJob
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.kept_videos import parse_state
from gateway.storage.row_mapping import build_progress, build_receipt, build_video_row
from gateway.storage.schema import requests, videos
from gateway.storage.videos import VideoRepository

_STATE_ORDER = tuple(TRANSITIONS)
_ADD_RESERVATION = text("""
UPDATE credit_balances SET reserved = reserved + :held
WHERE owner = 0 AND owner_id = :account_id OR owner = 1 AND owner_id = :key_id
""")
_ADD_LIMIT_RESERVATIONS = text("""
INSERT INTO credit_balances AS b (owner, owner_id, period, start, reserved)
SELECT 2, id, 0, 0, :held FROM unnest(CAST(:ids AS bigint[])) AS a(id) ORDER BY id
ON CONFLICT (owner, owner_id) DO UPDATE SET reserved = b.reserved + excluded.reserved
""")
_PUT_PROMPT = text("""
INSERT INTO video_prompts AS p (video_id, prompt) VALUES (:video_id, :prompt)
ON CONFLICT (video_id) DO UPDATE SET prompt = excluded.prompt WHERE p.prompt = ''
""")


class _RestoringRepository(VideoRepository):
    """A repository for which a job that is not found does not exist, although other jobs are still being restored."""

    def check_found(self, *, found: bool) -> None:
        pass


async def restore_video(database: Database, state: Mapping[str, Any], process: str) -> bool:
    """Bring a job back as far as the database lacks it. Raises ``StoreUnavailable``.

    Of several nodes that have worked on a job, the one that knows its latest state counts. A job that an ended process
    was submitting gets no owner, and is later found to be abandoned.
    """
    kept_state = parse_state(state)
    job, row, repository = kept_state.job, kept_state.row, _RestoringRepository(database)
    is_changed = await database.write(lambda connection: _put(connection, _free_job(job, process)))
    if row is not None and not job.ended:
        is_changed = await repository.drop(job, row) or is_changed
    elif row is not None:
        is_changed = await repository.finish(job, row, kept_state.delivery) or is_changed
    if kept_state.removed:
        await repository.remove(job)
    return is_changed


def _free_job(job: VideoJob, process: str) -> VideoJob:
    """Return the job as it was before its end, without an owner unless this process is submitting it."""
    if job.ended:
        job = attrs.evolve(job, state="processing", completed_ms=None)
    if job.state in UNACCEPTED_STATES and job.owner == process:
        return job
    return job.release(job.updated_ms)


async def _put(connection: AsyncConnection, job: VideoJob) -> bool:
    """Insert a job, or advance it to a later state. Return whether it was changed."""
    state_query = select(videos.c.state, videos.c.updated_ms).where(videos.c.id == job.id).with_for_update()
    stored_row = (await connection.execute(state_query)).first()
    if stored_row is None:
        if await _has_ended(connection, job.receipt):
            return False
        await connection.execute(insert(videos), build_video_row(job))
        reservation = {"held": job.held_nanos, "account_id": job.account_id, "key_id": job.key_id}
        await connection.execute(_ADD_RESERVATION, reservation)
        if limit_balances := list_limit_balances(job.receipt.limit_charges):
            ids = [number for _, number in limit_balances]
            await connection.execute(_ADD_LIMIT_RESERVATIONS, {"held": job.held_nanos, "ids": ids})
    elif (_STATE_ORDER.index(job.state), job.updated_ms) > (
        _STATE_ORDER.index(stored_row.state),
        stored_row.updated_ms,
    ):
        values = {**build_progress(job), **build_receipt(job)}
        await connection.execute(update(videos).where(videos.c.id == job.id).values(values))
    elif not job.prompt:
        return False
    else:
        return bool((await connection.execute(_PUT_PROMPT, {"video_id": job.id, "prompt": job.prompt})).rowcount)
    await connection.execute(_PUT_PROMPT, {"video_id": job.id, "prompt": job.prompt})
    return True


async def _has_ended(connection: AsyncConnection, receipt: RequestRecord) -> bool:
    """Return whether the request of a job is stored: the job has ended, and was deleted since."""
    query = select(requests.c.id).where(requests.c.id == receipt.id, requests.c.outcome != "interrupted")
    return (await connection.execute(query)).first() is not None
