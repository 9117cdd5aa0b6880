"""Videos in the database: a change of a job is committed together with its consequences."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, Delete, Select, Update, and_, bindparam, delete, func, insert, or_, select, update

from gateway.domain.audit_log import AuditRow
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import ENDED_STATES, UNACCEPTED_STATES, Claim, VideoFilter, VideoJob
from gateway.domain.webhook import WebhookDelivery
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.audit_log import add_row
from gateway.storage.database import Database
from gateway.storage.dialect import contain_text
from gateway.storage.ledger_rows import post_rows, reverse_rows
from gateway.storage.row_mapping import (
    VIDEO_COLUMNS,
    Values,
    build_delivery_row,
    build_progress,
    build_receipt,
    build_video_row,
    parse_request,
    parse_video,
)
from gateway.storage.schema import (
    HAS_DUE_TIME,
    HAS_FAILED,
    HAS_OWNER,
    IS_LIVE,
    deliveries,
    requests,
    video_prompts,
    videos,
)

_IDS_PER_QUERY = 500
"""Ids per statement, because databases limit the number of values in one."""
_UNLIMITED = 2**62
_COLUMNS = tuple(videos.c[name] for name in VIDEO_COLUMNS)
_DUE_INDEX = VIDEO_COLUMNS.index("due_ms")
_WITH_PROMPT = select(*_COLUMNS, func.coalesce(video_prompts.c.prompt, "")).outerjoin(video_prompts)
"""Jobs with their prompts."""
_HAS_ENDED = videos.c.state.in_(ENDED_STATES)
_CONTRADICTIONS = (
    select(videos.c.id)
    .outerjoin(requests, requests.c.id == videos.c.request_id)
    .where(
        _HAS_ENDED,
        or_(
            requests.c.id.is_(None),
            and_(videos.c.state == "completed", requests.c.cost_nanos != videos.c.cost_nanos),
            and_(videos.c.state != "completed", requests.c.cost_nanos != 0),
        ),
    )
    .order_by(videos.c.sequence)
)
_UPDATE_JOB = update(videos).where(videos.c.id == bindparam("job_id"))
_END_JOB = _UPDATE_JOB.where(~_HAS_ENDED)
_LOCK_STATES = (
    select(videos.c.id, videos.c.state, videos.c.owner)
    .where(videos.c.id.in_(bindparam("ids", expanding=True)))
    .with_for_update()
)
"""The states of jobs, locked until the commit: SQLite has one writer, and PostgreSQL locks the rows."""


def _is_due(*, fetching: bool) -> ColumnElement[bool]:
    """Return the condition under which a ``Claim`` may claim a job."""
    return and_(
        videos.c.due_ms <= bindparam("now_ms"),
        videos.c.lease_until_ms <= bindparam("now_ms"),
        videos.c.state == "fetching" if fetching else videos.c.state != "fetching",
        videos.c.channel.not_in(bindparam("full", expanding=True)),
    )


def _write_claim(*, fetching: bool) -> Update:
    """Return the statement that claims the longest due jobs of each channel.

    The second ``is_due`` is for databases with several writers.
    """
    is_due = _is_due(fetching=fetching)
    by_age = (videos.c.due_ms, videos.c.sequence)
    rank = func.row_number().over(partition_by=videos.c.channel, order_by=by_age)
    ranked_jobs = select(*by_age, rank.label("place")).where(is_due).subquery()
    query = (
        select(ranked_jobs.c.sequence)
        .where(ranked_jobs.c.place <= bindparam("each"))
        .order_by(ranked_jobs.c.due_ms, ranked_jobs.c.sequence)
        .limit(bindparam("most"))
    )
    claim = update(videos).where(videos.c.sequence.in_(query), is_due)
    claim = claim.values(owner=bindparam("by"), lease_until_ms=bindparam("until_ms"))
    return claim.returning(*_COLUMNS, videos.c.sequence)


def _write_sweep(before_ms: int, max_rows: int) -> Delete:
    old_videos = select(videos.c.sequence).where(videos.c.over_ms < before_ms)
    old_videos = old_videos.order_by(videos.c.over_ms, videos.c.sequence).limit(max_rows)
    return delete(videos).where(videos.c.sequence.in_(old_videos))


_FIND_DUE = tuple(select(videos.c.sequence).where(_is_due(fetching=fetching)).limit(1) for fetching in (False, True))
_CLAIM_DUE = tuple(_write_claim(fetching=fetching) for fetching in (False, True))


class VideoRepository:
    """The tables of video jobs and their prompts.

    Prompts may be long and no worker needs them. ``create`` writes them; only ``find``, ``find_by_request`` and
    ``list_videos`` return them. Elsewhere they are empty.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, job: VideoJob, max_open: int = _UNLIMITED) -> bool:
        """Store a job with its reservation.

        In a cluster, store nothing and return False if its account has ``max_open`` open jobs already.
        """
        count_query = select(func.count()).where(videos.c.account_id == job.account_id, ~_HAS_ENDED)

        async def work(connection: AsyncConnection) -> bool:
            credit = self._database.credit
            if credit is not None and (await connection.execute(count_query)).scalar_one() >= max_open:
                return False
            await connection.execute(insert(videos), build_video_row(job))
            await connection.execute(insert(video_prompts), {"video_id": job.id, "prompt": job.prompt})
            if credit is not None:
                await credit.reserve_job(connection, job)
            return True

        is_created = await self._database.write(work)
        if is_created:
            self._keep(job)
        return is_created

    async def advance(self, changes: Iterable[tuple[VideoJob, VideoJob]]) -> Sequence[bool]:
        """Change the first job of each pair into the second, in one commit; return whether each was changed.

        A job is not changed if it is deleted, its state has changed, or another process works on it. Only ``finish``
        may end a job. The first job must have the stored receipt; the prompt does not change.
        """
        pairs = list(changes)
        if not pairs:
            return []
        change_results = await self._database.write(lambda connection: _advance(connection, pairs))
        self.check_found(found=all(change_results))
        for (job_before, job_after), is_done in zip(pairs, change_results, strict=True):
            if is_done and (job_before.state != job_after.state or job_before.upstream_id != job_after.upstream_id):
                self._keep(job_after)
        return change_results

    async def finish(
        self, job: VideoJob, row: RequestRecord, delivery: WebhookDelivery | None, audit: AuditRow | None = None
    ) -> bool:
        """Store the end of a job, its request with its charge, its webhook delivery and ``audit``, in one commit.

        Return False and store nothing if the job has already ended or is deleted. The job's owner does not matter: a
        job may be cancelled while a worker owns it.
        """

        async def work(connection: AsyncConnection) -> bool:
            values = {"job_id": job.id, **build_progress(job), **build_receipt(job)}
            result = await connection.execute(_END_JOB, values)
            if not result.rowcount:
                return False
            await post_ends(self._database, connection, [(job, row)])
            if delivery is not None:
                await connection.execute(insert(deliveries), build_delivery_row(delivery))
            await add_row(connection, audit)
            return True

        is_finished = await self._database.write(work)
        self.check_found(found=is_finished)
        if is_finished:
            self._keep(job, row, delivery)
        return is_finished

    async def drop(self, job: VideoJob, row: RequestRecord) -> bool:
        """Delete a job that no provider accepted, and store its request.

        Return False if a provider has accepted the job, or it is gone.
        """

        async def work(connection: AsyncConnection) -> bool:
            delete_unsent = delete(videos).where(videos.c.id == job.id, videos.c.state.in_(UNACCEPTED_STATES))
            if not (await connection.execute(delete_unsent)).rowcount:
                return False
            await post_ends(self._database, connection, [(job, row)])
            return True

        is_dropped = await self._database.write(work)
        self.check_found(found=is_dropped)
        if is_dropped:
            self._keep(job, row)
        return is_dropped

    async def claim_due(self, claim: Claim) -> Sequence[VideoJob]:
        """Claim due jobs on which no live process works; return them, longest due first, without their prompts.

        Raises ``StoreUnavailable`` also while a replaced database may lack the last states of jobs.
        """
        values: Values = {"now_ms": claim.now_ms, "full": sorted(claim.full_channels)}
        due_query, claim_query = _FIND_DUE[claim.fetching], _CLAIM_DUE[claim.fetching]
        if claim.channels is not None:
            from gateway.storage.shared_claims import write_claimable_video_query, write_video_claim  # noqa: PLC0415 - of a cluster

            values["only"] = sorted(claim.channels)
            due_query, claim_query = (
                write_claimable_video_query(fetching=claim.fetching),
                write_video_claim(fetching=claim.fetching),
            )
        if not await self._database.read(due_query.params(values)):  # a read needs neither the writer nor a commit
            return []
        values |= {"each": claim.max_per_channel, "most": claim.max_jobs}
        values |= {"by": claim.process, "until_ms": claim.now_ms + claim.duration_ms}

        async def work(connection: AsyncConnection) -> list[VideoJob]:
            rows = (await connection.execute(claim_query, values)).all()
            # A replaced database may say of a job that another node has finished that its submission was interrupted.
            self.check_found(found=False)
            return [parse_video(row[:-1]) for row in sorted(rows, key=lambda row: (row[_DUE_INDEX], row[-1]))]

        return await self._database.write(work)

    async def renew(self, process: str, until_ms: int) -> int:
        """Extend the claims of a live process until ``until_ms``; return how many jobs it has."""
        query = update(videos).where(HAS_OWNER, videos.c.owner == process)
        return await self._database.change(query.values(lease_until_ms=until_ms))

    async def release(self, process: str, *, others_only: bool = False) -> int:
        """Release the claims of ``process``, which has ended; return their number.

        With ``others_only``, release instead those of all other processes.
        """
        is_of_process = videos.c.owner != process if others_only else videos.c.owner == process
        return await self._database.change(
            update(videos).where(HAS_OWNER, is_of_process).values(owner="", lease_until_ms=0)
        )

    async def find(self, video_id: str) -> VideoJob | None:
        return await self._find(videos.c.id == video_id)

    async def find_by_request(self, request_id: str) -> VideoJob | None:
        return await self._find(videos.c.request_id == request_id)

    async def list_videos(self, video_filter: VideoFilter, limit: int) -> Sequence[VideoJob]:
        rows = await self._database.read(_list(video_filter).limit(limit))
        return [parse_video(row[:-1], row[-1]) for row in rows]

    async def list_open(self) -> Sequence[VideoJob]:
        statement = select(*_COLUMNS).where(IS_LIVE).order_by(videos.c.sequence)
        return [parse_video(row) for row in await self._database.read(statement)]

    async def count_open(self) -> int:
        ((number,),) = await self._database.read(select(func.count()).select_from(videos).where(IS_LIVE))
        return int(number)

    async def list_due_channels(self) -> Sequence[str]:
        return [
            channel for (channel,) in await self._database.read(select(videos.c.channel).where(HAS_DUE_TIME).distinct())
        ]

    async def find_next_due(self, channels: frozenset[str] | None = None) -> int | None:
        """Return when the next job of ``channels`` (None: of all) is due, in Unix ms; None without one."""
        query = select(func.min(videos.c.due_ms)).where(HAS_DUE_TIME)
        if channels is not None:
            query = query.where(videos.c.channel.in_(sorted(channels)))
        ((due_ms,),) = await self._database.read(query)
        return None if due_ms is None else int(due_ms)

    async def list_contradictions(self) -> Sequence[str]:
        """Return the ids of ended jobs whose request is missing or has another cost (0 for a failed job)."""
        return [video_id for (video_id,) in await self._database.read_long(_CONTRADICTIONS)]

    async def remove(self, job: VideoJob) -> bool:
        """Delete a job that has ended; its request and charge stay. Return False if there is none."""
        is_removed = bool(await self._database.change(delete(videos).where(videos.c.id == job.id, _HAS_ENDED)))
        self.check_found(found=is_removed)
        if is_removed:
            self._keep(job, removed=True)
        return is_removed

    async def sweep_ended(self, before_ms: int, max_rows: int) -> int:
        """Delete at most ``max_rows`` jobs, oldest first; return their number.

        Those are deleted that failed, or whose video expired, before ``before_ms`` (Unix milliseconds).
        """
        return await self._database.change(_write_sweep(before_ms, max_rows))

    async def _find(self, condition: ColumnElement[bool]) -> VideoJob | None:
        rows = await self._database.read(_WITH_PROMPT.where(condition))
        self.check_found(found=bool(rows))
        return parse_video(rows[0][:-1], rows[0][-1]) if rows else None

    def check_found(self, *, found: bool) -> None:
        """Raise ``StoreUnavailable`` if a job may be missing only because the database was replaced."""
        self._database.check_found(found=found)

    def _keep(
        self,
        job: VideoJob,
        row: RequestRecord | None = None,
        delivery: WebhookDelivery | None = None,
        *,
        removed: bool = False,
    ) -> None:
        if self._database.kept is not None:
            from gateway.storage.kept_videos import KeptVideo, build_state  # noqa: PLC0415 - only in a cluster

            self._database.kept.keep("video", job.id, build_state(KeptVideo(job, row, delivery, removed=removed)))


