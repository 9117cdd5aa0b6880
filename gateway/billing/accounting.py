"""The books: what every purse holds, money added to it, what was used, and whether it all adds up."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import structlog

from gateway.billing.balances import Balances
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import Account, ApiKey
from gateway.domain.account_spec import CreditSpec, build_time
from gateway.domain.audit_log import OPERATOR, Actor, build_change
from gateway.domain.balance import Balance, Owner, UtcDay, parse_day
from gateway.domain.ledger import LedgerEntry, Spending, UsageAxis, UsageFilter, UsageLine
from gateway.domain.price import NANOS_PER_USD, nanos
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import VideoJob
from gateway.errors import InvalidRequest, StoreUnavailable
from gateway.storage.ledger import LedgerRepository
from gateway.storage.videos import VideoRepository

Fields = dict[str, Any]
Sums = tuple[int, int, int, int, int, int]
MAX_BALANCE_NANOS = 2**62
"""No cap with its credits goes further; sums of two such are still 64-bit integers."""
LOOKS = 5
LOOK_AGAIN_S = 0.05
_OWNERS: tuple[Owner, ...] = ("account", "key")

log = structlog.stdlib.get_logger(__name__)


class Jobs(Protocol):
    """What money is held for beyond the call that asked for it."""

    @property
    def store(self) -> VideoRepository:
        """Where jobs are on record."""
        ...

    def list_held(self) -> Mapping[str, int]:
        """What is held in memory for each job that has not ended, in nano-USD."""
        ...


class AccountingService:
    """Reads and credits purses.

    Args:
        bank: the purses.
        ledger: where entries live.
        outbox: rows that the ledger does not have yet; no job ends while its ``writing`` is held.
        clock: Unix seconds.

    Attributes:
        jobs: set by the roof, under which jobs are made.
    """

    def __init__(
        self, bank: Balances, ledger: LedgerRepository, outbox: WriteQueue, *, clock: Callable[[], float]
    ) -> None:
        self._bank = bank
        self._ledger = ledger
        self._outbox = outbox
        self._clock = clock
        self._crediting = asyncio.Lock()
        self.jobs: Jobs | None = None
        self._loading: asyncio.Task[None] | None = None
        bank.load_day = self._start_loading

    async def close(self) -> None:
        """Wait for a day that is being read."""
        if self._loading is not None:
            await asyncio.gather(self._loading, return_exceptions=True)

    def _start_loading(self) -> None:
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load_day())

    async def _load_day(self) -> None:
        """Take in what the ledger knows of the running day and memory does not: the clock was set back or far ahead."""
        try:
            async with self._crediting, self._outbox.writing:
                day = parse_day(self._clock())
                # One moment, as in ``audit``: what is settled while the ledger is read is in neither sum.
                found, again = _copy(self._bank, day), Balances(self._clock)
                pending = self._outbox.look()
                again.load(await self._ledger.list_spending(day), day)
            again.load((_parse_spending(row, day) for row in pending), day)
            expected = _copy(again, day)
            for place in found.keys() | expected.keys():
                here, there = found.get(place, _NO_SUMS), expected.get(place, _NO_SUMS)
                difference = [known - counted for known, counted in zip(there, here, strict=True)][2:]
                if any(difference):
                    self._bank.find_balance(*place).correct(difference, day)
            self._bank.confirm(day)
        except StoreUnavailable as fault:
            log.warning("day_not_loaded", error=fault.message)
        finally:
            self._loading = None

    def describe(self, owner: Account | ApiKey) -> Fields:
        """What is spent, held and left of an account or a key, in dollars; what is left is None without a cap."""
        balance, day = self._open(owner)
        tally = balance.tally(day)
        room, reset = balance.find_room(day), balance.find_reset(day)
        return {
            "spent_usd": tally.spent_nanos / NANOS_PER_USD,
            "credit_usd": tally.credit_nanos / NANOS_PER_USD,
            "held_usd": balance.held_nanos / NANOS_PER_USD,
            "left_usd": None if room is None else room / NANOS_PER_USD,
            "overrun_usd": tally.overrun_nanos / NANOS_PER_USD,
            "resets_at": None if reset is None else build_time(reset),
        }

    def find_stricter(self, key: ApiKey, account: Account) -> tuple[Balance, UtcDay]:
        """The purse of the two that has less left; the key's where neither is capped."""
        (mine, day), (shared, _) = self._open(key), self._open(account)
        room, other = mine.find_room(day), shared.find_room(day)
        return (shared if other is not None and (room is None or other < room) else mine), day

    async def credit(
        self, owner: Account | ApiKey, spec: CreditSpec, by: Actor = OPERATOR, *, subject: str = ""
    ) -> Fields:
        """Add to a purse, or set its balance, by an entry in the ledger; a ``reference`` makes a second call harmless.

        ``subject`` is what the audit trail calls the owner, where its name does not do.
        Raises ``InvalidRequest`` where there is no cap to add to, ``Conflict`` on its reference, ``StoreUnavailable``.
        """
        async with self._crediting:
            balance, day = self._open(owner)
            available_nanos = balance.find_balance(day)
            if available_nanos is None:
                raise InvalidRequest("There is no quota to add to; set one first", param="quota_usd")
            amount = nanos(spec.amount_usd) - (available_nanos if spec.kind == "set" else 0)
            if abs(available_nanos + amount) > MAX_BALANCE_NANOS:
                raise InvalidRequest("The balance would be more than this gateway can count", param="amount_usd")
            now_ms = int(self._clock() * 1000)
            account_id, key_id = _identify(owner)
            entry = LedgerEntry(0, now_ms, spec.kind, account_id, key_id, amount, None, spec.reference, spec.note)
            action = "account.credited" if key_id is None else "key.credited"
            detail = _build_credit(entry, available_nanos)
            audit = by.did(action, subject or owner.name, now_ms, account_id=account_id, detail=detail)
            entry, added = await self._ledger.add_credit(entry, audit)
            if added:
                balance.add_credit(amount, self._bank.day_at(now_ms / 1000))
        return {**_build_entry(entry), "added": added, **self.describe(owner)}

    async def list_credits(self, owner: Account | ApiKey, limit: int) -> list[Fields]:
        """The newest credits of an account or a key, the newest first."""
        return [_build_entry(entry) for entry in await self._ledger.list_credits(*_identify(owner), limit)]

    async def list_usage(self, axis: UsageAxis, wanted: UsageFilter) -> Sequence[UsageLine]:
        """Usage summed along ``axis``, as far as it is stored."""
        return await self._ledger.list_usage(axis, wanted)

    async def audit(self) -> Fields:
        """Add every purse up again, from its entries, and compare. The gateway may be at work meanwhile.

        ``open_holds`` are those of calls under way, ``video_holds`` those of jobs; ``held_usd`` is both.
        """
        async with self._crediting, self._outbox.writing:
            # One moment: nothing is on its way to the store, and nothing below waits before the copies are made.
            day = self._bank.today
            found = _copy(self._bank, day)
            problems = _find_bad_balances(self._bank, day)
            open_holds, pending = len(self._bank.holds), self._outbox.look()
            held = sum(balance.held_nanos for _, balance in self._bank.list_balances("account"))
            for_jobs = {} if self.jobs is None else dict(self.jobs.list_held())
            if self.jobs is not None:
                problems += await _find_bad_jobs(self.jobs, self._bank)
            again = Balances(self._clock)
            again.load(await self._ledger.list_spending(day), day)
            totals = await self._ledger.list_totals()
        again.load((_parse_spending(row, day) for row in pending), day)
        problems += _compare(found, _copy(again, day))
        for total in totals:
            if not total.entries_nanos == total.usage_nanos == total.requests_nanos:
                problems.append(
                    f"key {total.key_id}: {total.entries_nanos} charged in entries, {total.usage_nanos} in the sums "
                    f"of its days, {total.requests_nanos} in its requests (nano-USD)",
                )
        return {
            "ok": not problems,
            "problems": problems,
            "purses": len(found),
            "charged_usd": sum(total.entries_nanos for total in totals) / NANOS_PER_USD,
            "charged_nanos": sum(total.entries_nanos for total in totals),
            "open_holds": open_holds - len(for_jobs),
            "video_holds": len(for_jobs),
            "held_usd": held / NANOS_PER_USD,
            "video_held_usd": sum(for_jobs.values()) / NANOS_PER_USD,
            "waiting_rows": len(pending),
        }

    def _open(self, owner: Account | ApiKey) -> tuple[Balance, UtcDay]:
        day = self._bank.today
        balance = self._bank.find_balance("account" if isinstance(owner, Account) else "key", owner.id)
        balance.use(owner.quota, day)
        return balance, day


