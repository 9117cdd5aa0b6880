"""Credits, spending and usage of accounts and API keys, and their reconciliation."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import structlog

from gateway.billing.balances import Balances
from gateway.billing.write_queue import WriteQueue
from gateway.deferred import load
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.account_spec import CreditSpec, build_time
from gateway.domain.audit_log import OPERATOR, Actor, AuditRow, build_change
from gateway.domain.balance import Balance, Owner, OwnerId, UtcDay
from gateway.domain.ledger import CounterDifference, LedgerEntry, UsageAxis, UsageFilter, UsageLine
from gateway.domain.price import NANOS_PER_USD, nanos
from gateway.errors import InvalidRequest, StoreUnavailable
from gateway.storage.ledger import LedgerRepository

if TYPE_CHECKING:
    from gateway.billing import reconcile
    from gateway.billing.live_limits import LiveLimits
    from gateway.domain.credit import CreditFigures

Fields = dict[str, Any]
MAX_BALANCE_NANOS = 2**62
"""The largest amount, positive or negative, to which a credit may bring a balance, in nano-USD."""

log = structlog.stdlib.get_logger(__name__)


class AccountingService:
    """Reads, credits and reconciles the balances of accounts and keys.

    Args:
        queue: settled requests that are not in the ledger yet. No job ends while its ``writing`` lock is held.
        check_leases: returns the problems of this node's leases in a cluster; None in a single process.
        limits: the limits that follow the time zones of accounts.
    """

    def __init__(
        self,
        balances: Balances,
        ledger: LedgerRepository,
        queue: WriteQueue,
        *,
        clock: Callable[[], float],
        jobs: "reconcile.Jobs | None",
        check_leases: Callable[[], Awaitable[Sequence[str]]] | None,
        limits: "LiveLimits | None" = None,
    ) -> None:
        self._balances = balances
        self._ledger = ledger
        self._queue = queue
        self._clock = clock
        self._credit_lock = asyncio.Lock()
        self._whole_balances: dict[OwnerId, Balance] = {}
        self.jobs = jobs
        self._check_leases = check_leases
        self._limits = limits
        self._loading_task: asyncio.Task[None] | None = None
        balances.load_day = self._start_loading

    async def close(self) -> None:
        if self._loading_task is not None:
            await asyncio.gather(self._loading_task, return_exceptions=True)

    def _start_loading(self) -> None:
        if self._loading_task is None:
            self._loading_task = asyncio.get_running_loop().create_task(self._load_day())

    async def _load_day(self) -> None:
        try:
            async with self._credit_lock, self._queue.writing:
                while not await self._correct_day():
                    pass
        except StoreUnavailable as error:
            log.warning("daily_spending_not_loaded", error=error.message)
        finally:
            self._loading_task = None

    async def _correct_day(self) -> bool:
        """Correct the balances of the current day by the ledger. Return False if a time zone was changed meanwhile."""
        from gateway.billing import reconcile  # noqa: PLC0415 - first needed on the second day

        balances = self._balances
        day, recount = balances.parse_day(self._clock()), balances.make_empty()
        # Both copies must be of the same moment: a request settled while the ledger is read is in neither.
        memory_sums, pending_rows = reconcile.copy_sums(balances, day), self._queue.list_rows()
        ledger_sums = await reconcile.recompute_sums(self._ledger, pending_rows, day, recount)
        latest_s = await reconcile.find_latest_s(self._ledger, pending_rows, day, recount.zones)
        if recount.zones != balances.zones:
            return False
        for balance_id in memory_sums.keys() | ledger_sums.keys():
            if balances.is_gone(*balance_id):
                continue
            ledger_amounts = ledger_sums.get(balance_id, reconcile.NO_SUMS)
            memory_amounts = memory_sums.get(balance_id, reconcile.NO_SUMS)
            differences_nanos = [
                ledger_nanos - memory_nanos
                for ledger_nanos, memory_nanos in zip(ledger_amounts[2:], memory_amounts[2:], strict=True)
            ]
            if any(differences_nanos):
                balances.find_balance(*balance_id).correct(differences_nanos, day)
        balances.confirm(day, latest_s=latest_s)
        return True

    async def _await_day(self) -> None:
        """Wait while the current day's spending is being read, after the clock or a time zone was changed."""
        self._balances.day_at(self._clock())
        await self.close()

    def drop_gone(self, existing: Mapping[Owner, Collection[int]], gone: Mapping[Owner, Collection[int]]) -> None:
        """Drop the balances and time zones of deleted keys and accounts. ``existing`` are the ids of all that exist."""
        self._balances.drop_gone(existing, gone)
        for owner, ids in gone.items():
            for owner_id in ids:
                self._whole_balances.pop((owner, owner_id), None)
        for account_id in gone["account"]:
            self._balances.zones.pop(account_id, None)
            if self._limits is not None:
                self._limits.drop_account(account_id)

    def set_zones(self, accounts: Iterable[Account], callers: Iterable[Caller]) -> None:
        """Let quotas and limits follow the time zones of ``accounts``. ``callers`` are all keys in force.

        In a cluster only limits follow them.
        """
        zoned_accounts = [account for account in accounts if account.zones]
        if zoned_accounts:
            balances = self._balances if self._check_leases is None else None  # quotas of nodes: ``zone_quotas``
            load("billing.zone_days:set_zones")(zoned_accounts, callers, balances, self._limits)

    async def refresh(self, *owners: Account | ApiKey) -> None:
        """Bring balances up to date: wait while the current day is being read, then read those that nodes share."""
        await self._await_day()
        await self._read_shared(*owners)

    async def _read_shared(self, *owners: Account | ApiKey) -> None:
        figures = await self._ledger.find_figures([_find_balance_id(owner) for owner in owners])
        if figures is None:
            return
        day = self._balances.today
        for owner in owners:
            balance_id = _find_balance_id(owner)
            if not self._balances.is_gone(*balance_id):  # the owner may have been deleted meanwhile
                self._whole_balances[balance_id] = _build_cluster_balance(owner, figures[balance_id], day)

    def list_balances(self, owner: Owner) -> list[tuple[int, Balance]]:
        """Return every balance with its owner's id. Balances shared with other nodes are as of the last read."""
        whole_balances = [
            (number, balance) for (kind, number), balance in self._whole_balances.items() if kind == owner
        ]
        own_balances = self._balances.list_balances(owner)
        # A leased balance is a class below: this node's part of a balance that the other list has whole.
        return whole_balances + [(number, balance) for number, balance in own_balances if type(balance) is Balance]

    def day_at(self, now_s: float) -> UtcDay:
        return self._balances.day_at(now_s)

    def describe(self, owner: Account | ApiKey) -> Fields:
        """Return an account's or key's amounts in USD, and when its quota is reset.

        ``left_usd`` is None without a quota, ``resets_at`` without a reset.
        """
        balance, day = self.find_balance(owner)
        counter = balance.find_counter(day)
        room_nanos, resets_s = balance.find_room(day), balance.find_reset(day)
        return {
            "spent_usd": counter.spent_nanos / NANOS_PER_USD,
            "credit_usd": counter.credit_nanos / NANOS_PER_USD,
            "held_usd": balance.held_nanos / NANOS_PER_USD,
            "left_usd": None if room_nanos is None else room_nanos / NANOS_PER_USD,
            "overrun_usd": counter.overrun_nanos / NANOS_PER_USD,
            "resets_at": None if resets_s is None else build_time(resets_s),
        }

    def find_stricter(self, key: ApiKey, account: Account) -> tuple[Balance, UtcDay]:
        """Return the balance with less left (the key's if neither has a quota), and the current day."""
        (key_balance, day), (account_balance, _) = self.find_balance(key), self.find_balance(account)
        key_room, account_room = key_balance.find_room(day), account_balance.find_room(day)
        return (
            account_balance
            if account_room is not None and (key_room is None or account_room < key_room)
            else key_balance
        ), day

    async def credit(
        self, owner: Account | ApiKey, spec: CreditSpec, by: Actor = OPERATOR, *, subject: str = ""
    ) -> Fields:
        """Add to a balance, or set it, by a ledger entry; return entry and balance.

        A repetition with the same ``reference`` adds nothing.

        ``subject`` is the owner's name in the audit log; the default is ``owner.name``.

        Raises ``InvalidRequest`` if the owner has no quota or the balance would be too large, and ``Conflict`` if
        the reference was used for another credit.
        """
        await self._await_day()
        async with self._credit_lock:
            await self._read_shared(owner)
            balance, day = self.find_balance(owner)
            now_ms = int(self._clock() * 1000)
            account_id, key_id = _identify(owner)
            action = "account.credited" if key_id is None else "key.credited"

            def decide(whole_balance: Balance) -> tuple[LedgerEntry, AuditRow]:
                available_nanos, amount_nanos = _find_amount(whole_balance, spec, day)
                entry = LedgerEntry(
                    0, now_ms, spec.kind, account_id, key_id, amount_nanos, None, spec.reference, spec.note
                )
                detail = _build_credit(entry, available_nanos)
                return entry, by.build_audit_row(
                    action, subject or owner.name, now_ms, account_id=account_id, detail=detail
                )

            entry, added = await self._ledger.add_credit(
                *decide(balance), lambda figures: decide(_build_cluster_balance(owner, figures, day))
            )
            if added:
                balance.add_credit(entry.amount_nanos, self._balances.day_at(now_ms / 1000))
                self._balances.note_credit(*_find_balance_id(owner), entry.amount_nanos)
        return {**_build_entry_fields(entry), "added": added, **self.describe(owner)}

    async def list_credits(self, owner: Account | ApiKey, limit: int) -> list[Fields]:
        return [_build_entry_fields(entry) for entry in await self._ledger.list_credits(*_identify(owner), limit)]

    async def list_usage(self, axis: UsageAxis, usage_filter: UsageFilter) -> Sequence[UsageLine]:
        return await self._ledger.list_usage(axis, usage_filter)

    async def reconcile(self) -> Fields:
        from gateway.billing import reconcile  # noqa: PLC0415 - only to verify

        cluster_audit = await self._ledger.audit_cluster()
        if cluster_audit is not None:
            problems = [] if self._check_leases is None else [*await self._check_leases()]
            problems += self._list_limit_problems(cluster_audit.counter_differences)
            return await reconcile.reconcile_node(self._balances, self._queue, self.jobs, cluster_audit, problems)
        await self._await_day()
        async with self._credit_lock, self._queue.writing:
            limits, reservations = self._balances.limits, tuple(self._balances.reservations)
            problems = [] if limits is None else await limits.list_problems(reservations)
            report = await reconcile.reconcile(self._balances, self._ledger, self._queue, self.jobs)
            return {**report, "ok": report["ok"] and not problems, "problems": [*report["problems"], *problems]}

    def _list_limit_problems(self, differences: Sequence[CounterDifference]) -> list[str]:
        """Return the errors of limits on a node: its reservations, and sums that differ from the stored requests."""
        limits = self._balances.limits
        if limits is None and not differences:
            return []
        from gateway.billing.limit_check import list_node_problems  # noqa: PLC0415 - only to verify

        books = () if limits is None else limits.list_books()
        return list_node_problems(books, tuple(self._balances.reservations), differences, self._clock())

    def find_balance(self, owner: Account | ApiKey) -> tuple[Balance, UtcDay]:
        """Return the balance with the owner's quota, and the current day."""
        day = self._balances.today
        balance_id = _find_balance_id(owner)
        account_id = owner.id if isinstance(owner, Account) else owner.account_id
        balance = self._whole_balances.get(balance_id) or self._balances.find_balance(*balance_id, account_id)
        balance.set_quota(owner.quota, day)
        return balance, day


