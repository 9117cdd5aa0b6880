"""Reconciliation: reports where balances, reservations, jobs, ledger entries and requests do not agree."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

from gateway.billing.balances import Balances
from gateway.billing.write_queue import WriteQueue
from gateway.domain.balance import DAY_S, Balance, Owner, UtcDay
from gateway.domain.ledger import ClusterAudit, KeyTotals, Spending, SubjectTotals, describe_overrun
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import VideoJob
from gateway.storage.ledger import LedgerRepository
from gateway.storage.videos import VideoRepository

if TYPE_CHECKING:  # only if an account has a time zone
    from gateway.domain.account_zone import AccountZone

Sums = tuple[int, int, int, int, int, int]
BalanceId = tuple[Owner, int]
NO_SUMS: Sums = (0, 0, 0, 0, 0, 0)
MAX_CHECKS = 20
CHECK_PAUSE_S = 0.05
_SUM_NAMES = ("spent", "credited", "spent this month", "credited this month", "spent today", "credited today")
_OWNERS: tuple[Owner, ...] = ("account", "key")


class Jobs(Protocol):
    """Durable jobs, whose reservations outlive the request that created them."""

    @property
    def store(self) -> VideoRepository: ...

    def list_held(self) -> Mapping[str, int]:
        """Return the reservation in memory of each job that has not ended, in nano-USD."""
        ...


async def reconcile(
    balances: Balances, ledger: LedgerRepository, queue: WriteQueue, jobs: Jobs | None
) -> dict[str, Any]:
    """Return a report on whether balances, reservations, jobs, ledger entries and requests agree.

    The gateway may serve requests meanwhile. ``queue.writing`` must be held and credits prevented, so no entry is on
    its way to the ledger. ``open_holds`` counts requests in progress, ``video_holds`` counts jobs; ``held_usd`` is the
    total of both.
    """
    # All copies must be of the same moment, so nothing awaits until they are made.
    day, recount = balances.today, balances.make_empty()
    memory_sums = copy_sums(balances, day)
    problems, overruns = _check_balances(balances, day), _list_overruns(balances, day)
    open_holds, pending_rows = len(balances.reservations), queue.list_rows()
    held_nanos = sum(balance.held_nanos for _, balance in balances.list_balances("account"))
    held_by_job = {} if jobs is None else dict(jobs.list_held())
    if jobs is not None:
        problems += await _check_jobs(jobs, balances)
    ledger_sums = await recompute_sums(ledger, pending_rows, day, recount)
    problems += _compare_sums(
        *(
            {balance_id: balance_sums for balance_id, balance_sums in sums.items() if not balances.is_gone(*balance_id)}
            for sums in (memory_sums, ledger_sums)
        )
    )
    totals = await ledger.list_totals()
    problems += _compare_totals(totals)
    problems += compare_subjects(await ledger.list_subject_totals())
    return {
        **_build_report(problems, overruns, totals),
        "purses": len(memory_sums),
        "open_holds": open_holds - len(held_by_job),
        "video_holds": len(held_by_job),
        "held_usd": held_nanos / NANOS_PER_USD,
        "video_held_usd": sum(held_by_job.values()) / NANOS_PER_USD,
        "waiting_rows": len(pending_rows),
    }


async def reconcile_node(
    balances: Balances, queue: WriteQueue, jobs: Jobs | None, audit: ClusterAudit, problems: Sequence[str]
) -> dict[str, Any]:
    """Return the report of a cluster node. ``open_holds`` and ``waiting_rows`` count only this node's."""
    all_problems = [*audit.problems, *problems, *_check_reservations(balances), *_compare_totals(audit.totals)]
    all_problems += compare_subjects(audit.subject_totals)
    all_problems += [] if jobs is None else await _list_contradictions(jobs)
    held_nanos = sum(balance.held_nanos for _, balance in balances.list_balances("account"))
    return {
        **_build_report(all_problems, audit.overruns, audit.totals),
        "purses": len(audit.totals),
        "open_holds": len(balances.reservations),
        "video_holds": audit.jobs,
        "held_usd": (held_nanos + audit.held_nanos) / NANOS_PER_USD,
        "video_held_usd": audit.held_nanos / NANOS_PER_USD,
        "waiting_rows": len(queue.list_rows()),
    }


def _build_report(problems: Sequence[str], overruns: Sequence[str], totals: Sequence[KeyTotals]) -> dict[str, Any]:
    return {
        "ok": not problems,
        "problems": problems,
        "overruns": overruns,
        "charged_usd": sum(total.entries_nanos for total in totals) / NANOS_PER_USD,
        "charged_nanos": sum(total.entries_nanos for total in totals),
    }


