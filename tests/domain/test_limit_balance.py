"""Balances of limits against a reckoning that adds up every cost anew: windows, overruns, raises, clocks set back."""

import tracemalloc

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.domain.balance import parse_day, reserve_all
from gateway.domain.limit import Limit, build_charges, find_tag_value, parse_charges
from gateway.domain.limit_balance import LimitBalance, LimitBook, LimitReservation
from gateway.domain.limit_window import parse_window
from gateway.errors import QuotaExceeded

NOW_S = 1_750_000_000.0
DAY = parse_day(NOW_S)
_NAMES = st.text(st.characters(exclude_categories=["Cs"]))
EACH_USER = Limit("each user", "user", cap_nanos=100)


def open_balance(book: LimitBook, subject: str = "3:u-17", spent: dict[int, int] | None = None) -> LimitBalance:
    balance = book.open(subject)
    assert isinstance(balance, LimitBalance)
    balance.adopt(spent or {}, book.start_s - book.rolling_s)
    return balance


def reserve(balances: tuple[LimitBalance, ...], nanos: int, now_s: float) -> LimitReservation:
    for balance in balances:
        if not balance.book.start_s <= now_s < balance.book.end_s:
            balance.book.begin(now_s)
        balance.find_room(DAY)
    reservation = reserve_all(balances, nanos, DAY, now_s, LimitReservation)
    assert isinstance(reservation, LimitReservation)
    reservation.use(balances)
    return reservation


class LimitMachine(RuleBasedStateMachine):
    """Two subjects under a tree of limits, whose costs are in a list beside them."""

    @initialize(windows=st.lists(st.sampled_from(["hour", "5h", "day", "rolling:1h", "rolling:24h"]), min_size=1))
    def begin(self, windows: list[str]) -> None:
        self.now_s = NOW_S
        self.books = [
            LimitBook(Limit(f"limit {index}", "user", cap_nanos=60 + 20 * index, window=parse_window(text)), NOW_S)
            for index, text in enumerate(windows)
        ]
        self.stored: dict[tuple[str, str, int], int] = {}
        self.running: list[LimitReservation] = []

    def open(self, subject: str) -> tuple[LimitBalance, ...]:
        """The balances of a subject, read from what is stored where they do not know it."""
        balances = []
        for book in self.books:
            if not book.start_s <= self.now_s < book.end_s:
                book.begin(self.now_s)
            balance = book.open(subject)
            assert isinstance(balance, LimitBalance)
            balance.find_room(DAY)
            if not balance.complete:
                since_s = book.start_s - book.rolling_s
                balance.adopt(self.list_spent(book, subject, since_s), since_s)
            balances.append(balance)
        return tuple(balances)

    def list_spent(self, book: LimitBook, subject: str, since_s: int) -> dict[int, int]:
        return {
            start_s: nanos
            for (counter, name, start_s), nanos in self.stored.items()
            if counter == book.counter and name == subject and start_s >= since_s
        }

    @rule(subject=st.sampled_from(["3:a", "3:b"]), nanos=st.integers(1, 50))
    def ask(self, subject: str, nanos: int) -> None:
        balances = self.open(subject)
        rooms = [balance.find_room(DAY) for balance in balances]
        fits = all(room is not None and room >= nanos for room in rooms)
        try:
            self.running.append(reserve(balances, nanos, self.now_s))
        except QuotaExceeded:
            assert not fits
        else:
            assert fits

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 99), cost=st.integers(0, 70))
    def settle(self, index: int, cost: int) -> None:
        reservation = self.running.pop(index % len(self.running))
        held = [balance.held_nanos for balance in reservation.limit_balances]
        reservation.settle(cost, DAY, self.now_s)
        assert [balance.held_nanos for balance in reservation.limit_balances] == [
            nanos - reservation.nanos for nanos in held
        ]
        for charge in parse_charges(reservation.limit_charges):
            self.stored[charge] = self.stored.get(charge, 0) + cost

    @rule(seconds=st.sampled_from([1, 30, 60, 1_800, 3_600, 20_000, 90_000, -1, -60, -3_600, -90_000]))
    def pass_time(self, seconds: int) -> None:
        self.now_s += seconds

    @rule(subject=st.sampled_from(["3:a", "3:b"]))
    def forget(self, subject: str) -> None:
        for book in self.books:
            balance = book.balances.get(subject)
            if balance is not None and not balance.users:
                del book.balances[subject]

    @rule(cap=st.integers(0, 150), index=st.integers(0, 9))
    def change(self, cap: int, index: int) -> None:
        book = self.books[index % len(self.books)]
        book.set_limit(attrs.evolve(book.limit, cap_nanos=cap), (), self.now_s)

    @invariant()
    def no_limit_is_exceeded_but_by_overruns(self) -> None:
        for book in getattr(self, "books", ()):
            for subject, balance in book.balances.items():
                assert balance.held_nanos == sum(
                    reservation.nanos for reservation in self.running if balance in reservation.limit_balances
                )
                if balance.complete and balance.start_s == book.start_s:
                    since_s = book.start_s - book.rolling_s
                    spent = self.list_spent(book, subject, since_s)
                    assert balance.spent_nanos == sum(
                        nanos for start_s, nanos in spent.items() if start_s <= book.start_s
                    )
                    assert balance.spent_nanos + balance.held_nanos <= (book.cap_nanos or 0) + balance.overrun_nanos