def _build_cluster_balance(owner: Account | ApiKey, figures: "CreditFigures", day: UtcDay) -> Balance:
    """Return the whole balance of ``owner`` from the store's figures, including other nodes' spending."""
    whole_balance = Balance("account" if isinstance(owner, Account) else "key")
    whole_balance.set_quota(owner.quota, day)
    counter = whole_balance.find_counter(day)
    whole_balance.held_nanos = figures.held_nanos
    counter.spent_nanos, counter.credit_nanos = figures.spent_nanos, figures.credit_nanos
    whole_balance.restore(0, day)  # records an excess over the limit as an overrun
    return whole_balance


def _find_amount(balance: Balance, spec: CreditSpec, day: UtcDay) -> tuple[int, int]:
    """Return the available amount before a credit and the amount to add, in nano-USD. Raises ``InvalidRequest``."""
    available_nanos = balance.find_balance(day)
    if available_nanos is None:
        raise InvalidRequest("There is no quota to add to; set one first", param="quota_usd")
    amount_nanos = nanos(spec.amount_usd) - (available_nanos if spec.kind == "set" else 0)
    if abs(available_nanos + amount_nanos) > MAX_BALANCE_NANOS:
        raise InvalidRequest("The balance would be more than this gateway can count", param="amount_usd")
    return available_nanos, amount_nanos


def _find_balance_id(owner: Account | ApiKey) -> OwnerId:
    return ("account" if isinstance(owner, Account) else "key"), owner.id


def _identify(owner: Account | ApiKey) -> tuple[int, int | None]:
    return (owner.id, None) if isinstance(owner, Account) else (owner.account_id, owner.id)


def _build_entry_fields(entry: LedgerEntry) -> Fields:
    fields = attrs.asdict(entry)
    del fields["request_id"]
    at_ms, amount_nanos = fields.pop("at_ms"), fields.pop("amount_nanos")
    return {**fields, "at": build_time(at_ms // 1000), "amount_usd": amount_nanos / NANOS_PER_USD}


def _build_credit(entry: LedgerEntry, available_nanos: int) -> str:
    fields = {"kind": entry.kind, "reference": entry.reference, "note": entry.note}
    before, after = available_nanos / NANOS_PER_USD, (available_nanos + entry.amount_nanos) / NANOS_PER_USD
    return build_change({"left_usd": before}, {"left_usd": after, **fields})
