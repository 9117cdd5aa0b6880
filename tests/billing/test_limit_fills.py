"""Limits that come, change and go while requests run and earlier ones are counted, over crashes: against a recount.

A limit counts everything that its subjects have spent in its window, whenever it came into force. What is counted so
far decides meanwhile, and the sums agree with the stored requests at every moment.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from decimal import Decimal
from typing import Any, TypeVar

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete

from gateway.billing.balances import Balances
from gateway.billing.limit_filler import LimitFiller
from gateway.billing.limit_spec import LimitSpec
from gateway.billing.live_limits import LiveLimits
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.attribution import Attribution
from gateway.domain.balance import Reservation
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.limit import Limit
from gateway.domain.limit_balance import LimitReservation
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import RequestRecord
from gateway.errors import QuotaExceeded
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.ledger import LedgerRepository
from gateway.storage.schema import limit_fills
from tests.support.contexts import make_context
from tests.support.repositories import LazyDatabase
from tests.support.request_records import make_row

T = TypeVar("T")

ACCOUNTS = (Account(1, "acme"), Account(2, "beta"))
KEYS = tuple(
    ApiKey(number, account_id, name, bytes([number] * 32), "last")
    for number, account_id, name in ((1, 1, "app"), (2, 1, "other"), (3, 2, "app"))
)
SUBJECTS = ("user", "session", "tag:team", "key", "account", "model:m*")
WINDOWS = ("hour", "day", "week", "lifetime", "rolling:1h", "rolling:24h")
USERS, SESSIONS = ("", "ann", "bob"), ("", "s1", "s2")
TAGS, MODELS = ("", "team=web"), ("m1", "x")
ANY = st.integers(0, 10**6)
SPECS = st.builds(
    lambda name, of, window, cap, keys: LimitSpec(
        name, of=of, window=window, usd=Decimal(cap) / NANOS_PER_USD, keys=keys, timezone="Asia/Kathmandu"
    ),
    st.sampled_from(["one", "two"]),
    st.sampled_from(SUBJECTS),
    st.sampled_from(WINDOWS),
    st.integers(0, 300),
    st.sampled_from([(), ("app",), ("app", "other")]),
)


@attrs.frozen(eq=False)
class Running:
    """A request that was admitted, as the row that it would leave."""

    row: RequestRecord
    nanos: int
    reservation: Reservation

    def is_under(self, limit: Limit) -> bool:
        held = self.reservation
        return isinstance(held, LimitReservation) and any(
            balance.book.counter == limit.counter for balance in held.limit_balances
        )


def find_subject(limit: Limit, row: RequestRecord) -> str | None:
    """The subject that a row belongs to, by the words of the documentation."""
    if limit.keys and row.key_name not in limit.keys:
        return None
    if limit.kind == "key":
        return str(row.key_id)
    if limit.kind == "account" or (limit.kind == "model" and row.model.startswith("m")):
        return str(row.account_id)
    value = {"user": row.end_user, "session": row.session, "tag": row.tags.removeprefix("team=")}.get(limit.kind)
    return f"{row.account_id}:{value}" if value else None


class FillMachine:
    """Three keys of two accounts, with two users, sessions, tags and models each."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.database = LazyDatabase()
        self.now_s = 1_750_000_000.0
        self.specs: tuple[LimitSpec, ...] = ()
        self.spent: list[RequestRecord] = []
        self.running: list[Running] = []
        self.number = 0
        self.counted_keys: dict[str, set[str]] = {}
        self.lost_keys: set[str] = set()
        """The counters of limits that have lost a key: they may still count what it had spent."""
        self.queue = WriteQueue()
        self.filler: LimitFiller | None = None
        self.do(self.add_keys())
        self.do(self.start([]))

    async def add_keys(self) -> None:
        for account in ACCOUNTS:
            await AccountRepository(self.database).add_account(account)
        for key in KEYS:
            assert (await ApiKeyRepository(self.database).add_key(key)).id == key.id

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def start(self, interrupted_rows: Sequence[RequestRecord]) -> None:
        """Start as a gateway does: the limits first, then what the former process has left behind."""
        waiting_rows, self.queue = self.queue.list_rows(), WriteQueue()
        self.limits = LiveLimits(self.database, self.queue, lambda: self.now_s)
        self.limits.replace(self.specs)
        rows = [attrs.evolve(row, limit_charges=self.limits.list_charges(row)) for row in interrupted_rows]
        await LedgerRepository(self.database).post_again([*waiting_rows, *rows])
        self.balances = Balances(lambda: self.now_s)
        self.limits.attach(self.balances)
        self.filler = None
        if not self.specs:  # as ``LiveLimits.fill`` begins
            await self.database.change(delete(limit_fills))

    def find_filler(self) -> LimitFiller:
        assert self.limits.spending is not None
        if self.filler is None:
            self.filler = LimitFiller(
                self.database, self.queue, self.limits.spending, lambda: self.now_s, max_rows=self.number % 3 + 1
            )
        return self.filler

    def is_filled(self, counter: str) -> bool:
        spending = self.limits.spending
        return (
            spending is not None
            and self.filler is not None
            and not spending.changed.is_set()
            and counter not in self.filler.open_counters
        )

    def sum_up(self, limit: Limit, subject: str) -> tuple[int, int]:
        """What a subject has spent in the present window, and what is reserved for it under the limit."""
        first_s = limit.window.find(self.now_s, limit.build_zone())[0] - limit.window.rolling_s
        spent = sum(
            row.cost_nanos
            for row in self.spent
            if row.settled_ms >= first_s * 1000 and find_subject(limit, row) == subject
        )
        calls = [call for call in self.running if call.is_under(limit)]  # though its keys may have changed since
        any_key = attrs.evolve(limit, keys=())
        return spent, sum(call.nanos for call in calls if find_subject(any_key, call.row) == subject)

    # what happens

    def change(self, specs: list[LimitSpec]) -> None:
        self.specs = tuple(specs)
        for spec in specs:
            keys = set(spec.keys or [key.name for key in KEYS])
            known = self.counted_keys.setdefault(spec.limit().counter, set())
            if not known <= keys:
                self.lost_keys.add(spec.limit().counter)
            known |= keys

        async def work() -> None:
            self.limits.replace(specs)

        self.do(work())

    def remove(self, index: int) -> None:
        if self.specs:
            position = index % len(self.specs)
            self.change([*self.specs[:position], *self.specs[position + 1 :]])

    def admit(self, key_index: int, picks: int, nanos: int) -> None:
        self.number += 1
        key = KEYS[key_index]
        who = Attribution(USERS[picks % 3], SESSIONS[picks // 3 % 3], TAGS[picks // 9 % 2])
        model = MODELS[picks // 18 % 2]
        names = {"key_name": key.name, "model": model, **who._asdict()}
        row = make_row(self.number, account_id=key.account_id, key_id=key.id, attempts=1, **names)
        caller = Caller(ACCOUNTS[key.account_id - 1], key)
        ctx = make_context(caller, InferenceRequest("chat", model, {}), attribution=who)
        limits = [spec.limit() for spec in self.specs]
        subjects = [(limit, subject) for limit in limits if (subject := find_subject(limit, row)) is not None]
        rooms = {limit: (limit.cap_nanos or 0) - sum(self.sum_up(limit, subject)) for limit, subject in subjects}
        must_fit = [room for limit, room in rooms.items() if self.is_filled(limit.counter)]
        exact = not any(limit.counter in self.lost_keys for limit in rooms)
        try:
            reservation = self.do(self.balances.reserve(ctx.caller, nanos, ctx))
        except QuotaExceeded:
            assert not exact or any(room < nanos for room in rooms.values()), "it counts more than was spent"
        else:
            assert not nanos or all(room >= nanos for room in must_fit), "it counts less than was spent"
            self.running.append(Running(row, nanos, reservation))

    def settle(self, index: int, cost: int) -> None:
        if not self.running:
            return
        call = self.running.pop(index % len(self.running))
        self.balances.settle(call.reservation, cost, self.now_s)
        row = attrs.evolve(
            call.row, cost_nanos=cost, settled_ms=int(self.now_s * 1000), limit_charges=call.reservation.limit_charges
        )
        self.spent.append(row)
        self.queue.put(row)

    def pass_time(self, seconds: int) -> None:
        self.now_s += seconds

    def store(self) -> None:
        async def work() -> None:
            async with self.queue.writing:
                await LedgerRepository(self.database).post(self.queue.take(1_000))

        self.do(work())

    def fill(self, steps: int) -> None:
        async def work() -> None:
            filler, spending = self.find_filler(), self.limits.spending
            assert spending is not None
            for _ in range(steps):
                if spending.changed.is_set():
                    await filler.open()
                await filler.step()

        if self.limits.spending is not None:
            self.do(work())

    def crash(self, is_charged: bool) -> None:
        """The journal has the waiting rows; running requests are charged what was reserved, or nothing."""
        rows = [
            attrs.evolve(
                call.row, cost_nanos=call.nanos if is_charged else 0, settled_ms=int(self.now_s * 1000),
                outcome="interrupted",
            )
            for call in self.running
        ]  # fmt: skip
        self.running.clear()
        self.spent += rows
        self.do(self.start(rows))

    def check_balances(self) -> None:
        if self.limits.spending is None:
            return
        in_force = {spec.limit().counter: spec.limit() for spec in self.specs}
        for book in self.limits.spending.list_books():
            limit = in_force.get(book.counter)
            if limit is None:
                continue
            if not book.start_s <= self.now_s < book.end_s:
                book.begin(self.now_s)
            for subject, balance in book.balances.items():
                spent, held = self.sum_up(limit, subject)
                assert balance.held_nanos == held
                if balance.start_s == book.start_s and balance.complete:
                    is_lower, is_higher = balance.spent_nanos < spent, balance.spent_nanos > spent
                    assert not is_higher or book.counter in self.lost_keys
                    assert not is_lower or not self.is_filled(book.counter)
                    assert balance.spent_nanos + held <= (book.cap_nanos or 0) + balance.overrun_nanos

    def end(self) -> None:
        try:
            assert self.do(self.look()) == []
            self.fill(1)
            while self.running:
                self.settle(0, 1)
            self.store()
            self.fill(2 * len(self.spent) + 10)
            assert self.filler is None or not self.filler.open_counters
            assert self.do(self.look()) == []
            self.check_balances()
        finally:
            self.do(self.database.close())
            self.loop.close()

    async def look(self) -> list[str]:
        async with self.queue.writing:
            spending = self.limits.spending
            return [] if spending is None else await spending.list_problems(self.balances.reservations)


def act(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *arguments)


ADMIT = act("admit", st.integers(0, 2), st.integers(0, 71), st.integers(0, 30))
SETTLE = act("settle", ANY, st.integers(0, 40))
CHANGE = act("change", st.lists(SPECS, max_size=2, unique_by=lambda spec: spec.name))
FILL = act("fill", st.integers(1, 3))
ACTS = st.one_of(
    *(ADMIT, ADMIT, ADMIT, SETTLE, SETTLE, FILL, FILL, CHANGE, act("remove", ANY), act("store"), act("store")),
    act("pass_time", st.sampled_from([1, 60, 61, 600, 3_600, 20_000, 90_000])),
    act("crash", st.booleans()),
)


@pytest.mark.timeout(300)
@given(st.lists(ACTS, min_size=40, max_size=80))
def test_new_limits_count_what_was_spent_before_them_once(acts: list[tuple[Any, ...]]) -> None:
    machine = FillMachine()
    try:
        for name, *arguments in acts:
            getattr(machine, name)(*arguments)
            machine.check_balances()
    finally:
        machine.end()
