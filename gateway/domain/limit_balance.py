"""The balances of a limit's subjects, and reservations that hold amounts in them. Nano-USD, without a clock.

A ``LimitBalance`` has what ``Reservation`` uses of ``Balance``: a reservation of a request with limits simply has more
balances. There may be a hundred thousand of them, so each is small: the limit's ``LimitBook`` has what they share.

A balance is complete if it knows what its subject has spent in the book's present window. Only complete balances may be
reserved from. The spending of any other is read from the database first, and ``adopt`` replaces what it counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol
from zoneinfo import ZoneInfo

import attrs

from gateway.domain.account_zone import AccountZone
from gateway.domain.balance import AnyBalance, Charge, Reservation, UtcDay
from gateway.domain.limit import Limit, LimitCharge, build_charges
from gateway.domain.limit_window import NEVER_S
from gateway.domain.price import usd
from gateway.errors import QuotaExceeded

_FORBIDDEN, _TOO_MANY_REQUESTS = 403, 429
_NEVER_LEFT = -(2**63)
_MAX_CAP_NANOS = 2**62
"""The largest cap: a limit and its raises together must fit a column of 64 bits."""


class SubjectBalance(AnyBalance, Protocol):
    """The balance of one subject: that of a single process, or a node's part of it (``leased_limit_balance``).

    Attributes:
        users: the number of requests that have a reservation with this balance, or wait for its spending.
        start_s: the window that ``spent_nanos`` is of.
        complete: whether it may be reserved from.
    """

    users: int
    subject: str

    @property
    def book(self) -> "LimitBook": ...

    @property
    def start_s(self) -> int: ...

    @property
    def spent_nanos(self) -> int: ...

    @property
    def overrun_nanos(self) -> int: ...

    @property
    def complete(self) -> bool: ...

    def move(self) -> None: ...

    def set_book(self, book: "LimitBook") -> None: ...

    def forget(self) -> None: ...

    def recount_overrun(self) -> None: ...


class LimitBook:
    """A limit, the present window, and the balances of the limit's subjects, the least recently used first.

    Attributes:
        counter: the name of what is counted (``Limit.counter``).
        account_zone: the time zone of the account whose subjects these are; None: that of the limit, for all accounts.
        cap_nanos: what each subject may spend in a window, with the limits that raise it; None: no limit.
        raised_by: the limits that raise the cap.
        start_s: the start of the window; of the present slice if the window is rolling.
        soft_left_nanos: a subject with at most so much left is past the limit's soft share; ``_NEVER_LEFT``: none is.
        end_s: until when ``start_s`` and ``cap_nanos`` hold.
        window_end_s: the end of the window or slice.
    """

    __slots__ = (
        "account_zone", "balances", "cap_nanos", "counter", "end_s", "limit", "raised_by", "rolling_s",
        "soft_left_nanos", "start_s", "window_end_s", "zone",
    )  # fmt: skip

    def __init__(self, limit: Limit, now_s: float, account_zone: AccountZone | None = None) -> None:
        self.counter = limit.counter
        self.account_zone = account_zone
        self.balances: dict[str, SubjectBalance] = {}
        self.rolling_s = limit.window.rolling_s
        self.zone: ZoneInfo = limit.build_zone()
        self.start_s, self.cap_nanos = -1, limit.cap_nanos
        self.set_limit(limit, (), now_s)

    @property
    def max_kept(self) -> int:
        """How many balances are kept in memory. Those that requests use are kept in any case."""
        return self.limit.max_subjects

    def set_zone(self, account_zone: AccountZone, now_s: float) -> None:
        """Let the windows of an account's subjects begin in another time zone. What is reserved and spent stays."""
        self.account_zone = account_zone
        self.begin(now_s)

    def take_balances(self, book: "LimitBook", subjects: Iterable[str]) -> None:
        """Move the balances of ``subjects`` here from ``book``, which must have them."""
        for subject in subjects:
            balance = self.balances[subject] = book.balances.pop(subject)
            balance.set_book(self)

    def set_limit(self, limit: Limit, raised_by: Sequence[Limit], now_s: float) -> None:
        """Put another version of the limit into force. What is reserved and spent stays."""
        self.limit, self.raised_by = limit, tuple(raised_by)
        self.begin(now_s)

    def begin(self, now_s: float) -> None:
        """Begin the window that ``now_s`` is in, and find the cap. What exceeds a lowered cap becomes an overrun."""
        former_cap = self.cap_nanos
        if self.account_zone is None:
            self.start_s, self.window_end_s = self.limit.window.find(now_s, self.zone)
        else:
            self.start_s, self.window_end_s = self.account_zone.find(self.limit.window, now_s)
        ends = [raise_.until_s for raise_ in self.raised_by if raise_.until_s is not None and raise_.until_s > now_s]
        self.end_s = min(self.window_end_s, *ends) if ends else self.window_end_s
        self.cap_nanos = self.limit.cap_nanos
        if self.cap_nanos is not None:
            raised_nanos = sum(raise_.cap_nanos or 0 for raise_ in self.raised_by if not raise_.has_ended(now_s))
            self.cap_nanos = min(self.cap_nanos + raised_nanos, _MAX_CAP_NANOS)
        self.soft_left_nanos = _NEVER_LEFT
        if self.cap_nanos is not None and self.limit.soft_share is not None:
            self.soft_left_nanos = self.cap_nanos - int(self.cap_nanos * self.limit.soft_share)
        if self.cap_nanos != former_cap:  # also at the start of a window: a raise may end with the former one
            for balance in self.balances.values():
                balance.recount_overrun()

    def open(self, subject: str) -> SubjectBalance:
        """Return the balance of a subject, a new one if needed, and mark it as the most recently used one."""
        balances = self.balances
        balance = balances.pop(subject, None)
        if balance is None:
            if len(balances) >= self.max_kept:
                self._drop_unused()
            balance = self.make_balance(subject)
        balances[subject] = balance
        return balance

    def make_balance(self, subject: str) -> SubjectBalance:
        """Return the balance of a subject that has none among ``balances``: here a new one."""
        return self.build_balance(subject)

    def build_balance(self, subject: str) -> "LimitBalance":
        """Return a balance without any amount, as a single process has it, and leave it out of ``balances``."""
        return RollingBalance(self, subject) if self.rolling_s else LimitBalance(self, subject)

    def _drop_unused(self) -> None:
        """Drop the least recently used balances that no request uses: one, or a hundredth of many."""
        number, unused_subjects = 1 + self.max_kept // 100, []
        for subject, balance in self.balances.items():
            if not balance.users:
                unused_subjects.append(subject)
                if len(unused_subjects) == number:
                    break
        for subject in unused_subjects:
            del self.balances[subject]


