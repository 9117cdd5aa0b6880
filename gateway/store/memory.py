"""Every port in memory: a store that leaves nothing behind. It ships, and keeps the same contract as the database."""

from collections.abc import Iterable, Sequence

import attrs

from gateway.domain.audit import AuditRow
from gateway.domain.caller import Account, ApiKey
from gateway.domain.channel import Channel
from gateway.domain.fault import Conflict, Fault, NotFound
from gateway.domain.ledger import (
    Entry,
    KeyTotals,
    Spending,
    UsageAxis,
    UsageFilter,
    UsageLine,
    check_same_credit,
    counts_as_usage,
    day_of,
)
from gateway.domain.quota import Day
from gateway.domain.request import RequestFilter, RequestRow, StoredRequest
from gateway.store.memory_audit import MemoryAuditTrail


class MemoryStore:
    """``AccountStore``, ``KeyStore``, ``ChannelStore``, ``RequestLog`` and ``Ledger`` in dictionaries.

    Attributes:
        trail: who changed what of them.
    """

    def __init__(self) -> None:
        self.trail = MemoryAuditTrail()
        self._accounts: dict[int, Account] = {}
        self._keys: dict[int, ApiKey] = {}
        self._channels: dict[int, Channel] = {}
        self._requests: dict[str, StoredRequest] = {}
        self._entries: list[Entry] = []
        self._last_id = 0

    async def list_accounts(self) -> Sequence[Account]:
        """Every account, by id."""
        return list(self._accounts.values())

    async def add_account(self, account: Account, audit: AuditRow | None = None) -> Account:
        """Store a new account and return it with its id."""
        account = attrs.evolve(account, id=self._next_id())
        self._check_account(account)
        self._accounts[account.id] = account
        self.trail.note(audit and attrs.evolve(audit, account_id=account.id))
        return account

    async def put_account(self, account: Account, audit: AuditRow | None = None) -> None:
        """Replace the account of the same id."""
        if account.id not in self._accounts:
            raise NotFound(f"No account has the id {account.id}")
        self._check_account(account)
        self._accounts[account.id] = account
        self.trail.note(audit)

    async def delete_account(self, account_id: int, audit: AuditRow | None = None) -> None:
        """Remove the account and its keys."""
        if self._accounts.pop(account_id, None) is None:
            raise NotFound(f"No account has the id {account_id}")
        self._keys = {key.id: key for key in self._keys.values() if key.account_id != account_id}
        self.trail.note(audit)

    async def list_keys(self) -> Sequence[ApiKey]:
        """Every key, by id."""
        return list(self._keys.values())

    async def add_key(self, key: ApiKey, audit: AuditRow | None = None) -> ApiKey:
        """Store a new key and return it with its id."""
        key = attrs.evolve(key, id=self._next_id())
        self._check_key(key)
        self._keys[key.id] = key
        self.trail.note(audit)
        return key

    async def put_key(self, key: ApiKey, audit: AuditRow | None = None) -> None:
        """Replace the key of the same id."""
        if key.id not in self._keys:
            raise NotFound(f"No key has the id {key.id}")
        self._check_key(key)
        self._keys[key.id] = key
        self.trail.note(audit)

    async def delete_key(self, key_id: int, audit: AuditRow | None = None) -> None:
        """Remove the key."""
        if self._keys.pop(key_id, None) is None:
            raise NotFound(f"No key has the id {key_id}")
        self.trail.note(audit)

    async def list_channels(self) -> Sequence[Channel]:
        """Every channel, by id."""
        return list(self._channels.values())

    async def add_channel(self, channel: Channel, audit: AuditRow | None = None) -> Channel:
        """Store a new channel and return it with its id."""
        channel = attrs.evolve(channel, id=self._next_id(), origin="stored")
        self._check_channel(channel)
        self._channels[channel.id] = channel
        self.trail.note(audit)
        return channel

    async def put_channel(self, channel: Channel, audit: AuditRow | None = None) -> None:
        """Replace the channel of the same id."""
        await self.put_channels([channel], audit)

    async def put_channels(self, changed: Sequence[Channel], audit: AuditRow | None = None) -> None:
        """Replace several."""
        before = dict(self._channels)
        try:
            for channel in changed:
                if channel.id not in self._channels:
                    raise NotFound(f"No channel has the id {channel.id}")
                self._check_channel(channel)
                self._channels[channel.id] = attrs.evolve(channel, origin="stored")
        except Fault:
            self._channels = before
            raise
        self.trail.note(audit)

    async def delete_channel(self, channel_id: int, audit: AuditRow | None = None) -> None:
        """Remove the channel."""
        if self._channels.pop(channel_id, None) is None:
            raise NotFound(f"No channel has the id {channel_id}")
        self.trail.note(audit)

    async def list_requests(self, wanted: RequestFilter, limit: int) -> Sequence[StoredRequest]:
        """The newest that match, oldest of them first; with ``after``, the oldest after it."""
        found = [stored for stored in self._requests.values() if _matches(stored, wanted)]
        return found[:limit] if wanted.after is not None else found[max(len(found) - limit, 0) :]

    async def post(self, rows: Sequence[RequestRow]) -> None:
        """Store rows with their charges; a row that is there already stays as it is."""
        for row in rows:
            if row.id not in self._requests:
                self._requests[row.id] = StoredRequest(self._next_id(), row)
                if row.cost_nanos:
                    charge = Entry(0, row.settled_ms, "charge", row.account_id, row.key_id, row.cost_nanos, row.id)
                    self._add_entry(charge)

    async def add_credit(self, entry: Entry, audit: AuditRow | None = None) -> tuple[Entry, bool]:
        """Store a credit, or find the one that its purse has under its reference."""
        for known in self._credits_of(entry.account_id, entry.key_id):
            if entry.reference is not None and known.reference == entry.reference:
                check_same_credit(known, entry)
                return known, False
        self.trail.note(audit)
        return self._add_entry(entry), True

    async def list_credits(self, account_id: int, key_id: int | None, limit: int) -> Sequence[Entry]:
        """The newest credits of a purse, the newest first."""
        return self._credits_of(account_id, key_id)[::-1][:limit]

    async def list_spending(self, day: Day) -> Sequence[Spending]:
        """Every purse with a charge or a credit, a line an entry."""
        lines = []
        for entry in self._entries:
            at_s, amount = entry.at_ms // 1000, entry.amount_nanos
            month = amount if day.month_start_s <= at_s < day.month_end_s else 0
            today = amount if day.holds(at_s) else 0
            sums = (amount, month, today, 0, 0, 0) if entry.kind == "charge" else (0, 0, 0, amount, month, today)
            lines.append(Spending(entry.account_id, entry.key_id, *sums))
        return lines

    async def list_usage(self, axis: UsageAxis, wanted: UsageFilter) -> Sequence[UsageLine]:
        """Usage summed along ``axis``."""
        found: dict[int | str, list[RequestRow]] = {}
        for stored in self._requests.values():
            if _is_wanted(stored.row, wanted):
                found.setdefault(_label(stored.row, axis), []).append(stored.row)
        lines = [
            UsageLine(
                str(label),
                len(rows),
                sum(row.prompt_tokens for row in rows),
                sum(row.completion_tokens for row in rows),
                sum(row.cached_tokens for row in rows),
                sum(row.cost_nanos for row in rows),
            )
            for label, rows in sorted(found.items())
        ]
        return lines if axis == "day" else sorted(lines, key=lambda line: (-line.cost_nanos, -line.requests))

    async def list_totals(self) -> Sequence[KeyTotals]:
        """Every key's charges as each place has them; usage is read from the requests here."""
        entries = _sum_by_key(
            (e.account_id, e.key_id or 0, e.amount_nanos) for e in self._entries if e.kind == "charge"
        )
        rows = [stored.row for stored in self._requests.values()]
        requests = _sum_by_key((row.account_id, row.key_id, row.cost_nanos) for row in rows)
        return [
            KeyTotals(*owner, entries.get(owner, 0), requests.get(owner, 0), requests.get(owner, 0))
            for owner in sorted(entries.keys() | {owner for owner, total in requests.items() if total})
        ]

    def _add_entry(self, entry: Entry) -> Entry:
        self._entries.append(attrs.evolve(entry, sequence=self._next_id()))
        return self._entries[-1]

    def _credits_of(self, account_id: int, key_id: int | None) -> list[Entry]:
        return [
            entry
            for entry in self._entries
            if entry.kind != "charge" and (entry.account_id, entry.key_id) == (account_id, key_id)
        ]

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _check_account(self, account: Account) -> None:
        if any(other.name == account.name and other.id != account.id for other in self._accounts.values()):
            raise Conflict(f"An account called {account.name!r} exists already", param="name")

    def _check_channel(self, channel: Channel) -> None:
        if any(other.name == channel.name and other.id != channel.id for other in self._channels.values()):
            raise Conflict(f"A channel called {channel.name!r} exists already", param="name")

    def _check_key(self, key: ApiKey) -> None:
        if key.account_id not in self._accounts:
            raise NotFound(f"No account has the id {key.account_id}")
        for other in self._keys.values():
            if other.id == key.id:
                continue
            digests = {digest for digest in (key.digest, key.former_digest) if digest is not None}
            if digests & {other.digest, other.former_digest}:
                raise Conflict("This key's secret is in use already", param="secret")
            if (other.account_id, other.name) == (key.account_id, key.name):
                raise Conflict(f"The account has a key called {key.name!r} already", param="name")


def _matches(stored: StoredRequest, wanted: RequestFilter) -> bool:
    row = stored.row
    return (
        (wanted.key_id is None or row.key_id == wanted.key_id)
        and (wanted.model is None or row.model == wanted.model)
        and (wanted.status is None or row.status == wanted.status)
        and (wanted.channel is None or row.channel == wanted.channel)
        and (wanted.after is None or stored.sequence > wanted.after)
    )


def _is_wanted(row: RequestRow, wanted: UsageFilter) -> bool:
    return (
        counts_as_usage(row)
        and wanted.since <= day_of(row) <= wanted.until
        and wanted.account_id in {None, row.account_id}
        and wanted.key_id in {None, row.key_id}
        and wanted.model in {None, row.model}
    )


def _label(row: RequestRow, axis: UsageAxis) -> int | str:
    if axis == "day":
        return day_of(row)
    return row.model if axis == "model" else row.key_id if axis == "key" else row.account_id


def _sum_by_key(amounts: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
    sums: dict[tuple[int, int], int] = {}
    for account_id, key_id, amount in amounts:
        sums[account_id, key_id] = sums.get((account_id, key_id), 0) + amount
    return sums
