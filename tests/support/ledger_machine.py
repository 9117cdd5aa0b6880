"""Any order of calls, credits, changes, midnights, full disks and crashes: the books stay right, to the nano-USD.

Beside the real parts runs a reckoning of the simplest kind: a list of movements, added up anew for every question.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway import errors
from gateway.auth.accounts import AccountRules, AccountService
from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.account_spec import CreditSpec
from gateway.domain.balance import Owner, QuotaPeriod, parse_day
from gateway.domain.ledger import OnCrash
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import Outcome
from gateway.domain.usage import MAX_TOKENS
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.request_context import RequestContext
from tests.support.billing_services import BillingServices, ModelDisk, call_for, unix

T = TypeVar("T")
Place = tuple[Owner, int]
"""A purse: whose, and the owner's id."""

COSTS = st.integers(0, 12)
LIMITS = st.integers(0, 30)
PERIODS: st.SearchStrategy[QuotaPeriod] = st.sampled_from(["none", "lifetime", "daily", "monthly"])
CRASHES: st.SearchStrategy[OnCrash] = st.sampled_from(["release", "charge"])
OUTCOMES: st.SearchStrategy[Outcome] = st.sampled_from(["client_closed", "interrupted", "failed"])
ANY = st.integers(0, 10**6)
"""One of however many there are."""
FOR_EVER = 10**12


def usd(nanos: int) -> Decimal:
    return Decimal(nanos) / NANOS_PER_USD


def pick(items: list[T], index: int) -> T:
    return items[index % len(items)]


async def _let_go(_: int) -> None: ...


@attrs.frozen
class Movement:
    """Money that was spent or credited, and when (Unix seconds)."""

    place: Place
    kind: str
    at_s: float
    nanos: int


@attrs.frozen(eq=False)
class Running:
    """A call that was granted, and what is held for it in which purses."""

    ctx: RequestContext
    nanos: int
    places: tuple[Place, Place]


