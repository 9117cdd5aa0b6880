"""Reconciliation: recomputes every balance from the ledger and reports differences from memory."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol

from gateway.billing.balances import Balances
from gateway.billing.write_queue import WriteQueue
from gateway.domain.balance import Balance, Owner, UtcDay
from gateway.domain.ledger import ClusterAudit, KeyTotals, Spending, describe_overrun
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import VideoJob
from gateway.storage.ledger import LedgerRepository
from gateway.storage.videos import VideoRepository

Sums = tuple[int, int, int, int, int, int]
BalanceId = tuple[Owner, int]
NO_SUMS: Sums = (0, 0, 0, 0, 0, 0)
MAX_LOOKS = 20
LOOK_AGAIN_S = 0.05
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
    balances: Balances, ledger: LedgerRepository, queue: WriteQueue, jobs: Jobs | None, clock: Callable[[], float]
) -> dict[str, Any]:
    """Return a report on whether balances, reservations, ledger entries and requests agree.

    The gateway may serve requests meanwhile. The caller holds ``queue.writing`` and prevents credits, so no entry is on
    its way to the ledger. ``open_holds`` counts requests in progress, ``video_holds`` counts jobs; ``held_usd`` is the
    total of both.
    """
    # All copies must be of the same moment, so nothing awaits until they are made.
    day = balances.today
    found = copy_sums(balances, day)
    problems, overruns = _check_balances(balances, day), _list_overruns(balances, day)
    open_holds, pending = len(balances.reservations), queue.list_rows()
    held = sum(balance.held_nanos for _, balance in balances.list_balances("account"))
    for_jobs = {} if jobs is None else dict(jobs.list_held())
    if jobs is not None:
        problems += await _check_jobs(jobs, balances)
    expected = await recompute_sums(ledger, pending, day, clock, balances.existing)
    problems += _compare(
        *({place: its for place, its in sums.items() if not balances.is_gone(*place)} for sums in (found, expected))
    )
    totals = await ledger.list_totals()
    problems += _compare_totals(totals)
    return {
        **_build_report(problems, overruns, totals),
        "purses": len(found),
        "open_holds": open_holds - len(for_jobs),
        "video_holds": len(for_jobs),
        "held_usd": held / NANOS_PER_USD,
        "video_held_usd": sum(for_jobs.values()) / NANOS_PER_USD,
        "waiting_rows": len(pending),
    }


async def reconcile_node(
    balances: Balances, queue: WriteQueue, jobs: Jobs | None, stored: ClusterAudit, problems: Sequence[str]
) -> dict[str, Any]:
    """Return the report of a cluster node. ``open_holds`` and ``waiting_rows`` count only this node's."""
    found = [*stored.problems, *problems, *_check_reservations(balances), *_compare_totals(stored.totals)]
    found += [] if jobs is None else await _list_contradictions(jobs)
    held = sum(balance.held_nanos for _, balance in balances.list_balances("account"))
    return {
        **_build_report(found, stored.overruns, stored.totals),
        "purses": len(stored.totals),
        "open_holds": len(balances.reservations),
        "video_holds": stored.jobs,
        "held_usd": (held + stored.held_nanos) / NANOS_PER_USD,
        "video_held_usd": stored.held_nanos / NANOS_PER_USD,
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
    ledger: LedgerRepository,
    pending: Iterable[RequestRecord],
    day: UtcDay,
    clock: Callable[[], float],
    existing: Mapping[Owner, Collection[int]] | None,
) -> dict[BalanceId, Sums]:
    """Compute the sums from the ledger and the ``pending`` records. Owners that are not ``existing`` are left out."""
    balances = Balances(clock)
    balances.existing = existing
    balances.load(await ledger.list_spending(day), day)
    balances.load((_build_spending(record, day) for record in pending), day)
    return copy_sums(balances, day)


def _build_spending(record: RequestRecord, day: UtcDay) -> Spending:
    at_s, cost = record.settled_ms // 1000, record.cost_nanos
    month = cost if day.month_start_s <= at_s < day.month_end_s else 0
    return Spending(record.account_id, record.key_id, cost, month, cost if day.contains(at_s) else 0)