def _compare_totals(totals: Iterable[KeyTotals]) -> list[str]:
    return [
        f"key {total.key_id}: {total.entries_nanos} charged in entries, {total.usage_nanos} in the sums "
        f"of its days, {total.requests_nanos} in its requests (nano-USD)"
        for total in totals
        if not total.entries_nanos == total.usage_nanos == total.requests_nanos
    ]


def compare_subjects(totals: Iterable[SubjectTotals]) -> list[str]:
    """Return a problem for each key and day whose users and unattributed requests do not sum up to its charges."""
    return [
        f"key {total.key_id}: {total.users_nanos} in the sums of users on "
        f"{datetime.fromtimestamp(total.day * DAY_S, UTC):%Y-%m-%d}, {total.user_rows_nanos} in their requests, "
        f"{total.unattributed_nanos} in requests without a user, "
        f"{total.usage_nanos} in the sum of the day (nano-USD)"
        for total in totals
        if not total.is_correct
    ]


def copy_sums(balances: Balances, day: UtcDay) -> dict[BalanceId, Sums]:
    """Return the sums of every balance as of ``day``, in nano-USD. Balances without any amount are left out."""
    return {
        (owner, owner_id): sums
        for owner in _OWNERS
        for owner_id, balance in balances.list_balances(owner)
        if any(sums := _build_sums(balance, day))
    }


def _build_sums(balance: Balance, day: UtcDay) -> Sums:
    today, month = balance.begin_day(day)
    lifetime = balance.lifetime
    return (
        lifetime.spent_nanos,
        lifetime.credit_nanos,
        month.spent_nanos,
        month.credit_nanos,
        today.spent_nanos,
        today.credit_nanos,
    )


async def recompute_sums(
    ledger: LedgerRepository, pending_rows: Iterable[RequestRecord], day: UtcDay, recount: Balances
) -> dict[BalanceId, Sums]:
    """Return the sums according to the ledger and ``pending_rows``, computed in the empty balances ``recount``."""
    recount.add_spending(await ledger.list_spending(day, recount.zones), day)
    recount.add_spending((_build_spending(record, day, recount.zones) for record in pending_rows), day)
    return copy_sums(recount, day)


