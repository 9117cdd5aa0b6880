"""What the subjects of a limit have spent in its present window, and have reserved. Reads the database."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from gateway.billing.limits import SpendingLimits
from gateway.domain.forecast import LimitUse
from gateway.domain.limit import Limit
from gateway.domain.limit_balance import LimitBook
from gateway.frozen import frozen
from gateway.storage.limit_counters import ALL_SUBJECTS, LimitCounters, SubjectChoice

Names = Mapping[tuple[int, int | None], str]
"""The names of keys and accounts, by account and key; the key None stands for the account."""


@frozen
class SubjectSpending:
    """What one subject has spent and reserved, in nano-USD.

    ``cap_nanos`` is what it may spend in a window, raises included. ``start_s`` is the start of the window, or of the
    present slice. ``resets_s`` is when something spent no longer counts, in Unix seconds; None: never.
    """

    subject: str
    spent_nanos: int
    held_nanos: int
    cap_nanos: int
    resets_s: int | None
    start_s: int

    @property
    def left_nanos(self) -> int:
        return self.cap_nanos - self.spent_nanos - self.held_nanos


async def list_highest(
    spending: SpendingLimits,
    limit: Limit,
    counters: LimitCounters,
    now_s: float,
    count: int,
    *,
    choice: SubjectChoice = ALL_SUBJECTS,
) -> list[SubjectSpending]:
    """Return the ``count`` chosen subjects that have spent most. Requests that wait to be stored do not count."""
    books = _SubjectBooks(spending, limit, now_s)
    highest: list[SubjectSpending] = []
    for start_s in books.list_starts():
        found_count, offset = 0, 0
        while found_count < count:
            spent = await counters.list_highest(
                limit.counter, start_s - limit.window.rolling_s, count, choice, offset=offset
            )
            for subject, nanos in spent.items():
                book = books.find(subject)
                if book.start_s == start_s and found_count < count:
                    found_count += 1
                    highest.append(_build_spending(book, subject, nanos))
            offset += count
            if len(spent) < count:
                break
    return sorted(highest, key=lambda spending: -spending.spent_nanos)[:count]


def choose_subjects(
    limit: Limit, owner_ids: Collection[int] | None = None, account_id: int | None = None, text: str = ""
) -> SubjectChoice:
    """Return which subjects of a limit to list.

    A limit of keys has those in ``owner_ids``, and one of accounts or models too; None: all. Any other limit has the
    subjects of one account, or all, whose names contain ``text``, in upper or lower case.
    """
    if limit.kind in {"key", "account", "model"}:
        return SubjectChoice(None if owner_ids is None else [str(owner_id) for owner_id in owner_ids])
    if account_id is None and not text:
        return ALL_SUBJECTS
    escaped_text = re.sub(r"([\\%_])", r"\\\1", text)
    return SubjectChoice(pattern=f"{'%' if account_id is None else account_id}:%{escaped_text}%")


async def find_spending(
    spending: SpendingLimits, limit: Limit, counters: LimitCounters, now_s: float, subjects: Sequence[str]
) -> list[SubjectSpending]:
    """Return what ``subjects`` have spent. Requests that wait to be stored do not count."""
    books = _SubjectBooks(spending, limit, now_s)
    starts_s = books.list_starts()
    if not starts_s:
        return []
    spent = await counters.list_spent(limit.counter, subjects, min(starts_s) - limit.window.rolling_s)
    lines = []
    for subject in subjects:
        book = books.find(subject)
        since_s = book.start_s - limit.window.rolling_s
        nanos = sum(nanos for start_s, nanos in spent.get(subject, {}).items() if start_s >= since_s)
        lines.append(_build_spending(book, subject, nanos))
    return lines


class _SubjectBooks:
    """The books of a limit in force, in the windows of ``now_s``: one, and one for each account with a time zone.

    There are none if the limit only raises another.
    """

    def __init__(self, spending: SpendingLimits, limit: Limit, now_s: float) -> None:
        self._books = {} if limit.raises is not None else spending.find_books(limit, now_s)
        self._is_of_keys = limit.kind == "key"
        self._account_ids = {
            key_id: account_id for account_id in self._books for key_id in spending.zone_keys.get(account_id, ())
        }

    def list_starts(self) -> set[int]:
        """Return the starts of all windows, or slices."""
        return {book.start_s for book in self._books.values()}

    def find(self, subject: str) -> LimitBook:
        """Return the book of a subject."""
        owner_id = int(subject.partition(":")[0])
        account_id = self._account_ids.get(owner_id, 0) if self._is_of_keys else owner_id
        return self._books.get(account_id) or self._books[0]


def _build_spending(book: LimitBook, subject: str, spent_nanos: int) -> SubjectSpending:
    balance = book.balances.get(subject)
    held_nanos = 0 if balance is None else balance.held_nanos
    resets_s = None if book.limit.window.kind == "lifetime" else book.window_end_s
    return SubjectSpending(subject, spent_nanos, held_nanos, book.cap_nanos or 0, resets_s, book.start_s)


def measure_subjects(limit: Limit, subjects: Sequence[SubjectSpending], names: Names) -> list[tuple[str, LimitUse]]:
    """Return the uses of a limit by ``subjects``, each with its subject.

    ``names`` are those of the keys and accounts that exist, by account and key: ``key acme/app``, ``account acme``.
    Subjects of others are left out. The use of a limit without windows that follow each other has no ``ended_s``.
    """
    account_ids = {key_id: account_id for account_id, key_id in names if key_id is not None}
    uses = []
    for spending in subjects:
        owner_id = int(spending.subject.partition(":")[0])
        owner = (account_ids.get(owner_id, 0), owner_id) if limit.kind == "key" else (owner_id, None)
        if owner in names:
            has_history = limit.kind in {"key", "account"} and not limit.keys
            use = LimitUse(
                names[owner],
                spending.cap_nanos,
                spending.spent_nanos,
                spending.start_s,
                None if limit.window.rolling_s else spending.resets_s,
                account_id=owner[0] if has_history else None,
                key_id=owner[1] if has_history else None,
                limit_name=limit.name,
                subject=limit.name_subject(spending.subject),
            )
            uses.append((spending.subject, use))
    return uses


async def list_uses(
    spending: SpendingLimits,
    counters: LimitCounters,
    now_s: float,
    count: int,
    names: Names,
    *,
    scope: Literal["all", "account", "key"],
) -> list[LimitUse]:
    """Return the uses of all limits whose windows follow each other; of each limit, the ``count`` highest.

    ``names`` are those of the owners that were asked for: all, an account with its keys, or a key with its account.
    For a key, only limits of keys and accounts are asked for.
    """
    key_ids = [key_id for _, key_id in names if key_id is not None]
    account_ids = [account_id for account_id, key_id in names if key_id is None]
    uses: list[LimitUse] = []
    for limit in spending.limits:
        is_recurring = not limit.window.rolling_s and limit.window.kind != "lifetime"
        if limit.raises is not None or limit.cap_nanos is None or limit.has_ended(now_s) or not is_recurring:
            continue
        if scope == "key" and limit.kind not in {"key", "account"}:
            continue
        choice = ALL_SUBJECTS
        if scope != "all":
            owner_ids = key_ids if limit.kind == "key" else account_ids
            choice = choose_subjects(limit, owner_ids, next(iter(account_ids), 0))
        highest = await list_highest(spending, limit, counters, now_s, count, choice=choice)
        uses += [use for _, use in measure_subjects(limit, highest, names)]
    return uses
