"""Checks limits: their balances against reservations and counters, and the counters against the stored requests."""

from collections.abc import Iterable
from itertools import zip_longest

from gateway.billing.write_queue import WriteQueue
from gateway.domain.balance import Reservation
from gateway.domain.ledger import CounterDifference
from gateway.domain.limit import LimitCharge
from gateway.domain.limit_balance import LimitBook, RollingBalance, SubjectBalance
from gateway.domain.limit_window import NEVER_S, find_kept_since
from gateway.storage.limit_counters import LimitCounters, sum_charges


async def list_problems(
    books: Iterable[LimitBook],
    reservations: Iterable[Reservation],
    counters: LimitCounters,
    queue: WriteQueue,
    now_s: float,
) -> list[str]:
    """Describe each disagreement in the sums of limits. ``queue.writing`` must be held."""
    # All copies must be of the same moment, so nothing awaits until they are made.
    problems = _check_balances(books, reservations)
    memory, known_since = _copy_spent(books)
    waiting = sum_charges(queue.list_rows())
    stored_sums = await counters.list_all()
    for charge in stored_sums.keys() | waiting.keys():
        counter, subject, start_s = charge
        if start_s >= known_since.get((counter, subject), NEVER_S):
            memory.setdefault(charge, 0)
    for charge, nanos in sorted(memory.items()):
        counter, _, start_s = charge
        known = stored_sums.get(charge, 0) + waiting.get(charge, 0)
        if nanos != known and start_s >= find_kept_since(counter, now_s):
            problems.append(f"{_name(charge)}: {nanos} spent, its counters say {known} (nano-USD)")
    rows = await counters.recompute()
    for charge in sorted(stored_sums.keys() | rows.spent.keys()):
        counter, _, start_s = charge
        if start_s >= find_kept_since(counter, now_s) and (not rows.is_partial or start_s * 1000 >= rows.oldest_ms):
            counted, nanos = stored_sums.get(charge, 0), rows.spent.get(charge, 0)
            if counted != nanos:
                problems.append(_describe_counter(charge, counted, nanos))
    return problems


def list_node_problems(
    books: Iterable[LimitBook],
    reservations: Iterable[Reservation],
    differences: Iterable[CounterDifference],
    now_s: float,
) -> list[str]:
    """Describe each disagreement in this node's reservations, and in the sums of limits that all nodes share."""
    return _check_balances(books, reservations) + [
        _describe_counter(
            (difference.counter, difference.subject, difference.start_s),
            difference.counted_nanos,
            difference.charged_nanos,
        )
        for difference in differences
        if difference.start_s >= find_kept_since(difference.counter, now_s)
    ]


def _copy_spent(books: Iterable[LimitBook]) -> tuple[dict[LimitCharge, int], dict[tuple[str, str], int]]:
    """Return what is spent according to complete balances, and since when each rolling one has all of its slices."""
    spent: dict[LimitCharge, int] = {}
    known_since: dict[tuple[str, str], int] = {}
    for book in books:
        for balance in book.balances.values():
            if not balance.complete:
                continue
            if isinstance(balance, RollingBalance):
                known_since[book.counter, balance.subject] = balance.start_s - book.rolling_s
                for slice_s, nanos in balance.spent_by_slice.items():
                    spent[book.counter, balance.subject, slice_s] = nanos
            else:
                spent[book.counter, balance.subject, balance.start_s] = balance.spent_nanos
    return spent, known_since


def _check_balances(books: Iterable[LimitBook], reservations: Iterable[Reservation]) -> list[str]:
    reserved: dict[int, int] = {}
    for reservation in reservations:
        for balance, beyond_nanos in zip_longest(reservation.balances, reservation.beyond, fillvalue=0):
            reserved[id(balance)] = reserved.get(id(balance), 0) + reservation.nanos + beyond_nanos
    problems = []
    for book in books:
        for balance in book.balances.values():
            charge = (book.counter, balance.subject, balance.start_s)
            held_nanos = reserved.get(id(balance), 0)
            if balance.held_nanos != held_nanos:
                problems.append(f"{_name(charge)}: {balance.held_nanos} held, its holds say {held_nanos} (nano-USD)")
            if _is_exceeded(book, balance):
                problems.append(f"{_name(charge)}: more is spent and held than its cap and its overrun allow")
    return problems


def _is_exceeded(book: LimitBook, balance: SubjectBalance) -> bool:
    if book.cap_nanos is None or not balance.complete or balance.start_s != book.start_s:
        return False
    return balance.spent_nanos + balance.held_nanos > book.cap_nanos + balance.overrun_nanos


def _describe_counter(charge: LimitCharge, counted_nanos: int, charged_nanos: int) -> str:
    return f"{_name(charge)}: {counted_nanos} counted, its requests say {charged_nanos} (nano-USD)"


def _name(charge: LimitCharge) -> str:
    counter, subject, start_s = charge
    return f"limit {counter.partition('|')[0]!r}, {subject}, from {start_s}"