class LimitBalance:
    """The balance of one subject.

    Attributes:
        users: the number of requests that have a reservation with this balance, or wait for its spending.
        start_s: the window that ``spent_nanos`` and ``overrun_nanos`` are of.
        complete: whether ``spent_nanos`` is known.
        known_s: the latest window with spending: later windows have none. Unknown before ``adopt``.
    """

    __slots__ = (
        "book", "complete", "held_nanos", "known_s", "overrun_nanos", "spent_nanos", "start_s", "subject", "users",
    )  # fmt: skip

    def __init__(self, book: LimitBook, subject: str) -> None:
        self.book = book
        self.subject = subject
        self.held_nanos = self.users = self.spent_nanos = self.overrun_nanos = 0
        self.start_s = -1
        self.known_s = NEVER_S
        self.complete = False

    @property
    def leased(self) -> bool:
        return False

    def set_book(self, book: LimitBook) -> None:
        """Move to another book, whose windows are those of the account."""
        self.book = book

    def move(self) -> None:
        """Move to the book's window. The balance is complete if nothing can have been spent there yet."""
        self.start_s = self.book.start_s
        self.spent_nanos = self.overrun_nanos = 0
        self.complete = self.start_s > self.known_s
        if self.complete:
            self.known_s = self.start_s
            self._record_overrun()

    def adopt(self, spent_by_start: Mapping[int, int], since_s: int) -> None:
        """Replace what was counted here by ``spent_by_start``: all spending from ``since_s`` on, by window or slice."""
        start_s = self.book.start_s
        if start_s < since_s:  # the clock was set back since: it is not known
            self.start_s = -1
            return
        self.start_s, self.spent_nanos, self.overrun_nanos = start_s, spent_by_start.get(start_s, 0), 0
        self.known_s, self.complete = max(start_s, *spent_by_start, start_s), True
        self._record_overrun()

    def forget(self) -> None:
        """Discard what is known of the spending, because the window in which a cost was counted is unknown."""
        self.complete, self.known_s = False, NEVER_S

    def add_earlier(self, start_s: int, nanos: int) -> None:
        """Add what was spent in a window or slice before the limit existed. An excess is no request's overrun."""
        if not self.complete:  # it will be read
            return
        self.known_s = max(self.known_s, start_s)
        if start_s == self.start_s:
            self.spent_nanos += nanos
            self._record_overrun()

    def find_room(self, day: UtcDay) -> int | None:  # noqa: ARG002 - the book has the window
        """Return the amount that may still be reserved, in nano-USD; None if there is no limit.

        The amount can be negative. It is not above 0 while the balance is incomplete.
        """
        book = self.book
        if self.start_s != book.start_s:
            self.move()
        cap = book.cap_nanos
        if cap is None:
            return None
        return cap - self.spent_nanos - self.held_nanos if self.complete else min(0, -self.held_nanos)

    def find_balance(self, day: UtcDay) -> int | None:
        """Return the unspent part of the limit, reservations included, in nano-USD; None if there is no limit."""
        room = self.find_room(day)
        return None if room is None else room + self.held_nanos

    def find_reset(self, day: UtcDay) -> int | None:  # noqa: ARG002 - the book has the window
        """Return when spending no longer counts, in Unix seconds; None: never."""
        return None if self.book.window_end_s == NEVER_S else self.book.window_end_s

    def restore(self, nanos: int, day: UtcDay) -> None:  # noqa: ARG002 - the book has the window
        """Reserve ``nanos`` in any case. An excess over the limit becomes an overrun."""
        if self.start_s != self.book.start_s:
            self.move()
        self.held_nanos += nanos
        self._record_overrun()

    def settle(self, held_nanos: int, cost_nanos: int, day: UtcDay) -> int:  # noqa: ARG002 - the book has the window
        """Spend ``cost_nanos``, release the reservation of ``held_nanos``, and return the new overrun."""
        if self.start_s != self.book.start_s:
            self.move()
        self.held_nanos -= held_nanos
        self._spend(cost_nanos)
        return self._record_overrun() if cost_nanos > held_nanos else 0

    def _spend(self, nanos: int) -> None:
        self.spent_nanos += nanos

    def recount_overrun(self) -> None:
        """Compute the overrun after the cap has changed. A balance of another window does so when it moves."""
        if self.start_s == self.book.start_s:
            self.overrun_nanos = 0
            self._record_overrun()
        else:
            self.start_s = -1  # a clock set back may return to this window, whose overrun is of the former cap

    def _record_overrun(self) -> int:
        """Record and return the excess over the limit that is not recorded as overrun yet."""
        cap = self.book.cap_nanos
        if cap is None or not self.complete:
            return 0
        excess = max(0, self.spent_nanos + self.held_nanos - cap - self.overrun_nanos)
        self.overrun_nanos += excess
        return excess

    def name_limit(self) -> str:
        book = self.book
        cap_text = "" if book.cap_nanos is None else f" ({book.limit.format_cap(book.cap_nanos)})"
        return f"limit {book.limit.name!r} of {book.limit.format_subject(self.subject)}{cap_text}"

    def describe_spending(self, day: UtcDay) -> str:
        """Return the end of a refusal's message: what is spent, and when some of that no longer counts."""
        reset_s = self.find_reset(day)
        text = f"; ${usd(self.spent_nanos)} is spent"
        return text if reset_s is None else f"{text}, and it resets at {datetime.fromtimestamp(reset_s, UTC):%FT%TZ}"

    def find_status(self, day: UtcDay) -> int:
        """Return the HTTP status of a refusal."""
        is_permanent = self.find_reset(day) is None
        return self.book.limit.status or (_FORBIDDEN if is_permanent else _TOO_MANY_REQUESTS)

    def complete_error(self, error: QuotaExceeded) -> QuotaExceeded:
        return error