def _parse_spending(row: RequestRecord, day: UtcDay) -> Spending:
    at_s, cost = row.settled_ms // 1000, row.cost_nanos
    month = cost if day.month_start_s <= at_s < day.month_end_s else 0
    return Spending(row.account_id, row.key_id, cost, month, cost if day.holds(at_s) else 0)


def _identify(owner: Account | ApiKey) -> tuple[int, int | None]:
    """The account's id and the key's."""
    return (owner.id, None) if isinstance(owner, Account) else (owner.account_id, owner.id)


def _build_entry(entry: LedgerEntry) -> Fields:
    fields = attrs.asdict(entry)
    del fields["request_id"]
    at_ms, amount = fields.pop("at_ms"), fields.pop("amount_nanos")
    return {**fields, "at": build_time(at_ms // 1000), "amount_usd": amount / NANOS_PER_USD}


def _build_credit(entry: LedgerEntry, balance: int) -> str:
    """A credit for the audit trail: what was left before it, and is after."""
    told = {"kind": entry.kind, "reference": entry.reference, "note": entry.note}
    before, after = balance / NANOS_PER_USD, (balance + entry.amount_nanos) / NANOS_PER_USD
    return build_change({"left_usd": before}, {"left_usd": after, **told})


def _copy(bank: Balances, day: UtcDay) -> dict[tuple[Owner, int], Sums]:
    """The sums of every purse that has any, as of ``day``."""
    copies: dict[tuple[Owner, int], Sums] = {}
    for owner in _OWNERS:
        for owner_id, balance in bank.list_balances(owner):
            today, month = balance.turn_to(day)  # what a new day leaves above the cap goes on record
            sums = (
                balance.lifetime.spent_nanos,
                balance.lifetime.credit_nanos,
                month.spent_nanos,
                month.credit_nanos,
                today.spent_nanos,
                today.credit_nanos,
            )
            if any(sums):
                copies[owner, owner_id] = sums
    return copies


_SUM_NAMES = ("spent", "credited", "spent this month", "credited this month", "spent today", "credited today")
_NO_SUMS: Sums = (0, 0, 0, 0, 0, 0)


def _compare(found: dict[tuple[Owner, int], Sums], expected: dict[tuple[Owner, int], Sums]) -> list[str]:
    problems = []
    for owner, owner_id in sorted(found.keys() | expected.keys()):
        pair = found.get((owner, owner_id), _NO_SUMS), expected.get((owner, owner_id), _NO_SUMS)
        for name, here, there in zip(_SUM_NAMES, *pair, strict=True):
            if here != there:
                problems.append(f"{owner} {owner_id}: {name} is {here}, its entries say {there} (nano-USD)")
    return problems


def _find_bad_balances(bank: Balances, day: UtcDay) -> list[str]:
    """The rules of ``domain/balance.py``, looked at for every purse."""
    held: dict[int, int] = {}
    for hold in bank.holds:
        for balance in hold.balances:
            held[id(balance)] = held.get(id(balance), 0) + hold.nanos
    problems = []
    for owner in _OWNERS:
        for owner_id, balance in bank.list_balances(owner):
            tally, expected = balance.tally(day), held.get(id(balance), 0)
            if balance.held_nanos != expected:
                problems.append(f"{owner} {owner_id}: {balance.held_nanos} held, its holds say {expected} (nano-USD)")
            room = balance.find_room(day)
            if tally.spent_nanos < 0 or (room is not None and room + tally.overrun_nanos < 0):
                problems.append(f"{owner} {owner_id}: more is spent and held than its cap and its overrun allow")
    return problems


async def _find_bad_jobs(jobs: Jobs, bank: Balances) -> list[str]:
    """Jobs whose money is not held as they are on record, or that ended otherwise than their requests say."""
    balances: dict[tuple[Owner, int], int] = {
        (owner, owner_id): balance.held_nanos for owner in _OWNERS for owner_id, balance in bank.list_balances(owner)
    }
    held = jobs.list_held()
    live = await jobs.store.list_open()
    problems = _find_short_balances(balances, [(job, held[job.id]) for job in live if job.id in held])
    problems += await _insist(jobs, _compare_jobs(held, live))
    for video_id in await jobs.store.list_contradictions():
        problems.append(f"{video_id}: it has ended, and its request is not stored, or not with its cost")
    return problems


async def _insist(jobs: Jobs, problems: dict[str, str]) -> list[str]:
    """What does not agree however often it is looked at.

    A job is on record a moment before its money is its own, and is struck off a moment before the money is free.
    """
    for _ in range(LOOKS - 1):
        if not problems:
            break
        await asyncio.sleep(LOOK_AGAIN_S)
        held = jobs.list_held()
        again = _compare_jobs(held, await jobs.store.list_open())
        problems = {video_id: again[video_id] for video_id in problems if video_id in again}
    return list(problems.values())


def _compare_jobs(held: Mapping[str, int], live: Iterable[VideoJob]) -> dict[str, str]:
    """What is wrong with which job."""
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


def _find_short_balances(balances: Mapping[tuple[Owner, int], int], live: Iterable[tuple[VideoJob, int]]) -> list[str]:
    """Purses of which less is held than their jobs take alone: somebody else has let go of a job's hold."""
    taken: dict[tuple[Owner, int], int] = {}
    for job, amount in live:
        places: tuple[tuple[Owner, int], ...] = (("account", job.account_id), ("key", job.key_id))
        for place in places:
            taken[place] = taken.get(place, 0) + amount
    return [
        f"{owner} {owner_id}: {held} held, its jobs alone say {needed} (nano-USD)"
        for (owner, owner_id), needed in sorted(taken.items())
        if (held := balances.get((owner, owner_id), 0)) < needed
    ]
