"""Keeps the reservation of each open job, and stores the job's end in one commit with its charge."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import attrs

from gateway.billing.balances import Balances
from gateway.billing.write_queue import WriteQueue
from gateway.domain.audit_log import AuditRow
from gateway.domain.balance import Reservation
from gateway.domain.request_log import RequestRecord, build_error
from gateway.domain.video import VideoJob
from gateway.domain.webhook import WebhookDelivery
from gateway.errors import RateLimited, StoreUnavailable
from gateway.storage.videos import VideoRepository

if TYPE_CHECKING:  # only if a user is forgotten
    from gateway.billing.forgotten_users import UserRenaming

T = TypeVar("T")

_RETRY_S = 0.1


class JobReservations:
    """The reservations of the open jobs of this process.

    Args:
        write_queue: the writer of charges. Jobs end under its lock: a reconciliation sees a job's money in one place
            only.
        keep_record: called with the stored record of every video request.
        clock: Unix seconds; ignores changes of the system clock.
        is_shared: whether other nodes have open jobs, too.
        wait_s: how long a request waits for a store that does not answer, in seconds.

    Attributes:
        renamings: the renamings of end users that were forgotten since the start; running jobs may still have their
            names.
    """

    def __init__(
        self,
        store: VideoRepository,
        balances: Balances,
        write_queue: WriteQueue,
        *,
        keep_record: Callable[[RequestRecord], object],
        clock: Callable[[], float],
        is_shared: bool = False,
        wait_s: float = 0.0,
    ) -> None:
        self.store = store
        self._balances = balances
        self._write_queue = write_queue
        self._keep_record = keep_record
        self.clock = clock
        self._is_shared = is_shared
        self.wait_s = wait_s
        self.renamings: list[UserRenaming] = []
        self._reservations: dict[str, Reservation] = {}
        self._open_counts: Counter[int] = Counter()
        self._last_open = 0

    def add(self, job: VideoJob, reservation: Reservation) -> None:
        """Keep the reservation of a new job until the job ends."""
        self._reservations[job.id] = reservation
        self._open_counts[job.account_id] += 1

    def restore(self, job: VideoJob) -> None:
        self.add(job, self._balances.restore(job.account_id, job.key_id, job.held_nanos, job.receipt))

    async def create(self, job: VideoJob, reservation: Reservation, max_jobs: int) -> None:
        """Store a new job, and keep its reservation until the job ends.

        In a cluster the stored job keeps the reservation. Raises ``RateLimited`` if the account has ``max_jobs`` open
        jobs, and ``StoreUnavailable``. After an error, ``release`` must be called.
        """
        if self.count_open(job.account_id) >= max_jobs:
            raise _make_limit_error(max_jobs)
        self.add(job, reservation)
        attempt_count = 0

        async def store() -> None:
            nonlocal attempt_count
            attempt_count += 1
            if (
                attempt_count > 1 and await self.store.find(job.id) is not None
            ):  # only the answer to the commit was lost
                if self._is_shared:  # the stored job has the reservation
                    self.release(job)
                return
            async with self._balances.hand_over(reservation):
                if not await self.store.create(job, max_jobs):
                    raise _make_limit_error(max_jobs)

        await self.repeat_until_answered(store)
        if reservation.charge is not None:
            self._remove(job)

    async def repeat_until_answered(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` and return its result; repeat it while the store does not answer, for ``wait_s`` at most.

        It is repeated only while new requests are taken. Raises ``StoreUnavailable``.
        """
        clock = asyncio.get_running_loop().time
        until_s = clock() + self.wait_s
        while True:
            try:
                return await work()
            except StoreUnavailable:
                if clock() >= until_s:
                    raise
            await asyncio.sleep(_RETRY_S)
            self._write_queue.check_room()

    async def drop(self, job: VideoJob, record: RequestRecord) -> None:
        """Delete a job that no provider has started, and release its reservation. Only the request's record remains."""
        await self.store.drop(job, record)
        self._keep_record(record)
        self.release(job)

    def _list_charges(self, record: RequestRecord, reservation: Reservation | None, settled_s: float) -> str:
        """Return what a job's cost counts for. Without a reservation here, the receipt names the subjects."""
        if reservation is not None:
            return reservation.list_charges(settled_s)
        if self._balances.limits is not None:
            return self._balances.limits.move_charges(record.limit_charges, record.account_id, settled_s)
        from gateway.domain.limit import move_charges  # noqa: PLC0415 - only if there were limits

        return move_charges(record.limit_charges, settled_s)

    async def finish(
        self, job: VideoJob, record: RequestRecord, delivery: WebhookDelivery | None, audit: AuditRow | None
    ) -> bool:
        """Store the end of a job with its charge; return False if the job had ended before, or is deleted."""
        async with self._write_queue.writing:  # a reconciliation sees end and charge, or neither
            for renaming in self.renamings:
                record, job = renaming.rename_row(record), attrs.evolve(job, receipt=renaming.rename_row(job.receipt))
            settled_s, reservation = record.settled_ms / 1000, self._reservations.get(job.id)
            if record.cost_nanos and (reservation is not None or record.limit_charges):
                record = attrs.evolve(record, limit_charges=self._list_charges(record, reservation, settled_s))
            is_finished = await self.store.finish(job, record, delivery, audit)
            if is_finished:
                self._settle(job, record.cost_nanos, settled_s)
            elif job.id in self._reservations:  # an earlier commit succeeded, but its answer was lost
                stored_job = await self.store.find(job.id)
                self._settle(
                    job, 0 if stored_job is None else build_end(stored_job, int(self.clock() * 1000)).cost_nanos
                )
        if is_finished:
            self._keep_record(record)
        return is_finished

    async def settle_ended_jobs(self, open_ids: Collection[str]) -> None:
        """Settle the jobs not in ``open_ids`` that have ended: the store's answer to their end was lost."""
        for video_id in self._reservations.keys() - set(open_ids):
            stored_job = await self.store.find(video_id)
            if stored_job is not None and stored_job.ended:  # a job that is being created is not stored yet
                self._settle(stored_job, build_end(stored_job, int(self.clock() * 1000)).cost_nanos)

    def release(self, job: VideoJob) -> None:
        reservation = self._remove(job)
        if reservation is not None:
            self._balances.release(reservation)

    def list_held(self) -> dict[str, int]:
        """Return the reservation of each open job, in nano-USD."""
        return {video_id: reservation.nanos for video_id, reservation in self._reservations.items()}

    def count_open(self, account_id: int) -> int:
        return self._open_counts[account_id]

    async def count_all_open(self) -> int:
        """Return the number of open jobs of all nodes; the last known number if the store does not answer."""
        if not self._is_shared:
            return self._open_counts.total()
        with suppress(StoreUnavailable):
            self._last_open = await self.store.count_open()
        return self._last_open

    def _settle(self, job: VideoJob, cost_nanos: int, settled_s: float | None = None) -> None:
        """Settle a reservation. Without ``settled_s`` (Unix seconds), the windows of the cost are unknown."""
        reservation = self._remove(job)
        if reservation is not None:
            self._balances.settle(reservation, cost_nanos, self.clock() if settled_s is None else settled_s)
            if settled_s is None:
                reservation.forget_windows()

    def _remove(self, job: VideoJob) -> Reservation | None:
        reservation = self._reservations.pop(job.id, None)
        if reservation is not None:
            self._open_counts[job.account_id] -= 1
            if not self._open_counts[job.account_id]:
                del self._open_counts[job.account_id]
        return reservation


def build_end(job: VideoJob, now_ms: int) -> RequestRecord:
    """Return the request log's record of an ended job, with its charge."""
    is_completed, receipt = job.state == "completed", job.receipt
    return attrs.evolve(
        receipt,
        settled_ms=now_ms,
        outcome=job.outcome or "failed",
        status=receipt.status if receipt.outcome != "interrupted" else 500,
        error_code=job.error_code or receipt.error_code,
        error=build_error(job.error_message) if job.error_message else receipt.error,
        channel=job.channel or receipt.channel,
        attempts=max(receipt.attempts, int(bool(job.channel))),
        cost_nanos=job.cost_nanos if is_completed else 0,
        duration_ms=int(job.seconds or 0) * 1000 if is_completed else 0,
        usage_source="upstream" if is_completed else "none",
        total_ms=max(0, now_ms - receipt.started_ms),
    )


def _make_limit_error(max_jobs: int) -> RateLimited:
    return RateLimited(f"The account has {max_jobs} videos under way already", retry_after_s=30)