class RollingBalance(LimitBalance):
    """The balance of one subject in a rolling window.

    ``spent_by_slice`` is by the slices' starts. Slices count until the window has passed their ends, so at any moment
    at least the window's whole length counts, and at most a slice more. ``known_s`` is the earliest window that is
    known.
    """

    __slots__ = ("spent_by_slice",)

    def __init__(self, book: LimitBook, subject: str) -> None:
        super().__init__(book, subject)
        self.spent_by_slice: dict[int, int] = {}

    def move(self) -> None:
        start_s, held_overrun = self.book.start_s, self.overrun_nanos
        self.complete = start_s >= self.known_s
        self.start_s = start_s
        if not self.complete:
            self.spent_nanos = self.overrun_nanos = 0
            return
        self._count(start_s)
        excess = self.spent_nanos + self.held_nanos - (self.book.cap_nanos or 0)
        self.overrun_nanos = max(0, min(held_overrun, excess))
        self._record_overrun()

    def adopt(self, spent_by_start: Mapping[int, int], since_s: int) -> None:
        start_s = self.book.start_s
        if start_s - self.book.rolling_s < since_s:
            self.start_s = -1
            return
        self.spent_by_slice = dict(sorted(spent_by_start.items()))
        self.start_s, self.overrun_nanos, self.complete = start_s, 0, True
        self._count(start_s)
        self._record_overrun()

    def add_earlier(self, start_s: int, nanos: int) -> None:
        if self.complete and start_s >= self.start_s - self.book.rolling_s:
            self.spent_by_slice[start_s] = self.spent_by_slice.get(start_s, 0) + nanos
            self._count(self.start_s)
            self._record_overrun()

    def find_reset(self, day: UtcDay) -> int | None:  # noqa: ARG002 - the book has the window
        first_s = min(self.spent_by_slice, default=self.book.start_s)
        return first_s + self.book.rolling_s + self.book.limit.window.slice_s

    def _spend(self, nanos: int) -> None:
        self.spent_nanos += nanos
        if nanos:
            self.spent_by_slice[self.start_s] = self.spent_by_slice.get(self.start_s, 0) + nanos

    def _count(self, start_s: int) -> None:
        """Sum up the slices that count at ``start_s``, and drop earlier ones."""
        first_s = start_s - self.book.rolling_s
        self.spent_by_slice = {slice_s: nanos for slice_s, nanos in self.spent_by_slice.items() if slice_s >= first_s}
        self.spent_nanos = sum(nanos for slice_s, nanos in self.spent_by_slice.items() if slice_s <= start_s)
        self.known_s = start_s