async def find_latest_s(
    ledger: LedgerRepository, pending_rows: Iterable[RequestRecord], day: UtcDay, zones: "Mapping[int, AccountZone]"
) -> int:
    """Return a moment after all entries of the accounts of ``zones`` that are later than ``day``, in Unix seconds.

    It is also after their ``pending_rows``; 0 if there is neither. Entries are later than the current day if the clock
    was set back.
    """
    if not zones:
        return 0
    pending_s = [row.settled_ms // 1000 + 1 for row in pending_rows if row.account_id in zones]
    return max(await ledger.find_latest_s(zones, day.until_s) or 0, *pending_s, 0)


def _build_spending(record: RequestRecord, day: UtcDay, zones: "Mapping[int, AccountZone]") -> Spending:
    at_s, cost, zone = record.settled_ms // 1000, record.cost_nanos, zones.get(record.account_id)
    local = day if zone is None else zone.find_local_day(day.since_s)
    month = cost if local.month_start_s <= at_s < local.month_end_s else 0
    return Spending(record.account_id, record.key_id, cost, month, cost if local.start_s <= at_s < local.end_s else 0)


def _compare_sums(memory_sums: Mapping[BalanceId, Sums], ledger_sums: Mapping[BalanceId, Sums]) -> list[str]:
    problems = []
    for owner, owner_id in sorted(memory_sums.keys() | ledger_sums.keys()):
        pair = memory_sums.get((owner, owner_id), NO_SUMS), ledger_sums.get((owner, owner_id), NO_SUMS)
        for name, memory_nanos, ledger_nanos in zip(_SUM_NAMES, *pair, strict=True):
            if memory_nanos != ledger_nanos:
                problems.append(
                    f"{owner} {owner_id}: {name} is {memory_nanos}, its entries say {ledger_nanos} (nano-USD)"
                )
    return problems


def _check_balances(balances: Balances, day: UtcDay) -> list[str]:
    problems = _check_reservations(balances)
    for owner in _OWNERS:
        for owner_id, balance in balances.list_balances(owner):
            counter, room = balance.find_counter(day), balance.find_room(day)
            if counter.spent_nanos < 0 or (room is not None and room + counter.overrun_nanos < 0):
                problems.append(f"{owner} {owner_id}: more is spent and held than its cap and its overrun allow")
    return problems


def _list_overruns(balances: Balances, day: UtcDay) -> list[str]:
    return [
        describe_overrun(owner, owner_id, -left_nanos)
        for owner in _OWNERS
        for owner_id, balance in balances.list_balances(owner)
        if (left_nanos := balance.find_balance(day) or 0) < 0
    ]


def _check_reservations(balances: Balances) -> list[str]:
    reserved: dict[int, int] = {}
    for reservation in balances.reservations:
        for balance, beyond_nanos in zip_longest(reservation.balances, reservation.beyond, fillvalue=0):
            reserved[id(balance)] = reserved.get(id(balance), 0) + reservation.nanos + beyond_nanos
    return [
        f"{owner} {owner_id}: {balance.held_nanos} held, its holds say {reserved_nanos} (nano-USD)"
        for owner in _OWNERS
        for owner_id, balance in balances.list_balances(owner)
        if balance.held_nanos != (reserved_nanos := reserved.get(id(balance), 0))
    ]


async def _check_jobs(jobs: Jobs, balances: Balances) -> list[str]:
    """Return a problem for each job whose reservation is not the stored one, or that has ended without its charge.

    Balances that hold less than their jobs need are problems, too.
    """
    held_by_balance: dict[BalanceId, int] = {
        (owner, owner_id): balance.held_nanos
        for owner in _OWNERS
        for owner_id, balance in balances.list_balances(owner)
    }
    held_by_job = jobs.list_held()
    live_jobs = await jobs.store.list_open()
    problems = _find_short_balances(
        held_by_balance, [(job, held_by_job[job.id]) for job in live_jobs if job.id in held_by_job]
    )
    problems += await _list_persistent(jobs, _compare_jobs(held_by_job, live_jobs))
    return problems + await _list_contradictions(jobs)


async def _list_contradictions(jobs: Jobs) -> list[str]:
    return [
        f"{video_id}: it has ended, and its request is not stored, or not with its cost"
        for video_id in await jobs.store.list_contradictions()
    ]


async def _list_persistent(jobs: Jobs, problems: dict[str, str]) -> list[str]:
    """Return the problems that persist. Others are normal, because a job and its reservation do not change at once."""
    for _ in range(MAX_CHECKS - 1):
        if not problems:
            break
        await asyncio.sleep(CHECK_PAUSE_S)
        held_by_job = jobs.list_held()
        current_problems = _compare_jobs(held_by_job, await jobs.store.list_open())
        problems = {video_id: current_problems[video_id] for video_id in problems if video_id in current_problems}
    return list(problems.values())


def _compare_jobs(held_by_job: Mapping[str, int], live_jobs: Iterable[VideoJob]) -> dict[str, str]:
    """Return a problem for each job whose reservation in memory differs from the stored one."""
    stored_by_job = {job.id: job.held_nanos for job in live_jobs}
    problems = {}
    for video_id in sorted(held_by_job.keys() | stored_by_job.keys()):
        memory_nanos, stored_nanos = held_by_job.get(video_id), stored_by_job.get(video_id)
        if memory_nanos is None:
            problems[video_id] = f"{video_id}: no hold is open, its record says {stored_nanos} (nano-USD)"
        elif stored_nanos is None:
            problems[video_id] = f"{video_id}: {memory_nanos} held, and there is no such job that goes on (nano-USD)"
        elif memory_nanos != stored_nanos:
            problems[video_id] = f"{video_id}: {memory_nanos} held, its record says {stored_nanos} (nano-USD)"
    return problems


def _find_short_balances(
    held_by_balance: Mapping[BalanceId, int], live_jobs: Sequence[tuple[VideoJob, int]]
) -> list[str]:
    """Return a problem for each balance that holds less than its jobs need: a reservation was released by mistake."""
    needed_nanos: dict[BalanceId, int] = {}
    for job, amount in live_jobs:
        owners: tuple[BalanceId, ...] = (("account", job.account_id), ("key", job.key_id))
        for owner in owners:
            needed_nanos[owner] = needed_nanos.get(owner, 0) + amount
    return [
        f"{owner} {owner_id}: {held_nanos} held, its jobs alone say {amount} (nano-USD)"
        for (owner, owner_id), amount in sorted(needed_nanos.items())
        if (held_nanos := held_by_balance.get((owner, owner_id), 0)) < amount
    ]