def _compare(found: Mapping[BalanceId, Sums], expected: Mapping[BalanceId, Sums]) -> list[str]:
    problems = []
    for owner, owner_id in sorted(found.keys() | expected.keys()):
        pair = found.get((owner, owner_id), NO_SUMS), expected.get((owner, owner_id), NO_SUMS)
        for name, here, there in zip(_SUM_NAMES, *pair, strict=True):
            if here != there:
                problems.append(f"{owner} {owner_id}: {name} is {here}, its entries say {there} (nano-USD)")
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
        describe_overrun(owner, owner_id, -left)
        for owner in _OWNERS
        for owner_id, balance in balances.list_balances(owner)
        if (left := balance.find_balance(day) or 0) < 0
    ]


def _check_reservations(balances: Balances) -> list[str]:
    reserved: dict[int, int] = {}
    for reservation in balances.reservations:
        for balance, more in zip_longest(reservation.balances, reservation.beyond, fillvalue=0):
            reserved[id(balance)] = reserved.get(id(balance), 0) + reservation.nanos + more
    return [
        f"{owner} {owner_id}: {balance.held_nanos} held, its holds say {expected} (nano-USD)"
        for owner in _OWNERS
        for owner_id, balance in balances.list_balances(owner)
        if balance.held_nanos != (expected := reserved.get(id(balance), 0))
    ]


async def _check_jobs(jobs: Jobs, balances: Balances) -> list[str]:
    """Check that each job's reservation matches the stored one, and that ended jobs were charged correctly."""
    held_by_balance: dict[BalanceId, int] = {
        (owner, owner_id): balance.held_nanos
        for owner in _OWNERS
        for owner_id, balance in balances.list_balances(owner)
    }
    held = jobs.list_held()
    live = await jobs.store.list_open()
    problems = _find_short_balances(held_by_balance, [(job, held[job.id]) for job in live if job.id in held])
    problems += await _list_persistent(jobs, _compare_jobs(held, live))
    return problems + await _list_contradictions(jobs)


async def _list_contradictions(jobs: Jobs) -> list[str]:
    return [
        f"{video_id}: it has ended, and its request is not stored, or not with its cost"
        for video_id in await jobs.store.list_contradictions()
    ]


async def _list_persistent(jobs: Jobs, problems: dict[str, str]) -> list[str]:
    """Return the problems that persist. Short-lived ones are normal: job and reservation do not change in one step."""
    for _ in range(MAX_LOOKS - 1):
        if not problems:
            break
        await asyncio.sleep(LOOK_AGAIN_S)
        held = jobs.list_held()
        again = _compare_jobs(held, await jobs.store.list_open())
        problems = {video_id: again[video_id] for video_id in problems if video_id in again}
    return list(problems.values())


def _compare_jobs(held: Mapping[str, int], live: Iterable[VideoJob]) -> dict[str, str]:
    """Return a problem for each job whose reservation in memory differs from the stored one."""
    recorded = {job.id: job.held_nanos for job in live}
    problems = {}
    for video_id in sorted(held.keys() | recorded.keys()):
        here, there = held.get(video_id), recorded.get(video_id)
        if here is None:
            problems[video_id] = f"{video_id}: no hold is open, its record says {there} (nano-USD)"
        elif there is None:
            problems[video_id] = f"{video_id}: {here} held, and there is no such job that goes on (nano-USD)"
        elif here != there:
            problems[video_id] = f"{video_id}: {here} held, its record says {there} (nano-USD)"
    return problems


def _find_short_balances(held: Mapping[BalanceId, int], live: Sequence[tuple[VideoJob, int]]) -> list[str]:
    """Report balances that hold less than their jobs need: a job's reservation was released by mistake."""
    needed: dict[BalanceId, int] = {}
    for job, amount in live:
        owners: tuple[BalanceId, ...] = (("account", job.account_id), ("key", job.key_id))
        for owner in owners:
            needed[owner] = needed.get(owner, 0) + amount
    return [
        f"{owner} {owner_id}: {reserved} held, its jobs alone say {amount} (nano-USD)"
        for (owner, owner_id), amount in sorted(needed.items())
        if (reserved := held.get((owner, owner_id), 0)) < amount
    ]