@attrs.define(eq=False)
class LimitReservation(Reservation):
    """A reservation of a request with limits.

    Attributes:
        limit_balances: the last of ``balances``.
        soft_limit: the name of the strictest limit whose soft share this reservation has passed; empty if there is
            none.
    """

    limit_balances: Sequence[SubjectBalance] = ()
    soft_limit: str = ""

    def use(self, limit_balances: Sequence[SubjectBalance]) -> None:
        """Keep the balances in memory until the reservation is settled."""
        self.limit_balances = limit_balances
        for balance in limit_balances:
            balance.users += 1

    def end_use(self) -> None:
        """Let go of the balances without a settlement: a durable job has the reservation now."""
        for balance in self.limit_balances:
            balance.users -= 1

    def list_charges(self, now_s: float) -> str:
        """Return what a cost settled at ``now_s`` counts for, as the request's record has it.

        Also begin the windows of ``now_s``.
        """
        begin_windows((balance.book for balance in self.limit_balances), now_s)
        return build_charges([_build_charge(balance) for balance in self.limit_balances])

    def forget_windows(self) -> None:
        for balance in self.limit_balances:
            balance.forget()

    def settle(self, cost_nanos: int, day: UtcDay, now_s: float = 0.0) -> Charge:
        if self.charge is None:
            for balance in self.limit_balances:
                balance.users -= 1
                book = balance.book
                if not book.start_s <= now_s < book.end_s:
                    book.begin(now_s)
            self.charge = super().settle(cost_nanos, day, now_s)
            if self.charge.cost_nanos:
                self.limit_charges = build_charges(
                    [(balance.book.counter, balance.subject, balance.book.start_s) for balance in self.limit_balances]
                )
        return self.charge


def begin_windows(books: Iterable[LimitBook], now_s: float) -> None:
    """Move books to the windows of ``now_s``."""
    for book in books:
        if not book.start_s <= now_s < book.end_s:
            book.begin(now_s)


def _build_charge(balance: SubjectBalance) -> LimitCharge:
    return balance.book.counter, balance.subject, balance.book.start_s
