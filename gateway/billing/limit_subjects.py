"""What the subjects of a limit have spent in its present window, and have reserved. Reads the database."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from gateway.billing.limits import SpendingLimits
from gateway.domain.forecast import LimitUse
from gateway.domain.limit import Limit
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
    account_ids: Collection[int] | None = None,
) -> list[SubjectSpending]:
    """Return the ``count`` subjects of ``choice`` that have spent most. Requests that wait to be stored do not count.

    ``account_ids``: the accounts of the chosen subjects; None: any.
    """
    windows = _SubjectWindows(spending, limit, now_s)
    highest: list[SubjectSpending] = []
    for start_s in windows.list_starts(account_ids):
        found_count, offset = 0, 0
        while found_count < count:
            spent = await counters.list_highest(
                limit.counter, start_s - limit.window.rolling_s, count, choice, offset=offset
            )
            for subject, nanos in spent.items():
                if found_count < count and windows.find_start(subject) == start_s:
                    found_count += 1
                    highest.append(windows.build_spending(subject, nanos))
            offset += count
            if len(spent) < count:
                break
    return sorted(highest, key=lambda spending: -spending.spent_nanos)[:count]


def choose_subjects(
    limit: Limit, owner_ids: Collection[int] | None = None, account_id: int | None = None, text: str = ""
) -> SubjectChoice:
    """Return which subjects of a limit to list.

    For a limit of keys, accounts or models, the subjects are ``owner_ids`` (None: all). For any other limit, they are
    those of ``account_id`` (None: of all accounts) whose names contain ``text``, in any case of letters.
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
    """Return what ``subjects`` have spent; an empty list if the limit is not in force.

    Requests that wait to be stored do not count.
    """
    windows = _SubjectWindows(spending, limit, now_s)
    starts_s = {subject: windows.find_start(subject) for subject in subjects} if windows.in_force else {}
    if not starts_s:
        return []
    rolling_s = limit.window.rolling_s
    spent = await counters.list_spent(limit.counter, subjects, min(starts_s.values()) - rolling_s)
    lines = []
    for subject, window_start_s in starts_s.items():
        sums = spent.get(subject, {})
        nanos = sum(nanos for start_s, nanos in sums.items() if start_s >= window_start_s - rolling_s)
        lines.append(windows.build_spending(subject, nanos))
    return lines


class _SubjectWindows:
    """The windows of a limit at ``now_s``. An account with a time zone has its own.

    There are none if the limit only raises another, or is not ``in_force``.
    """

    def __init__(self, spending: SpendingLimits, limit: Limit, now_s: float) -> None:
        self._spending = spending
        self._limit = limit
        self._now_s = now_s
        self.in_force = limit.raises is None and spending.find_book(limit, 0, now_s) is not None

    def list_starts(self, account_ids: Collection[int] | None) -> Collection[int]:
        """Return the starts of the windows, or slices, of accounts; None: of all."""
        if not self.in_force:
            return ()
        if account_ids is None:
            return self._spending.list_starts(self._limit, self._now_s)
        return {self._spending.find_window(self._limit, account_id, self._now_s)[0] for account_id in account_ids}

    def find_start(self, subject: str) -> int:
        return self._find_window(subject)[0]

    def _find_window(self, subject: str) -> tuple[int, int]:
        account_id = self._spending.find_account(self._limit, subject)
        return self._spending.find_window(self._limit, account_id, self._now_s)

    def build_spending(self, subject: str, spent_nanos: int) -> SubjectSpending:
        """Return ``spent_nanos`` of a subject with what it has reserved. The limit must be in force."""
        limit, (start_s, end_s) = self._limit, self._find_window(subject)
        book = self._spending.find_book(limit, self._spending.find_account(limit, subject), self._now_s)
        balance = None if book is None else book.balances.get(subject)
        held_nanos = 0 if balance is None else balance.held_nanos
        cap_nanos = 0 if book is None else book.cap_nanos or 0
        resets_s = None if limit.window.kind == "lifetime" else end_s
        return SubjectSpending(subject, spent_nanos, held_nanos, cap_nanos, resets_s, start_s)


def measure_subjects(limit: Limit, subjects: Sequence[SubjectSpending], names: Names) -> list[tuple[str, LimitUse]]:
    """Return the uses of a limit by ``subjects``, each with its subject.

    ``names`` are those of the keys and accounts that exist, by account and key: ``key acme/app``, ``account acme``.
    Subjects of others are left out. The use of a limit with a rolling or a lifetime window has no end.
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
        choice, chosen_ids = ALL_SUBJECTS, None
        if scope != "all":
            chosen_ids = {account_id for account_id, _ in names}
            owner_ids = key_ids if limit.kind == "key" else account_ids
            choice = choose_subjects(limit, owner_ids, next(iter(account_ids), 0))
        highest = await list_highest(spending, limit, counters, now_s, count, choice=choice, account_ids=chosen_ids)
        uses += [use for _, use in measure_subjects(limit, highest, names)]
    return uses
