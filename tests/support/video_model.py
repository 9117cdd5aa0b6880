"""Jobs in plain Python: what every history of videos must come to."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from gateway.domain.request_log import RequestFilter, RequestRecord
from gateway.domain.video import UNACCEPTED_STATES, Claim, VideoFilter, VideoJob
from tests.support.ledger_model import LedgerModel


class VideoModel:
    """``VideoRepository`` as a dictionary, over the ledger that its requests go to."""

    def __init__(self, ledger: LedgerModel) -> None:
        self._books = ledger
        self._jobs: dict[str, VideoJob] = {}

    async def create(self, job: VideoJob) -> bool:
        self._jobs[job.id] = job
        return True

    async def advance(self, changes: Iterable[tuple[VideoJob, VideoJob]]) -> Sequence[bool]:
        return [self._advance(before, after) for before, after in changes]

    async def finish(self, job: VideoJob, row: RequestRecord, _delivery: None) -> bool:
        known = self._jobs.get(job.id)
        if known is None or known.ended:
            return False
        self._jobs[job.id] = attrs.evolve(job, prompt=known.prompt)
        await self._books.post([row])
        return True

    async def drop(self, job: VideoJob, row: RequestRecord) -> bool:
        known = self._jobs.get(job.id)
        if known is None or known.state not in UNACCEPTED_STATES:
            return False
        del self._jobs[job.id]
        await self._books.post([row])
        return True

    async def claim_due(self, claim: Claim) -> Sequence[VideoJob]:
        due = [(job.due_ms, job) for job in self._jobs.values() if job.due_ms is not None]
        due = [(due_ms, job) for due_ms, job in due if due_ms <= claim.now_ms and _may_take(claim, job)]
        due.sort(key=lambda pair: pair[0])
        places: Counter[str] = Counter()
        taken: list[VideoJob] = []
        for _, job in due:
            places[job.channel] += 1
            if places[job.channel] <= claim.max_per_channel and len(taken) < claim.max_jobs:
                taken.append(attrs.evolve(job, owner=claim.process, lease_until_ms=claim.now_ms + claim.duration_ms))
        self._jobs.update((job.id, job) for job in taken)
        return [attrs.evolve(job, prompt="") for job in taken]

    async def renew(self, owner: str, until_ms: int) -> int:
        mine = [job for job in self._jobs.values() if job.owner and job.owner == owner]
        self._jobs.update((job.id, attrs.evolve(job, lease_until_ms=until_ms)) for job in mine)
        return len(mine)

    async def release(self, owner: str, *, others: bool = False) -> int:
        going = [job for job in self._jobs.values() if job.owner and (job.owner == owner) != others]
        self._jobs.update((job.id, attrs.evolve(job, owner="", lease_until_ms=0)) for job in going)
        return len(going)

    async def find(self, video_id: str) -> VideoJob | None:
        return self._jobs.get(video_id)

    async def find_by_request(self, request_id: str) -> VideoJob | None:
        return next((job for job in self._jobs.values() if job.receipt.id == request_id), None)

    async def list_videos(self, wanted: VideoFilter, limit: int) -> Sequence[VideoJob]:
        found = [job for job in self._jobs.values() if wanted.account_id in {None, job.account_id}]
        if wanted.newest_first:
            found.reverse()
        if wanted.after is not None:
            ids = [job.id for job in found]
            found = found[ids.index(wanted.after) + 1 :] if wanted.after in ids else []
        found = [job for job in found if not (wanted.live and job.ended)]
        return [job for job in found if wanted.state in {None, job.state}][:limit]

    async def list_open(self) -> Sequence[VideoJob]:
        return [attrs.evolve(job, prompt="") for job in self._jobs.values() if not job.ended]

    async def find_next_due(self) -> int | None:
        return min((job.due_ms for job in self._jobs.values() if job.due_ms is not None), default=None)

    async def list_contradictions(self) -> Sequence[str]:
        stored = await self._books.list_requests(RequestFilter(), sys.maxsize)
        costs = {item.row.id: item.row.cost_nanos for item in stored}
        ended = [job for job in self._jobs.values() if job.ended]
        return [job.id for job in ended if costs.get(job.receipt.id) != _find_cost(job)]

    async def remove(self, job: VideoJob) -> bool:
        known = self._jobs.get(job.id)
        if known is None or not known.ended:
            return False
        del self._jobs[job.id]
        return True

    async def sweep_ended(self, before_ms: int, most: int) -> int:
        over = [(job.useless_from_ms, job.id) for job in self._jobs.values() if job.useless_from_ms is not None]
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


def _may_take(claim: Claim, job: VideoJob) -> bool:
    """Whether a job that is due is one of those that are wanted, and nobody alive works on it."""
    return (
        job.lease_until_ms <= claim.now_ms
        and (job.state == "fetching") == claim.fetching
        and job.channel not in claim.full_channels
    )


def _find_cost(job: VideoJob) -> int:
    return job.cost_nanos if job.state == "completed" else 0
