"""What the subjects of a limit have spent in its present window, and have reserved. Reads the database."""

from collections.abc import Sequence

from gateway.billing.limits import SpendingLimits
from gateway.domain.limit import Limit
from gateway.domain.limit_balance import LimitBook
from gateway.frozen import frozen
from gateway.storage.limit_counters import LimitCounters


@frozen
class SubjectSpending:
    """What one subject has spent and reserved, in nano-USD.

    ``cap_nanos`` is what it may spend in a window, raises included. ``resets_s`` is when something spent no longer
    counts, in Unix seconds; None: never.
    """

    subject: str
    spent_nanos: int
    held_nanos: int
    cap_nanos: int
    resets_s: int | None

    @property
    def left_nanos(self) -> int:
        return self.cap_nanos - self.spent_nanos - self.held_nanos


async def list_highest(
    spending: SpendingLimits, limit: Limit, counters: LimitCounters, now_s: float, count: int
) -> list[SubjectSpending]:
    """Return the ``count`` subjects that have spent most. Requests that wait to be stored do not count."""
    book = find_book(spending, limit, now_s)
    if book is None:
        return []
    spent = await counters.list_highest(book.counter, book.start_s - book.rolling_s, count)
    return [_build_spending(book, subject, nanos) for subject, nanos in spent.items()]


async def find_spending(
    spending: SpendingLimits, limit: Limit, counters: LimitCounters, now_s: float, subjects: Sequence[str]
) -> list[SubjectSpending]:
    """Return what ``subjects`` have spent. Requests that wait to be stored do not count."""
    book = find_book(spending, limit, now_s)
    if book is None:
        return []
    spent = await counters.list_spent(book.counter, subjects, book.start_s - book.rolling_s)
    return [_build_spending(book, subject, sum(spent.get(subject, {}).values())) for subject in subjects]


def find_book(spending: SpendingLimits, limit: Limit, now_s: float) -> LimitBook | None:
    """Return the balances of a limit in force, in the window of ``now_s``; None if the limit only raises another."""
    for book in spending.list_books():
        if book.counter == limit.counter and limit.raises is None:
            if not book.start_s <= now_s < book.end_s:
                book.begin(now_s)
            return book
    return None


def _build_spending(book: LimitBook, subject: str, spent_nanos: int) -> SubjectSpending:
    balance = book.balances.get(subject)
    held_nanos = 0 if balance is None else balance.held_nanos
    resets_s = None if book.limit.window.kind == "lifetime" else book.window_end_s
    return SubjectSpending(subject, spent_nanos, held_nanos, book.cap_nanos or 0, resets_s)
