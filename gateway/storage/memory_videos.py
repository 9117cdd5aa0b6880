"""Videos, deliveries and replays in memory. They ship, and keep the same contracts as the database's.

Nothing here waits for anything, so on the event loop each verb is as whole as a commit.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from gateway.domain.audit_log import AuditRow
from gateway.domain.idempotency import KEEP_MS, IdempotencyRecord
from gateway.domain.request_log import RequestFilter, RequestRecord
from gateway.domain.video import UNSENT, Claim, VideoFilter, VideoJob
from gateway.domain.webhook import WebhookDelivery
from gateway.storage.memory import MemoryStore


class MemoryDeliveryStore:
    """``domain.webhook.DeliveryStore`` in a dictionary, in the order in which deliveries came."""

    def __init__(self) -> None:
        self._deliveries: dict[str, WebhookDelivery] = {}

    def add(self, delivery: WebhookDelivery) -> None:
        """A job has ended that somebody wants to be told of."""
        self._deliveries[delivery.id] = delivery

    async def claim_deliveries(
        self, owner: str, now_ms: int, *, lease_ms: int, most: int, each: int
    ) -> Sequence[WebhookDelivery]:
        """Take on what is due longest, no more of each account than it may have in hands."""
        due = [(one.due_ms, one) for one in self._deliveries.values() if one.due_ms is not None]
        due = sorted((pair for pair in due if pair[0] <= now_ms), key=lambda pair: pair[0])
        places = Counter(one.account_id for _, one in due if one.lease_until_ms > now_ms)
        free: list[tuple[int, int, WebhookDelivery]] = []
        for due_ms, one in due:
            if one.lease_until_ms <= now_ms:
                places[one.account_id] += 1
                free.append((places[one.account_id], due_ms, one))
        chosen = sorted((triple for triple in free if triple[0] <= each), key=lambda triple: triple[0])[:most]
        chosen.sort(key=lambda triple: triple[1])
        taken = [attrs.evolve(one, owner=owner, lease_until_ms=now_ms + lease_ms) for *_, one in chosen]
        self._deliveries.update((one.id, one) for one in taken)
        return taken

    async def note_delivery(self, delivery: WebhookDelivery) -> None:
        """How an attempt ended. What is over stays so."""
        known = self._deliveries.get(delivery.id)
        if known is not None and known.status == "pending":
            self._deliveries[delivery.id] = delivery

    async def list_deliveries(
        self, *, video_id: str | None, limit: int, account_id: int | None = None
    ) -> Sequence[WebhookDelivery]:
        """The newest, the newest first."""
        newest_first = reversed(self._deliveries.values())
        found = [one for one in newest_first if video_id in {None, one.video_id}]
        return [one for one in found if account_id in {None, one.account_id}][:limit]

    async def find_next_delivery(self) -> int | None:
        """When the first is due."""
        return min((one.due_ms for one in self._deliveries.values() if one.due_ms is not None), default=None)

    async def free_deliveries(self, owner: str) -> int:
        """What every other process was at is free."""
        foreign = [one for one in self._deliveries.values() if one.due_ms is not None and one.owner not in {"", owner}]
        self._deliveries.update((one.id, attrs.evolve(one, owner="", lease_until_ms=0)) for one in foreign)
        return len(foreign)

    async def sweep_deliveries(self, before_ms: int) -> int:
        """Forget what has long been over."""
        over = [one.id for one in self._deliveries.values() if one.ended_ms is not None and one.ended_ms < before_ms]
        for delivery_id in over:
            del self._deliveries[delivery_id]
        return len(over)


class MemoryVideoStore:
    """``domain.video.VideoStore`` in a dictionary, in the order in which jobs were asked for.

    Args:
        books: where requests and their charges go.
        deliveries: where goes what is to be told.
    """

    def __init__(self, books: MemoryStore, deliveries: MemoryDeliveryStore) -> None:
        self._books = books
        self._deliveries = deliveries
        self._jobs: dict[str, VideoJob] = {}
        books.keeps = lambda request_id: any(job.receipt.id == request_id for job in self._jobs.values())

    async def create(self, job: VideoJob) -> None:
        """Put a job on record."""
        self._jobs[job.id] = job

    async def advance(self, changes: Iterable[tuple[VideoJob, VideoJob]]) -> Sequence[bool]:
        """Put jobs into their next condition; whether each was in the one before."""
        return [self._advance(before, after) for before, after in changes]

    async def finish(
        self, job: VideoJob, row: RequestRecord, delivery: WebhookDelivery | None, audit: AuditRow | None = None
    ) -> bool:
        """The end of a job, its request with its charge, and what is told of it; once."""
        known = self._jobs.get(job.id)
        if known is None or known.ended:
            return False
        self._jobs[job.id] = attrs.evolve(job, prompt=known.prompt)
        await self._books.post([row])
        if delivery is not None:
            self._deliveries.add(delivery)
        self._books.trail.note(audit)
        return True

    async def drop(self, job: VideoJob, row: RequestRecord) -> bool:
        """Forget a job that no provider took, and store its request."""
        known = self._jobs.get(job.id)
        if known is None or known.state not in UNSENT:
            return False
        del self._jobs[job.id]
        await self._books.post([row])
        return True

    async def claim_due(self, claim: Claim) -> Sequence[VideoJob]:
        """Take on what is due longest, no more of each channel than the claim says."""
        due = [(job.due_ms, job) for job in self._jobs.values() if job.due_ms is not None]
        due = [(due_ms, job) for due_ms, job in due if due_ms <= claim.now_ms and _may_take(claim, job)]
        due.sort(key=lambda pair: pair[0])
        places: Counter[str] = Counter()
        taken: list[VideoJob] = []
        for _, job in due:
            places[job.channel] += 1
            if places[job.channel] <= claim.each and len(taken) < claim.most:
                taken.append(attrs.evolve(job, owner=claim.owner, lease_until_ms=claim.now_ms + claim.lease_ms))
        self._jobs.update((job.id, job) for job in taken)
        return [attrs.evolve(job, prompt="") for job in taken]

    async def renew(self, owner: str, until_ms: int) -> int:
        """A process is alive: its jobs are its own until then."""
        mine = [job for job in self._jobs.values() if job.owner and job.owner == owner]
        self._jobs.update((job.id, attrs.evolve(job, lease_until_ms=until_ms)) for job in mine)
        return len(mine)

    async def release(self, owner: str, *, others: bool = False) -> int:
        """A process has ended: its jobs are free, or with ``others`` those of every other one."""
        going = [job for job in self._jobs.values() if job.owner and (job.owner == owner) != others]
        self._jobs.update((job.id, attrs.evolve(job, owner="", lease_until_ms=0)) for job in going)
        return len(going)

    async def find(self, video_id: str) -> VideoJob | None:
        """A job, or None."""
        return self._jobs.get(video_id)

    async def find_by_request(self, request_id: str) -> VideoJob | None:
        """The job that a call asked for, or None."""
        return next((job for job in self._jobs.values() if job.receipt.id == request_id), None)

    async def list_videos(self, wanted: VideoFilter, limit: int) -> Sequence[VideoJob]:
        """Jobs by the time when they were asked for."""
        found = [job for job in self._jobs.values() if wanted.account_id in {None, job.account_id}]
        if wanted.newest_first:
            found.reverse()
        if wanted.after is not None:
            ids = [job.id for job in found]
            found = found[ids.index(wanted.after) + 1 :] if wanted.after in ids else []
        found = [job for job in found if not (wanted.live and job.ended)]
        return [job for job in found if wanted.state in {None, job.state}][:limit]

    async def list_open(self) -> Sequence[VideoJob]:
        """Every job that has not ended."""
        return [attrs.evolve(job, prompt="") for job in self._jobs.values() if not job.ended]

    async def find_next_due(self) -> int | None:
        """When the first job is due."""
        return min((job.due_ms for job in self._jobs.values() if job.due_ms is not None), default=None)

    async def list_contradictions(self) -> Sequence[str]:
        """Ids of jobs that have ended otherwise than their requests say."""
        stored = await self._books.list_requests(RequestFilter(), sys.maxsize)
        costs = {item.row.id: item.row.cost_nanos for item in stored}
        ended = [job for job in self._jobs.values() if job.ended]
        return [job.id for job in ended if costs.get(job.receipt.id) != _find_cost(job)]

    async def remove(self, job: VideoJob) -> bool:
        """Forget a job that has ended."""
        known = self._jobs.get(job.id)
        if known is None or not known.ended:
            return False
        del self._jobs[job.id]
        return True

    async def sweep_ended(self, before_ms: int, most: int) -> int:
        """Forget jobs that have long been over."""
        over = [(job.over_ms, job.id) for job in self._jobs.values() if job.over_ms is not None]
        old = sorted((pair for pair in over if pair[0] < before_ms), key=lambda pair: pair[0])[:most]
        for _, video_id in old:
            del self._jobs[video_id]
        return len(old)

    def _advance(self, before: VideoJob, after: VideoJob) -> bool:
        known = self._jobs.get(before.id)
        if known is None or (known.state, known.owner) != (before.state, before.owner):
            return False
        self._jobs[before.id] = attrs.evolve(after, prompt=known.prompt)
        return True


class MemoryReplayStore:
    """``domain.replay.ReplayStore`` in a dictionary."""

    def __init__(self) -> None:
        self._replays: dict[tuple[int, str], IdempotencyRecord] = {}

    async def begin_replay(self, replay: IdempotencyRecord, expired_ms: int | None = None) -> IdempotencyRecord | None:
        """Put a call on record, or find the one that is under its name."""
        known = self._replays.get((replay.key_id, replay.name))
        expired_ms = replay.created_ms - KEEP_MS if expired_ms is None else expired_ms
        if known is not None and known.created_ms > expired_ms:
            return known
        self._put(replay)
        return None

    async def take_replay(self, before: IdempotencyRecord, after: IdempotencyRecord) -> bool:
        """Put another call in the place of one that is still as it was."""
        known = self._find(before)
        if known is None or known.state != before.state:
            return False
        self._put(after)
        return True

    async def end_replay(self, replay: IdempotencyRecord) -> None:
        """The call was answered."""
        if self._find(replay) is not None:
            self._put(replay)

    async def forget_replay(self, replay: IdempotencyRecord) -> None:
        """The call came to nothing."""
        if self._find(replay) is not None:
            del self._replays[replay.key_id, replay.name]

    async def interrupt_replays(self, owner: str) -> int:
        """Every call under way of another process is lost."""
        running = [one for one in self._replays.values() if one.state == "running" and one.owner != owner]
        for one in running:
            self._put(attrs.evolve(one, state="lost"))
        return len(running)

    async def sweep_replays(self, before_ms: int) -> int:
        """Forget what is too old."""
        old = [place for place, one in self._replays.items() if one.created_ms < before_ms]
        for place in old:
            del self._replays[place]
        return len(old)

    def _find(self, replay: IdempotencyRecord) -> IdempotencyRecord | None:
        """What is kept of that very call, not of another one under its name."""
        known = self._replays.get((replay.key_id, replay.name))
        return known if known is not None and known.request_id == replay.request_id else None

    def _put(self, replay: IdempotencyRecord) -> None:
        self._replays[replay.key_id, replay.name] = replay


def _may_take(claim: Claim, job: VideoJob) -> bool:
    """Whether a job that is due is one of those that are wanted, and nobody alive works on it."""
    return (
        job.lease_until_ms <= claim.now_ms
        and (job.state == "fetching") == claim.fetching
        and job.channel not in claim.full
    )


def _find_cost(job: VideoJob) -> int:
    return job.cost_nanos if job.state == "completed" else 0