async def post_ends(
    database: Database, connection: AsyncConnection, ends: Sequence[tuple[VideoJob, RequestRecord]]
) -> None:
    """Store the requests of jobs with their charges, and release the reservations of the jobs.

    A row that is stored already is replaced: while it is not known whether the provider has begun a job, the request
    may have been stored as refused.
    """
    rows = [row for _, row in ends]
    stored_rows = await connection.execute(select(requests).where(requests.c.id.in_([row.id for row in rows])))
    if former_rows := [parse_request(stored_row).row for stored_row in stored_rows]:
        await reverse_rows(connection, former_rows, database.subjects)
    await post_rows(connection, rows, database.subjects)
    if database.credit is not None:
        await database.credit.finish_jobs(connection, ends)


async def _advance(connection: AsyncConnection, pairs: Sequence[tuple[VideoJob, VideoJob]]) -> list[bool]:
    """Update the jobs whose states have not changed; return for each pair whether its job was updated.

    The states are read first, because drivers do not report the matched rows of each update in a batch.
    """
    stored_states: dict[str, tuple[str, str]] = {}
    for start in range(0, len(pairs), _IDS_PER_QUERY):
        ids = [job_before.id for job_before, _ in pairs[start : start + _IDS_PER_QUERY]]
        stored_states.update((row[0], (row[1], row[2])) for row in await connection.execute(_LOCK_STATES, {"ids": ids}))
    changed_jobs: dict[str, tuple[VideoJob, VideoJob]] = {}
    is_changed: list[bool] = []
    for job_before, job_after in pairs:
        is_current = stored_states.get(job_before.id) == (job_before.state, job_before.owner)
        if is_current:
            stored_states[job_before.id] = (job_after.state, job_after.owner)
            changed_jobs[job_before.id] = changed_jobs.get(job_before.id, (job_before, job_after))[0], job_after
        is_changed.append(is_current)
    changes: defaultdict[tuple[str, ...], list[Values]] = defaultdict(list)
    for job_before, job_after in changed_jobs.values():
        values = _write_change(job_before, job_after)
        changes[tuple(values)].append(values)
    for values_list in changes.values():
        await connection.execute(_UPDATE_JOB, values_list)
    return is_changed