TestLimits = LimitMachine.TestCase
TestLimits.settings = settings(max_examples=60, stateful_step_count=25)


def test_a_new_window_begins_with_nothing_spent_and_what_is_reserved() -> None:
    book = LimitBook(attrs.evolve(EACH_USER, window=parse_window("day")), NOW_S)
    balance = open_balance(book, spent={book.start_s: 60})
    reservation = reserve((balance,), 30, NOW_S)
    assert balance.find_room(DAY) == 10
    tomorrow_s = NOW_S + 86_400
    book.begin(tomorrow_s)
    assert balance.find_room(DAY) == 70
    reservation.settle(25, DAY, tomorrow_s)
    assert (balance.spent_nanos, balance.find_room(DAY)) == (25, 75)
    assert parse_charges(reservation.limit_charges) == [(book.counter, "3:u-17", book.start_s)]


def test_a_clock_set_back_asks_the_store_again() -> None:
    book = LimitBook(attrs.evolve(EACH_USER, window=parse_window("hour")), NOW_S)
    balance = open_balance(book, spent={book.start_s: 60})
    book.begin(NOW_S + 3_600)
    assert (balance.find_room(DAY), balance.complete) == (100, True)
    book.begin(NOW_S)
    assert (balance.find_room(DAY), balance.complete) == (0, False)
    balance.adopt({book.start_s: 60, book.start_s + 3_600: 5}, book.start_s)
    assert balance.find_room(DAY) == 40
    book.begin(NOW_S + 3_600)
    assert not balance.find_room(DAY), "something was spent there already"
    assert not balance.complete


@pytest.mark.parametrize("window", ["hour", "rolling:1h"])
def test_a_cap_lowered_while_the_clock_was_set_back_is_an_overrun_of_what_is_reserved(window: str) -> None:
    book = LimitBook(attrs.evolve(EACH_USER, window=parse_window(window)), NOW_S)
    balance = open_balance(book)
    reserve((balance,), 30, NOW_S)
    book.set_limit(attrs.evolve(book.limit, cap_nanos=10), (), NOW_S - 90_000)
    book.begin(NOW_S)
    assert balance.find_room(DAY) in {0 - 30, 10 - 30}
    if not balance.complete:
        balance.adopt({}, book.start_s - book.rolling_s)
    assert (balance.find_room(DAY), balance.overrun_nanos) == (-20, 20)


def test_a_rolling_window_counts_each_cost_until_its_slice_has_left() -> None:
    book = LimitBook(attrs.evolve(EACH_USER, window=parse_window("rolling:1h")), NOW_S)
    balance = open_balance(book)
    for minute in range(3):
        reserve((balance,), 30, NOW_S + 60 * minute).settle(30, DAY, NOW_S + 60 * minute)
    assert balance.find_room(DAY) == 10
    assert balance.find_reset(DAY) == book.start_s - 120 + 3_660
    for minute, room in ((59, 10), (60, 10), (61, 40), (62, 70), (63, 100)):
        book.begin(NOW_S + 60 * minute)
        assert balance.find_room(DAY) == room, minute


def test_a_raise_counts_until_it_ends() -> None:
    book = LimitBook(attrs.evolve(EACH_USER, window=parse_window("month")), NOW_S)
    balance = open_balance(book)
    raise_ = Limit("more", cap_nanos=50, raises="each user", until_s=int(NOW_S) + 60)
    book.set_limit(book.limit, (raise_,), NOW_S)
    reservation = reserve((balance,), 140, NOW_S)
    assert balance.find_room(DAY) == 10
    book.begin(NOW_S + 60)
    assert (balance.find_room(DAY), balance.overrun_nanos) == (-40, 40)
    assert reservation.settle(140, DAY, NOW_S + 61).overrun_nanos == 0


