"""The books in memory: requests, charges, credits, and their sums. They ship, and keep the database's contract."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import attrs

from gateway.domain.audit_log import AuditRow
from gateway.domain.balance import DAY_S, UtcDay
from gateway.domain.ledger import (
    KeyTotals,
    LedgerEntry,
    Spending,
    UsageAxis,
    UsageFilter,
    UsageLine,
    check_same_credit,
    counts_as_usage,
    day_of,
    is_retired,
)
from gateway.domain.request_log import RequestFilter, RequestPage, RequestRecord, StoredRequest
from gateway.domain.retention import RetentionBatch
from gateway.storage.memory_audit import MemoryAuditTrail
from gateway.storage.memory_traffic import MemoryTraffic

_DAY_MS = DAY_S * 1000

_Owner = tuple[int, int]
_Day = tuple[int, int, int, str]


class MemoryBooks:
    """``RequestLog``, ``Ledger`` and ``Retirement`` in dictionaries.

    Attributes:
        trail: who changed what.
        traffic: ``Traffic``.
        keeps: whether the row of that request must stay however old it is.
    """

    def __init__(self) -> None:
        self.trail = MemoryAuditTrail()
        self.traffic = MemoryTraffic()
        self.keeps: Callable[[str], bool] = lambda _: False
        self._requests: dict[str, StoredRequest] = {}
        self._entries: list[LedgerEntry] = []
        self._days: dict[_Day, tuple[int, int, int, int, int]] = {}
        self._retired: dict[_Owner, tuple[int, int]] = {}
        self._last_id = 0

    async def list_requests(self, wanted: RequestFilter, limit: int) -> RequestPage:
        """The newest that match, oldest of them first; with ``after``, the oldest after it. Every row is looked at."""
        newest = next((stored.sequence for stored in reversed(self._requests.values())), 0)
        found = [stored for stored in self._requests.values() if wanted.matches(stored)]
        more = len(found) > limit
        if wanted.after is not None:
            rows = tuple(found[:limit])
            end = rows[-1].sequence if more and rows else max(wanted.after, newest)
            return RequestPage(rows, more, end, rows[-1].row.settled_ms if more and rows else None, newest)
        rows = tuple(found[max(len(found) - limit, 0) :])
        if not more or not rows:
            return RequestPage(rows, more, newest=newest)
        return RequestPage(rows, more, rows[0].sequence, rows[0].row.settled_ms, newest)

    async def find_request(self, request_id: str) -> StoredRequest | None:
        """The row of that id."""
        return self._requests.get(request_id)

    async def post(self, rows: Sequence[RequestRecord]) -> None:
        """Store rows with their charges; a row that is there already stays as it is."""
        for row in rows:
            if row.id not in self._requests:
                self._requests[row.id] = StoredRequest(self._next_id(), row)
                self.traffic.add([row])
                self._add_to_day(row)
                if row.cost_nanos:
                    charge = LedgerEntry(
                        0, row.settled_ms, "charge", row.account_id, row.key_id, row.cost_nanos, row.id
                    )
                    self._add_entry(charge)

    async def post_again(self, rows: Sequence[RequestRecord]) -> None:
        """Store what an earlier process has left, but for rows that were retired since they were stored."""
        until = {owner: until_ms for owner, (_, until_ms) in self._retired.items()}
        await self.post([row for row in rows if not is_retired(row, until.get((row.account_id, row.key_id)))])

    async def find_newest_ms(self) -> int | None:
        """When the last request, credit or change was recorded."""
        last = [next(reversed(self._requests.values())).row.settled_ms] if self._requests else []
        return max([*last, *(entry.at_ms for entry in self._entries[-1:])], default=None)

    async def retire_requests(self, before_ms: int, after: int, most: int) -> RetentionBatch:
        """Delete old rows, and keep what they cost."""
        later = (stored for stored in self._requests.values() if stored.sequence > after)
        rows = list(islice(later, most))
        old = [stored for stored in rows if stored.row.settled_ms < before_ms]
        gone = [stored.row for stored in old if not self.keeps(stored.row.id)]
        for row in gone:
            del self._requests[row.id]
            cost, until_ms = self._retired.get((row.account_id, row.key_id), (0, 0))
            known = cost + row.cost_nanos, max(until_ms, row.settled_ms)
            self._retired[row.account_id, row.key_id] = known
        return RetentionBatch(len(gone), rows[-1].sequence if rows else after, ended=not old or len(rows) < most)

    async def retire_hours(self, before: int) -> int:
        """Delete the traffic of the oldest hour."""
        return self.traffic.forget_hour(before)

    async def add_credit(self, entry: LedgerEntry, audit: AuditRow | None = None) -> tuple[LedgerEntry, bool]:
        """Store a credit, or find the one that its purse has under its reference."""
        for known in self._credits_of(entry.account_id, entry.key_id):
            if entry.reference is not None and known.reference == entry.reference:
                check_same_credit(known, entry)
                return known, False
        self.trail.note(audit)
        return self._add_entry(entry), True

    async def list_credits(self, account_id: int, key_id: int | None, limit: int) -> Sequence[LedgerEntry]:
        """The newest credits of a purse, the newest first."""
        return self._credits_of(account_id, key_id)[::-1][:limit]

    async def list_spending(self, day: UtcDay) -> Sequence[Spending]:
        """Every purse with a charge or a credit, a line an entry."""
        lines = []
        for entry in self._entries:
            at_s, amount = entry.at_ms // 1000, entry.amount_nanos
            month = amount if day.month_start_s <= at_s < day.month_end_s else 0
            today = amount if day.holds(at_s) else 0
            sums = (amount, month, today, 0, 0, 0) if entry.kind == "charge" else (0, 0, 0, amount, month, today)
            lines.append(Spending(entry.account_id, entry.key_id, *sums))
        return lines

    async def find_last_day(self) -> int | None:
        """The last day with a charge or a credit."""
        return max((entry.at_ms // _DAY_MS for entry in self._entries), default=None)

    async def list_usage(self, axis: UsageAxis, wanted: UsageFilter) -> Sequence[UsageLine]:
        """Usage summed along ``axis``."""
        found: dict[int | str, tuple[int, ...]] = {}
        for place, sums in self._days.items():
            if _is_wanted(place, wanted):
                label = place[("day", "account", "key", "model").index(axis)]
                found[label] = tuple(map(int.__add__, found.get(label, (0,) * len(sums)), sums))
        lines = [UsageLine(str(label), *sums) for label, sums in sorted(found.items())]
        return lines if axis == "day" else sorted(lines, key=lambda line: (-line.cost_nanos, -line.requests))

    async def list_totals(self) -> Sequence[KeyTotals]:
        """Every key's charges as each place has them; usage is read from the requests here."""
        entries = _sum_by_key(
            (e.account_id, e.key_id or 0, e.amount_nanos) for e in self._entries if e.kind == "charge"
        )
        rows = [stored.row for stored in self._requests.values()]
        charged = [(row.account_id, row.key_id, row.cost_nanos) for row in rows]
        requests = _sum_by_key([*charged, *((*owner, cost) for owner, (cost, _) in self._retired.items())])
        return [
            KeyTotals(*owner, entries.get(owner, 0), requests.get(owner, 0), requests.get(owner, 0))
            for owner in sorted(entries.keys() | {owner for owner, total in requests.items() if total})
        ]

    def _add_to_day(self, row: RequestRecord) -> None:
        if counts_as_usage(row):
            place = (day_of(row), row.account_id, row.key_id, row.model)
            requests, prompt, completion, cached, cost = self._days.get(place, (0, 0, 0, 0, 0))
            self._days[place] = (
                requests + 1,
                prompt + row.prompt_tokens,
                completion + row.completion_tokens,
                cached + row.cached_tokens,
                cost + row.cost_nanos,
            )

    def _add_entry(self, entry: LedgerEntry) -> LedgerEntry:
        self._entries.append(attrs.evolve(entry, sequence=self._next_id()))
        return self._entries[-1]

    def _credits_of(self, account_id: int, key_id: int | None) -> list[LedgerEntry]:
        return [
            entry
            for entry in self._entries
            if entry.kind != "charge" and (entry.account_id, entry.key_id) == (account_id, key_id)
        ]

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def _is_wanted(place: _Day, wanted: UsageFilter) -> bool:
    day, account_id, key_id, model = place
    return (
        wanted.since <= day <= wanted.until
        and wanted.account_id in {None, account_id}
        and wanted.key_id in {None, key_id}
        and wanted.model in {None, model}
    )


def _sum_by_key(amounts: Iterable[tuple[int, int, int]]) -> dict[_Owner, int]:
    sums: dict[_Owner, int] = {}
    for account_id, key_id, amount in amounts:
        sums[account_id, key_id] = sums.get((account_id, key_id), 0) + amount
    return sums
