"""Videos in the database: a change of a job is committed together with its consequences."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, Delete, Select, Update, and_, bindparam, delete, func, insert, or_, select, update

from gateway.domain.audit_log import AuditRow
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import ENDED, UNSENT, Claim, VideoFilter, VideoJob
from gateway.domain.webhook import WebhookDelivery
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.audit_log import add_row
from gateway.storage.database import Database
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
from gateway.storage.schema import DUE, FAILED, LIVE, OWNED, deliveries, requests, video_prompts, videos

_LOOKED_UP = 500
"""Ids per statement, because databases limit the number of values in one."""
_ANY_NUMBER = 2**62
_COLUMNS = tuple(videos.c[name] for name in VIDEO_COLUMNS)
_DUE_PLACE = VIDEO_COLUMNS.index("due_ms")
_SHOWN = select(*_COLUMNS, func.coalesce(video_prompts.c.prompt, "")).outerjoin(video_prompts)
"""Jobs with their prompts."""
_HAS_ENDED = videos.c.state.in_(ENDED)
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
_CHANGE = update(videos).where(videos.c.id == bindparam("job_id"))
_END = _CHANGE.where(~_HAS_ENDED)
_STANDING = (
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
    """Claim the longest due jobs of each channel. The second ``is_due`` is for databases with several writers."""
    is_due = _is_due(fetching=fetching)
    by_age = (videos.c.due_ms, videos.c.sequence)
    place = func.row_number().over(partition_by=videos.c.channel, order_by=by_age)
    ranked = select(*by_age, place.label("place")).where(is_due).subquery()
    taken = (
        select(ranked.c.sequence)
        .where(ranked.c.place <= bindparam("each"))
        .order_by(ranked.c.due_ms, ranked.c.sequence)
        .limit(bindparam("most"))
    )
    claim = update(videos).where(videos.c.sequence.in_(taken), is_due)
    claim = claim.values(owner=bindparam("by"), lease_until_ms=bindparam("until_ms"))
    return claim.returning(*_COLUMNS, videos.c.sequence)


def _write_sweep(before_ms: int, most: int) -> Delete:
    old = select(videos.c.sequence).where(videos.c.over_ms < before_ms)
    old = old.order_by(videos.c.over_ms, videos.c.sequence).limit(most)
    return delete(videos).where(videos.c.sequence.in_(old))


_SOME = tuple(select(videos.c.sequence).where(_is_due(fetching=fetching)).limit(1) for fetching in (False, True))
_CLAIM = tuple(_write_claim(fetching=fetching) for fetching in (False, True))


class VideoRepository:
    """The tables of video jobs and their prompts. Every method raises ``StoreUnavailable``; then nothing is stored.

    Prompts may be long and no worker needs them. ``create`` writes them; only ``find``, ``find_by_request`` and
    ``list_videos`` return them. Elsewhere they are empty.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, job: VideoJob, most_open: int = _ANY_NUMBER) -> bool:
        """Store a job with its reservation. In a cluster, return False if its account has ``most_open`` jobs."""
        of_account = select(func.count()).where(videos.c.account_id == job.account_id, ~_HAS_ENDED)

        async def work(connection: AsyncConnection) -> bool:
            credit = self._database.credit
            if credit is not None and (await connection.execute(of_account)).scalar_one() >= most_open:
                return False
            await connection.execute(insert(videos), build_video_row(job))
            await connection.execute(insert(video_prompts), {"video_id": job.id, "prompt": job.prompt})
            if credit is not None:
                await credit.reserve_job(connection, job)
            return True

        created = await self._database.write(work)
        if created:
            self._keep(job)
        return created

    async def advance(self, changes: Iterable[tuple[VideoJob, VideoJob]]) -> Sequence[bool]:
        """Change the first job of each pair into the second, in one commit; return whether each was changed.

        A job is not changed if it is deleted, its state has changed, or another process works on it. Only ``finish``
        may end a job. The first job must have the stored receipt; the prompt does not change.
        """
        pairs = list(changes)
        if not pairs:
            return []
        advanced = await self._database.write(lambda connection: _advance(connection, pairs))
        self.check_found(found=all(advanced))
        for (before, after), done in zip(pairs, advanced, strict=True):
            if done and (before.state != after.state or before.upstream_id != after.upstream_id):
                self._keep(after)
        return advanced

    async def finish(
        self, job: VideoJob, row: RequestRecord, delivery: WebhookDelivery | None, audit: AuditRow | None = None
    ) -> bool:
        """Store the end of a job, its request with its charge, its webhook delivery and ``audit``, in one commit.

        Return False and store nothing if the job has already ended or is deleted. The job's owner does not matter: a
        job may be cancelled while a worker owns it.
        """

        async def work(connection: AsyncConnection) -> bool:
            values = {"job_id": job.id, **build_progress(job), **build_receipt(job)}
            ended = await connection.execute(_END, values)
            if not ended.rowcount:
                return False
            await self._post_end(connection, job, row)
            if delivery is not None:
                await connection.execute(insert(deliveries), build_delivery_row(delivery))
            await add_row(connection, audit)
            return True

        finished = await self._database.write(work)
        self.check_found(found=finished)
        if finished:
            self._keep(job, row, delivery)
        return finished

    async def drop(self, job: VideoJob, row: RequestRecord) -> bool:
        """Delete a job that no provider accepted, and store its request. Return False if it was submitted."""

        async def work(connection: AsyncConnection) -> bool:
            unsent = delete(videos).where(videos.c.id == job.id, videos.c.state.in_(UNSENT))
            if not (await connection.execute(unsent)).rowcount:
                return False
            await self._post_end(connection, job, row)
            return True

        dropped = await self._database.write(work)
        self.check_found(found=dropped)
        if dropped:
            self._keep(job, row)
        return dropped

    async def _post_end(self, connection: AsyncConnection, job: VideoJob, row: RequestRecord) -> None:
        """Store the request of a job. If the answer to ``create`` was lost, the request is stored as refused."""
        refused = await connection.execute(select(requests).where(requests.c.id == row.id))
        if rows := [parse_request(found).row for found in refused]:
            await reverse_rows(connection, rows)
        await post_rows(connection, [row])
        if self._database.credit is not None:
            await self._database.credit.finish_job(connection, job, row)

    async def claim_due(self, claim: Claim) -> Sequence[VideoJob]:
        """Claim due jobs on which no live process works, longest due first, without their prompts."""
        values: Values = {"now_ms": claim.now_ms, "full": sorted(claim.full)}
        some, take = _SOME[claim.fetching], _CLAIM[claim.fetching]
        if claim.only is not None:
            from gateway.storage.shared_claims import write_some_videos, write_video_claim  # noqa: PLC0415 - of a cluster

            values["only"] = sorted(claim.only)
            some, take = write_some_videos(fetching=claim.fetching), write_video_claim(fetching=claim.fetching)
        if not await self._database.read(some.params(values)):  # a read needs neither the writer nor a commit
            return []
        values |= {"each": claim.each, "most": claim.most}
        values |= {"by": claim.process, "until_ms": claim.now_ms + claim.duration_ms}

        async def work(connection: AsyncConnection) -> list[VideoJob]:
            rows = (await connection.execute(take, values)).all()
            return [parse_video(row[:-1]) for row in sorted(rows, key=lambda row: (row[_DUE_PLACE], row[-1]))]

        return await self._database.write(work)

    async def renew(self, process: str, until_ms: int) -> int:
        """Extend the claims of a live process until ``until_ms``; return how many jobs it has."""
        mine = update(videos).where(OWNED, videos.c.owner == process)
        return await self._database.change(mine.values(lease_until_ms=until_ms))

    async def release(self, process: str, *, others: bool = False) -> int:
        """Release the claims of an ended process, or of all ``others``; return their number."""
        whose = videos.c.owner != process if others else videos.c.owner == process
        return await self._database.change(update(videos).where(OWNED, whose).values(owner="", lease_until_ms=0))

    async def find(self, video_id: str) -> VideoJob | None:
        return await self._find(videos.c.id == video_id)

    async def find_by_request(self, request_id: str) -> VideoJob | None:
        return await self._find(videos.c.request_id == request_id)

    async def list_videos(self, wanted: VideoFilter, limit: int) -> Sequence[VideoJob]:
        rows = await self._database.read(_list(wanted).limit(limit))
        return [parse_video(row[:-1], row[-1]) for row in rows]

    async def list_open(self) -> Sequence[VideoJob]:
        statement = select(*_COLUMNS).where(LIVE).order_by(videos.c.sequence)
        return [parse_video(row) for row in await self._database.read(statement)]

    async def count_open(self) -> int:
        ((number,),) = await self._database.read(select(func.count()).select_from(videos).where(LIVE))
        return int(number)

    async def list_due_channels(self) -> Sequence[str]:
        return [channel for (channel,) in await self._database.read(select(videos.c.channel).where(DUE).distinct())]

    async def find_next_due(self, only: frozenset[str] | None = None) -> int | None:
        """Return when the next job (of the channels ``only``) is due, in Unix ms, claimed or not; None without one."""
        next_due = select(func.min(videos.c.due_ms)).where(DUE)
        if only is not None:
            next_due = next_due.where(videos.c.channel.in_(sorted(only)))
        ((due_ms,),) = await self._database.read(next_due)
        return None if due_ms is None else int(due_ms)

    async def list_contradictions(self) -> Sequence[str]:
        """Return the ids of ended jobs whose request is missing or has another cost (0 for a failed job)."""
        return [video_id for (video_id,) in await self._database.read_long(_CONTRADICTIONS)]

    async def remove(self, job: VideoJob) -> bool:
        """Delete a job that has ended; its request and charge stay. Return False if there is none."""
        removed = bool(await self._database.change(delete(videos).where(videos.c.id == job.id, _HAS_ENDED)))
        self.check_found(found=removed)
        if removed:
            self._keep(job, removed=True)
        return removed

    async def sweep_ended(self, before_ms: int, most: int) -> int:
        """Delete at most ``most`` jobs that ended before ``before_ms``, oldest first; return their number."""
        return await self._database.change(_write_sweep(before_ms, most))

    async def _find(self, condition: ColumnElement[bool]) -> VideoJob | None:
        rows = await self._database.read(_SHOWN.where(condition))
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