def test_a_limit_and_its_raises_fit_a_column_of_64_bits() -> None:
    huge = 9 * 10**18
    book = LimitBook(attrs.evolve(EACH_USER, cap_nanos=huge), NOW_S)
    book.set_limit(book.limit, (Limit("more", cap_nanos=huge, raises="each user"),), NOW_S)
    assert book.cap_nanos == 2**62


def test_a_raise_that_ends_with_the_window_is_no_overrun_of_the_next_one() -> None:
    book = LimitBook(attrs.evolve(EACH_USER, window=parse_window("day")), NOW_S)
    balance = open_balance(book)
    book.set_limit(book.limit, (Limit("more", cap_nanos=50, raises="each user", until_s=book.window_end_s),), NOW_S)
    reserve((balance,), 140, NOW_S).settle(140, DAY, NOW_S)
    book.begin(book.window_end_s)
    assert (book.cap_nanos, balance.find_room(DAY), balance.overrun_nanos) == (100, 100, 0)


def test_the_refusal_says_whose_limit_and_when_it_resets() -> None:
    book = LimitBook(attrs.evolve(EACH_USER, window=parse_window("day"), cap_nanos=10**9), NOW_S)
    balance = open_balance(book, spent={book.start_s: 10**9})
    with pytest.raises(QuotaExceeded) as refusal:
        reserve((balance,), 1, NOW_S)
    assert refusal.value.message == (
        "The limit 'each user' of the user 'u-17' ($1 per day) is used up; $1 is spent, and it resets at "
        "2025-06-16T00:00:00Z"
    )
    assert (refusal.value.status, refusal.value.retry_after_s) == (429, book.window_end_s - int(NOW_S))


@pytest.mark.parametrize(
    ("status", "window", "expected"), [(None, "lifetime", 403), (429, "lifetime", 429), (403, "day", 403)]
)
def test_a_limit_says_with_which_status_it_refuses(status: None, window: str, expected: int) -> None:
    book = LimitBook(attrs.evolve(EACH_USER, window=parse_window(window), status=status), NOW_S)
    balance = open_balance(book, spent={book.start_s: 100})
    with pytest.raises(QuotaExceeded) as refusal:
        reserve((balance,), 1, NOW_S)
    assert refusal.value.status == expected
    assert (refusal.value.retry_after_s is None) == (window == "lifetime")


def test_the_least_recently_used_subject_is_dropped_unless_a_request_uses_it() -> None:
    book = LimitBook(attrs.evolve(EACH_USER, max_subjects=2), NOW_S)
    first, second = open_balance(book, "3:a"), open_balance(book, "3:b")
    reservation = reserve((first,), 0, NOW_S)
    assert reservation.nanos == 0
    third = open_balance(book, "3:c")
    assert list(book.balances) == ["3:a", "3:c"]
    held = reserve((third,), 5, NOW_S)
    open_balance(book, "3:d")
    assert list(book.balances) == ["3:a", "3:c", "3:d"], "more than the limit has, since all are in use"
    held.settle(5, DAY, NOW_S)
    reservation.settle(0, DAY, NOW_S)
    open_balance(book, "3:b")
    assert first.subject not in book.balances
    assert book.balances["3:b"] is not second


def test_a_hundred_thousand_balances_take_less_than_40_mb() -> None:
    book = LimitBook(attrs.evolve(EACH_USER, cap_nanos=10**12), NOW_S)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(100_000):
        balance = open_balance(book, f"3:user-{number:08}", {book.start_s: 10**9 + number})
        balance.held_nanos = 10**6 + number
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used < 40_000_000


@given(st.lists(st.tuples(_NAMES, _NAMES, st.integers(0, 2**40))))
def test_charges_are_read_as_they_were_written(charges: list[tuple[str, str, int]]) -> None:
    assert parse_charges(build_charges(charges)) == charges


def test_a_tag_is_found_by_its_whole_name() -> None:
    assert find_tag_value("feature=search,team=web", "team=") == "web"
    assert find_tag_value("subteam=web", "team=") is None
    assert find_tag_value("", "team=") is None
