"""A ledger in plain Python: what every history of requests and credits must come to."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from gateway.domain import ledger
from gateway.domain.account_zone import AccountZone
from gateway.domain.audit_log import AuditRow
from gateway.domain.balance import DAY_S, UtcDay
from gateway.domain.request_log import RequestFilter, RequestPage, RequestRecord, StoredRequest

_Owner = tuple[int, int]
_Day = tuple[int, int, int, str]


class LedgerModel:
    """``LedgerRepository`` and ``RequestLogRepository`` as lists and dictionaries."""

    def __init__(self) -> None:
        self._requests: dict[str, StoredRequest] = {}
        self._entries: list[ledger.LedgerEntry] = []
        self._days: dict[_Day, tuple[int, int, int, int, int]] = {}
        self._last_id = 0

    async def list_requests(self, wanted: RequestFilter, limit: int) -> RequestPage:
        return RequestPage(tuple(one for one in self._requests.values() if wanted.matches(one))[-limit:])

    async def post(self, rows: Sequence[RequestRecord]) -> None:
        for row in rows:
            if row.id not in self._requests:
                self._requests[row.id] = StoredRequest(self._next_id(), row)
                self._add_to_day(row)
                if row.cost_nanos:
                    charge = ledger.LedgerEntry(
                        0, row.settled_ms, "charge", row.account_id, row.key_id, row.cost_nanos, row.id
                    )
                    self._add_entry(charge)

    async def post_again(self, rows: Sequence[RequestRecord]) -> None:
        await self.post(rows)

    async def find_last_day(self) -> int | None:
        return max((entry.at_ms // (DAY_S * 1000) for entry in self._entries), default=None)

    async def find_latest_s(self, account_ids: Collection[int], since_s: int) -> int | None:
        moments = [entry.at_ms // 1000 for entry in self._entries if entry.account_id in account_ids]
        return max((moment_s + 1 for moment_s in moments if moment_s >= since_s), default=None)

    async def add_credit(
        self, entry: ledger.LedgerEntry, _audit: AuditRow | None = None, _decide: object = None
    ) -> tuple[ledger.LedgerEntry, bool]:
        for known in self._credits_of(entry.account_id, entry.key_id):
            if entry.reference is not None and known.reference == entry.reference:
                ledger.check_same_credit(known, entry)
                return known, False
        return self._add_entry(entry), True

    async def list_credits(self, account_id: int, key_id: int | None, limit: int) -> Sequence[ledger.LedgerEntry]:
        return self._credits_of(account_id, key_id)[::-1][:limit]

    async def list_spending(
        self, day: UtcDay, zones: Mapping[int, AccountZone] | None = None
    ) -> Sequence[ledger.Spending]:
        lines = []
        for entry in self._entries:
            at_s, amount, zone = entry.at_ms // 1000, entry.amount_nanos, (zones or {}).get(entry.account_id)
            local = day if zone is None else zone.find_local_day(day.since_s)
            month = amount if local.month_start_s <= at_s < local.month_end_s else 0
            today = amount if local.start_s <= at_s < local.end_s else 0
            sums = (amount, month, today, 0, 0, 0) if entry.kind == "charge" else (0, 0, 0, amount, month, today)
            lines.append(ledger.Spending(entry.account_id, entry.key_id, *sums))
        return lines

    async def list_usage(self, axis: ledger.UsageAxis, wanted: ledger.UsageFilter) -> Sequence[ledger.UsageLine]:
        found: dict[int | str, tuple[int, ...]] = {}
        for place, sums in self._days.items():
            if _is_wanted(place, wanted):
                label = place[("day", "account", "key", "model").index(axis)]
                found[label] = tuple(map(int.__add__, found.get(label, (0,) * len(sums)), sums))
        lines = [ledger.UsageLine(str(label), *sums) for label, sums in sorted(found.items())]
        return lines if axis == "day" else sorted(lines, key=lambda line: (-line.cost_nanos, -line.requests))

    async def list_totals(self) -> Sequence[ledger.KeyTotals]:
        entries = _sum_by_key(
            (e.account_id, e.key_id or 0, e.amount_nanos) for e in self._entries if e.kind == "charge"
        )
        rows = [stored.row for stored in self._requests.values()]
        charged = [(row.account_id, row.key_id, row.cost_nanos) for row in rows]
        requests = _sum_by_key(charged)
        return [
            ledger.KeyTotals(*owner, entries.get(owner, 0), requests.get(owner, 0), requests.get(owner, 0))
            for owner in sorted(entries.keys() | {owner for owner, total in requests.items() if total})
        ]

    def _add_to_day(self, row: RequestRecord) -> None:
        if ledger.counts_as_usage(row):
            place = (ledger.day_of(row), row.account_id, row.key_id, row.model)
            requests, prompt, completion, cached, cost = self._days.get(place, (0, 0, 0, 0, 0))
            self._days[place] = (
                requests + 1,
                prompt + row.prompt_tokens,
                completion + row.completion_tokens,
                cached + row.cached_tokens,
                cost + row.cost_nanos,
            )

    def _add_entry(self, entry: ledger.LedgerEntry) -> ledger.LedgerEntry:
        self._entries.append(attrs.evolve(entry, sequence=self._next_id()))
        return self._entries[-1]

    def _credits_of(self, account_id: int, key_id: int | None) -> list[ledger.LedgerEntry]:
        return [
            entry
            for entry in self._entries
            if entry.kind != "charge" and (entry.account_id, entry.key_id) == (account_id, key_id)
        ]

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def _is_wanted(place: _Day, wanted: ledger.UsageFilter) -> bool:
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