def _write_change(job_before: VideoJob, job_after: VideoJob) -> Values:
    """Return the columns to write; the state and the receipt only if they change.

    Writing a column also updates its indexes.
    """
    values = {"job_id": job_after.id, **build_progress(job_after)}
    if job_after.state == job_before.state:
        del values["state"]
    return values if job_after.receipt == job_before.receipt else values | build_receipt(job_after)


def _list(video_filter: VideoFilter) -> Select[tuple[object, ...]]:
    statement: Select[tuple[object, ...]] = _WITH_PROMPT
    is_of_account = videos.c.account_id == video_filter.account_id
    if video_filter.account_id is not None:
        statement = statement.where(is_of_account)
    if video_filter.live or video_filter.state not in {None, *ENDED_STATES}:
        statement = statement.where(IS_LIVE)
    if video_filter.state is not None:
        statement = statement.where(
            HAS_FAILED if video_filter.state == "failed" else videos.c.state == video_filter.state
        )
    if video_filter.search:
        statement = statement.where(contain_text(video_filter.search, videos.c.id, videos.c.model))
    if video_filter.after is not None:
        other_videos = videos.alias()
        cursor = select(other_videos.c.sequence).where(other_videos.c.id == video_filter.after)
        if video_filter.account_id is not None:
            cursor = cursor.where(other_videos.c.account_id == video_filter.account_id)
        cursor_sequence = cursor.scalar_subquery()
        is_following = (
            videos.c.sequence < cursor_sequence if video_filter.newest_first else videos.c.sequence > cursor_sequence
        )
        statement = statement.where(is_following)
    return statement.order_by(videos.c.sequence.desc() if video_filter.newest_first else videos.c.sequence)