class LedgerMachine(RuleBasedStateMachine):
    """Two accounts, their keys, and everything that can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.billing = BillingServices(self.folder, now=unix("2027-12-30T12:00"), disk=ModelDisk())
        self.quotas: dict[Place, tuple[int, QuotaPeriod]] = {}
        self.at_once: dict[Place, int | None] = {}
        self.secrets: dict[int, str] = {}
        self.deleted: set[Place] = set()
        self.references: dict[tuple[Place, str], tuple[str, int]] = {}
        self.movements: list[Movement] = []
        self.running: list[Running] = []
        self.ended: list[Running] = []
        self.granted: list[str] = []
        self.looked = True
        self.latest_s = self.billing.now
        self.open_offices()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def open_offices(self) -> None:
        disk = self.billing.disk
        self.directory = ApiKeyAuthenticator(
            disk,
            disk,
            pepper=b"p" * 32,
            clock=lambda: self.billing.now,
            note_accounts=self.billing.accounting.set_zones,
        )
        self.accounts = AccountService(
            disk,
            disk,
            self.directory,
            self.billing.accounting,
            clock=lambda: self.billing.now,
            rules=AccountRules(tuple, lambda: None, _let_go, shared=False),
        )
        self.do(self.accounts.reload())
        day = parse_day(self.billing.now)
        before = parse_day(day.start_s - 1)  # a start reads the day before, too
        earlier = before.month_start_s if before.month_start_s != day.month_start_s else 0
        self.days, self.months = [day.start_s, before.start_s], [day.month_start_s, earlier]

    # the reckoning

    def sum_up(self, place: Place, kind: str, period: QuotaPeriod) -> int:
        day = parse_day(self.billing.now)
        begin, end = 0, FOR_EVER
        if period == "daily":
            begin, end = day.start_s, day.end_s
        elif period == "monthly":
            begin, end = day.month_start_s, day.month_end_s
        return sum(
            movement.nanos
            for movement in self.movements
            if (movement.place, movement.kind) == (place, kind) and begin <= movement.at_s < end
        )

    def find_held(self, place: Place) -> int:
        return sum(call.nanos for call in self.running if place in call.places)

    def find_room(self, place: Place) -> int | None:
        limit, period = self.quotas[place]
        if period == "none":
            return None
        spent, credited = self.sum_up(place, "spent", period), self.sum_up(place, "credited", period)
        return limit + credited - spent - self.find_held(place)

    def find_reset(self, place: Place) -> float:
        day, period = parse_day(self.billing.now), self.quotas[place][1]
        return day.end_s if period == "daily" else day.month_end_s if period == "monthly" else FOR_EVER

    def move(self, places: tuple[Place, ...], kind: str, nanos: int) -> None:
        self.movements += [Movement(place, kind, self.billing.now, nanos) for place in places]

    def list_places(self) -> list[Place]:
        return [place for place in self.quotas if place not in self.deleted]

    def list_keys(self) -> list[int]:
        return [owner_id for owner, owner_id in self.quotas if owner == "key"]

    def get_owner(self, place: Place) -> Account | ApiKey:
        if place[0] == "key":
            return self.do(self.accounts.get_stored_key(place[1]))
        return next(found for found in self.do(self.billing.disk.list_accounts()) if found.id == place[1])

    # accounts and keys

    @initialize(limits=st.tuples(LIMITS, LIMITS), periods=st.tuples(PERIODS, PERIODS))
    def open_accounts(self, limits: tuple[int, int], periods: tuple[QuotaPeriod, QuotaPeriod]) -> None:
        for name, limit, period in zip(("one", "other"), limits, periods, strict=True):
            fields = {"name": name, "quota_usd": usd(limit), "quota_period": period}
            self.quotas["account", self.do(self.accounts.add_account(fields))["id"]] = limit, period
            self.add_key(name, limit // 2, period, None)

    @precondition(lambda self: len(self.quotas) < 8)
    @rule(
        account=st.sampled_from(["one", "other"]), limit=LIMITS, period=PERIODS, at_once=st.sampled_from([None, 1, 2])
    )
    def add_key(self, account: str, limit: int, period: QuotaPeriod, at_once: int | None) -> None:
        number = len(self.quotas)
        secret = f"sk-secret-of-key-{number:04}"
        fields = {"name": f"key {number}", "account": account, "secret": secret, "quota_usd": usd(limit)}
        fields |= {"quota_period": period} | ({} if at_once is None else {"max_concurrency": at_once})
        made = self.do(self.accounts.add_key(fields))
        self.secrets[made["id"]] = secret
        self.quotas["key", made["id"]] = limit, period
        self.at_once["key", made["id"]] = at_once

    @rule(index=ANY, limit=LIMITS, period=PERIODS)
    def change_a_cap(self, index: int, limit: int, period: QuotaPeriod) -> None:
        place = pick(self.list_places(), index)
        fields = {"quota_usd": usd(limit), "quota_period": period}
        owner = self.get_owner(place)
        if isinstance(owner, Account):
            self.do(self.accounts.edit_account(owner.name, fields))
        else:
            self.do(self.accounts.edit_key(owner.id, fields))
        self.quotas[place] = limit, period

    @rule(index=ANY, status=st.sampled_from(["active", "disabled"]))
    def revoke_or_restore_a_key(self, index: int, status: str) -> None:
        key_id = pick(self.list_keys(), index)
        if ("key", key_id) not in self.deleted:
            self.do(self.accounts.edit_key(key_id, {"status": status}))

    @rule(index=ANY)
    def delete_a_key(self, index: int) -> None:
        key_id = pick(self.list_keys(), index)
        if ("key", key_id) not in self.deleted:
            self.do(self.accounts.delete_key(key_id))
            self.deleted.add(("key", key_id))

    # calls

    @rule(index=ANY, nanos=COSTS)
    def admit(self, index: int, nanos: int) -> None:
        key_id = pick(self.list_keys(), index)
        try:
            caller = self.directory.authenticate(f"Bearer {self.secrets[key_id]}")
        except errors.InvalidApiKey:
            assert ("key", key_id) in self.deleted
            return
        except errors.KeyDisabled:
            key = self.get_owner(("key", key_id))
            assert key.status == "disabled"
            return
        places: tuple[Place, Place] = ("key", key_id), ("account", caller.account.id)
        if self.billing.write_queue.full:
            with pytest.raises(errors.StoreUnavailable):
                self.do(self.billing.admit(caller, call_for(nanos)))
            return
        short = [place for place in places if (room := self.find_room(place)) is not None and room < nanos]
        if nanos and short:
            self.expect_refusal(caller, nanos, max(short, key=self.find_reset))
            return
        at_once = self.at_once[places[0]]
        if at_once is not None and sum(places == call.places for call in self.running) >= at_once:
            with pytest.raises(errors.RateLimited):
                self.do(self.billing.admit(caller, call_for(nanos)))
            return
        ctx = self.do(self.billing.admit(caller, call_for(nanos)))
        self.running.append(Running(ctx, nanos, places))
        self.granted.append(ctx.id)

    def expect_refusal(self, caller: Caller, nanos: int, reported: Place) -> None:
        with pytest.raises(errors.QuotaExceeded) as caught:
            self.do(self.billing.admit(caller, call_for(nanos)))
        error, reset = caught.value, self.find_reset(reported)
        assert ("this API key" if reported[0] == "key" else "the account") in error.message
        assert self.quotas[reported][1] in error.message
        if reset == FOR_EVER:
            assert (error.status, error.retry_after_s) == (403, None)
        else:
            assert error.status == 429
            assert error.retry_after_s is not None
            assert 0 <= error.retry_after_s - (reset - self.billing.now) < 1

    @precondition(lambda self: self.running)
    @rule(index=ANY, cost=COSTS)
    def settle(self, index: int, cost: int) -> None:
        call = self.running.pop(index % len(self.running))
        row = self.billing.settle(call.ctx, cost)
        assert (row.cost_nanos, row.reserved_nanos) == (cost, call.nanos)
        self.move(call.places, "spent", cost)
        self.ended.append(call)

    @precondition(lambda self: self.running)
    @rule(index=ANY, outcome=OUTCOMES, written=st.booleans())
    def abort(self, index: int, outcome: Outcome, written: bool) -> None:
        """Whoever leaves pays for the prompt, and never more than was held, if a provider has been sent it."""
        call = self.running.pop(index % len(self.running))
        row = self.billing.abort(call.ctx, outcome, written=written)
        assert call.ctx.inference is not None
        expected = estimate_prompt(call.ctx.inference) if written else 0
        assert (row.outcome, row.cost_nanos, row.reserved_nanos) == (outcome, expected, call.nanos)
        assert 0 <= row.cost_nanos <= row.reserved_nanos
        self.move(call.places, "spent", row.cost_nanos)
        self.ended.append(call)

    @precondition(lambda self: self.running)
    @rule(index=ANY, claim=st.sampled_from([10**6, MAX_TOKENS]))
    def settle_for_what_cannot_be(self, index: int, claim: int) -> None:
        call = self.running.pop(index % len(self.running))
        row = self.billing.settle(call.ctx, claim)
        assert (row.cost_nanos, row.reserved_nanos, row.usage_source) == (call.nanos, call.nanos, "bound")
        self.move(call.places, "spent", row.cost_nanos)
        self.ended.append(call)

    @precondition(lambda self: self.ended)
    @rule(index=ANY, cost=COSTS)
    def settle_again(self, index: int, cost: int) -> None:
        call = pick(self.ended, index)
        row = call.ctx.record
        assert self.billing.settle(call.ctx, cost) is row

    @rule(index=ANY)
    def refuse(self, index: int) -> None:
        place: Place = "key", pick(self.list_keys(), index)
        if place not in self.deleted:
            key = self.get_owner(place)
            assert isinstance(key, ApiKey)
            ctx = self.billing.arrive(Caller(Account(key.account_id, "?"), key))
            self.billing.settlement.settle(ctx, "refused", **self.billing.times)

    # money

    @rule(index=ANY, nanos=st.integers(-12, 25), reference=st.sampled_from([None, None, "a", "b"]))
    def top_up(self, index: int, nanos: int, reference: str | None) -> None:
        self.credit(pick(self.list_places(), index), CreditSpec(usd(nanos), "top_up", reference))

    @rule(index=ANY, nanos=st.integers(-5, 25), reference=st.sampled_from([None, None, "a", "b"]))
    def set_balance(self, index: int, nanos: int, reference: str | None) -> None:
        self.credit(pick(self.list_places(), index), CreditSpec(usd(nanos), "set", reference))

    def credit(self, place: Place, spec: CreditSpec) -> None:
        owner, nanos, room = self.get_owner(place), int(spec.amount_usd * NANOS_PER_USD), self.find_room(place)
        known = None if spec.reference is None else self.references.get((place, spec.reference))
        expected: type[Exception] | None = None
        if room is None:
            expected = errors.InvalidRequest
        elif self.billing.disk.full:
            expected = errors.StoreUnavailable
        elif known is not None and (known[0] != spec.kind or (spec.kind == "top_up" and known[1] != nanos)):
            expected = errors.Conflict
        if expected is not None or room is None:
            with pytest.raises(expected or errors.InvalidRequest):
                self.do(self.billing.accounting.credit(owner, spec))
            return
        answer = self.do(self.billing.accounting.credit(owner, spec))
        assert answer["added"] is (known is None)
        if known is None:
            amount = nanos if spec.kind == "top_up" else nanos - room - self.find_held(place)
            self.move((place,), "credited", amount)
            if spec.reference is not None:
                self.references[place, spec.reference] = spec.kind, nanos

    # the store

    @rule()
    def flush(self) -> None:
        waiting = len(self.billing.write_queue)
        stored = self.do(self.billing.flush.flush())
        assert stored is (not self.billing.disk.full or not waiting)

    @rule(full=st.booleans())
    def fill_or_clear_the_disk(self, full: bool) -> None:
        self.billing.disk.full = full
        self.do(self.billing.flush.flush())

    @rule(on_crash=CRASHES)
    def crash(self, on_crash: OnCrash) -> None:
        try:
            self.do(self.billing.crash(on_crash))
        except errors.StoreUnavailable:
            assert self.billing.disk.full
            self.billing.disk.full = False
            self.do(self.billing.crash(on_crash))
        for call in self.running:
            if on_crash == "charge":
                self.move(call.places, "spent", call.nanos)
        self.running, self.ended = [], []
        self.open_offices()

    # the clock

    def turn(self, now: float, *, looked: bool = True) -> None:
        """Set the clock, but to no day or month that had its money and that this process does not remember.

        A purse knows the period that runs and the one that ran before it: enough for a clock that is set back over
        midnight, also the one before the start of the process, not for one that is set back twice.
        """
        day = parse_day(now)
        for known, start_s, end_s in (
            (self.days, day.start_s, day.end_s),
            (self.months, day.month_start_s, day.month_end_s),
        ):
            if start_s not in known and any(start_s <= movement.at_s < end_s for movement in self.movements):
                return
        self.billing.now = now
        # A purse remembers only what it was looked at in. An earlier day is read, and a request would not wait for it.
        self.looked = looked or day.start_s in self.days or day.start_s <= self.latest_s
        self.latest_s = max(self.latest_s, now)
        for known, start_s in ((self.days, day.start_s), (self.months, day.month_start_s)):
            if known[0] != start_s:
                known[:] = [start_s, known[0]]

    @rule(seconds=st.integers(1, 50_000), looked=st.booleans())
    def let_time_pass(self, seconds: int, looked: bool) -> None:
        self.turn(self.billing.now + seconds, looked=looked)

    @rule(looked=st.booleans())
    def next_day(self, looked: bool) -> None:
        self.turn(parse_day(self.billing.now).end_s, looked=looked)

    @rule(looked=st.booleans())
    def next_month(self, looked: bool) -> None:
        self.turn(parse_day(self.billing.now).month_end_s + 0.5, looked=looked)

    @rule(seconds=st.integers(1, 86_400))
    def set_the_clock_back(self, seconds: int) -> None:
        self.turn(self.billing.now - seconds)

    # what is always so

    @invariant()
    def the_books_agree(self) -> None:
        if not self.looked:  # the first request after midnight need not be the auditor's
            self.looked = True
            return
        report = self.do(self.billing.accounting.reconcile())
        assert report["ok"], report["problems"]
        assert report["open_holds"] == len(self.running)
        for place in self.list_places():
            shown, room = self.billing.accounting.describe(self.get_owner(place)), self.find_room(place)
            assert shown["left_usd"] == (None if room is None else room / NANOS_PER_USD)
            assert shown["held_usd"] == self.find_held(place) / NANOS_PER_USD
        rows = [*self.do(self.billing.disk.rows()), *self.billing.write_queue.list_rows()]
        assert len({row.id for row in rows}) == len(rows)
        for place in self.quotas:
            balance = self.billing.balances.find_balance(*place)
            tally = balance.find_counter(self.billing.balances.today)
            spent = sum(row.cost_nanos for row in rows if place in {("key", row.key_id), ("account", row.account_id)})
            assert balance.lifetime.spent_nanos == spent == self.sum_up(place, "spent", "lifetime")
            assert balance.held_nanos == self.find_held(place)
            assert tally.spent_nanos >= 0
            limit = balance.quota.limit_nanos
            if balance.quota.capped and limit is not None:
                assert tally.spent_nanos + balance.held_nanos <= limit + tally.credit_nanos + tally.overrun_nanos

    def teardown(self) -> None:
        try:
            while self.running:
                self.settle(0, 1)
            self.billing.disk.full = False
            self.do(self.billing.flush.flush())
            rows = self.do(self.billing.disk.rows())
            assert sorted(row.id for row in rows if row.outcome != "refused") == sorted(self.granted)
            self.looked = True
            self.the_books_agree()
        finally:
            self.billing.close()
            self.do(self.billing.disk.database.close())
            self.loop.close()
            shutil.rmtree(self.folder)