async def _advance(connection: AsyncConnection, pairs: Sequence[tuple[VideoJob, VideoJob]]) -> list[bool]:
    """Update jobs, after reading their states: drivers do not report the matched rows of each update in a batch."""
    known: dict[str, tuple[str, str]] = {}
    for first in range(0, len(pairs), _LOOKED_UP):
        ids = [before.id for before, _ in pairs[first : first + _LOOKED_UP]]
        known.update((row[0], (row[1], row[2])) for row in await connection.execute(_STANDING, {"ids": ids}))
    moves: dict[str, tuple[VideoJob, VideoJob]] = {}
    answers: list[bool] = []
    for before, after in pairs:
        found = known.get(before.id) == (before.state, before.owner)
        if found:
            known[before.id] = (after.state, after.owner)
            moves[before.id] = moves.get(before.id, (before, after))[0], after
        answers.append(found)
    changes: defaultdict[tuple[str, ...], list[Values]] = defaultdict(list)
    for before, after in moves.values():
        values = _write_change(before, after)
        changes[tuple(values)].append(values)
    for alike in changes.values():
        await connection.execute(_CHANGE, alike)
    return answers


def _write_change(before: VideoJob, after: VideoJob) -> Values:
    """Return only the columns that change, because writing a column also updates its indexes."""
    values = {"job_id": after.id, **build_progress(after)}
    if after.state == before.state:
        del values["state"]
    return values if after.receipt == before.receipt else values | build_receipt(after)


def _list(wanted: VideoFilter) -> Select[tuple[object, ...]]:
    statement: Select[tuple[object, ...]] = _SHOWN
    is_theirs = videos.c.account_id == wanted.account_id
    if wanted.account_id is not None:
        statement = statement.where(is_theirs)
    if wanted.live or wanted.state not in {None, *ENDED}:
        statement = statement.where(LIVE)
    if wanted.state is not None:
        statement = statement.where(FAILED if wanted.state == "failed" else videos.c.state == wanted.state)
    if wanted.after is not None:
        other = videos.alias()
        place = select(other.c.sequence).where(other.c.id == wanted.after)
        if wanted.account_id is not None:
            place = place.where(other.c.account_id == wanted.account_id)
        there = place.scalar_subquery()
        follows = videos.c.sequence < there if wanted.newest_first else videos.c.sequence > there
        statement = statement.where(follows)
    return statement.order_by(videos.c.sequence.desc() if wanted.newest_first else videos.c.sequence)
