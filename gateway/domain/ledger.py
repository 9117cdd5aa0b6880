"""The ledger: charges and credits, entry by entry, and the sums that an audit compares with them.

Entries are only ever added. The spent part of a quota is the sum of its charges, which ``gateway audit`` adds up again.
"""

from collections.abc import Sequence
from typing import Literal

from gateway.domain.balance import DAY_S
from gateway.domain.price import usd
from gateway.domain.request_log import RequestRecord
from gateway.errors import Conflict
from gateway.frozen import frozen

EntryKind = Literal["charge", "top_up", "set", "orphan"]
"""The kinds of entry, in this order: a request's cost; money added to a quota; the difference that set a balance to an
amount; the credit leased to a lost cluster node (negative), or its reversal when the node comes back."""

UsageAxis = Literal["day", "model", "key", "account"]

OnCrash = Literal["release", "charge"]
"""The treatment of a reservation whose request was interrupted by a crash: charge nothing, or all of it."""

_DAY_MS = DAY_S * 1000


@frozen
class LedgerEntry:
    """One entry. A charge belongs to a key and its account; a credit to a key, or to an account if there is no key.

    ``sequence`` is the order of writing, 0 before the entry is stored. ``reference`` is chosen by the operator, for
    example the id of a payment; it is unique among the credits of a balance.
    """

    sequence: int
    at_ms: int
    kind: EntryKind
    account_id: int
    key_id: int | None
    amount_nanos: int
    request_id: str | None = None
    reference: str | None = None
    note: str | None = None


@frozen
class Spending:
    """The charges and credits of one key, or of the account if ``key_id`` is None: in total, this month, and today."""

    account_id: int
    key_id: int | None
    lifetime_nanos: int = 0
    month_nanos: int = 0
    day_nanos: int = 0
    lifetime_credit_nanos: int = 0
    month_credit_nanos: int = 0
    day_credit_nanos: int = 0


@frozen
class UsageFilter:
    """A filter for usage: days (numbers since 1970, inclusive), account, key and model. None does not restrict."""

    since: int
    until: int
    account_id: int | None = None
    key_id: int | None = None
    model: str | None = None


@frozen
class UsageLine:
    """The usage of one day, model, key or account, identified by ``label``: a day number, an id or a name."""

    label: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_nanos: int


@frozen
class KeyTotals:
    """The charges of one key from each source, which must agree. Requests deleted by retention are included."""

    account_id: int
    key_id: int
    entries_nanos: int
    usage_nanos: int
    requests_nanos: int


@frozen
class SubjectTotals:
    """The charges of a key on a day from each source, in nano-USD.

    Attributes:
        day: the UTC day, as a number since 1970.
        is_complete: retention has deleted no row of the key and day.
        usage_nanos: the charges in the daily sums.
        users_nanos: the sum of the users' charges.
        user_rows_nanos: the charges of the rows with a user.
        unattributed_nanos: the charges of the rows without a user.
    """

    day: int
    account_id: int
    key_id: int
    is_complete: bool
    usage_nanos: int
    users_nanos: int
    user_rows_nanos: int
    unattributed_nanos: int

    @property
    def is_correct(self) -> bool:
        """Whether users and unattributed requests sum up to the key's day, as far as its rows are stored."""
        if self.is_complete:
            users_agree = self.users_nanos == self.user_rows_nanos
            return users_agree and self.users_nanos + self.unattributed_nanos == self.usage_nanos
        return self.user_rows_nanos <= self.users_nanos <= self.usage_nanos - self.unattributed_nanos


@frozen
class ClusterAudit:
    """A consistent audit of the data that the nodes of a cluster share.

    ``problems`` are differences between balances, leases, charges, credits and jobs. ``overruns`` are the limits that
    were exceeded. ``totals`` are the charges of each key. ``jobs`` is the number of unfinished jobs, and
    ``held_nanos`` the sum of their reservations. ``subject_totals`` are the charges of each key and day, by users.
    ``counter_differences`` are the sums of limits and sessions that differ from the stored requests.
    """

    problems: Sequence[str]
    overruns: Sequence[str]
    totals: Sequence[KeyTotals]
    jobs: int
    held_nanos: int
    subject_totals: Sequence[SubjectTotals] = ()
    counter_differences: Sequence["CounterDifference"] = ()


@frozen
class CounterDifference:
    """A sum of a limit's subject, in the window that begins at ``start_s``, that differs from the stored requests."""

    counter: str
    subject: str
    start_s: int
    counted_nanos: int
    charged_nanos: int


def describe_overrun(owner: str, owner_id: int, nanos: int) -> str:
    """Return a line about a balance that is overdrawn by ``nanos``."""
    return f"{owner} {owner_id}: ${usd(nanos)} more is spent than its limit"


def is_retired(row: RequestRecord, until_ms: int | None) -> bool:
    """Return whether retention may have deleted ``row``. It deleted the key's rows up to ``until_ms`` (None: none)."""
    return until_ms is not None and row.started_ms <= until_ms


@frozen
class UnfinishedRequest:
    """A request of an earlier process that may be missing in the ledger. If ``ended`` is False, it was interrupted."""

    row: RequestRecord
    ended: bool


def day_of(row: RequestRecord) -> int:
    """Return the UTC day on which a row was settled, as a number since 1970."""
    return row.settled_ms // _DAY_MS


def counts_as_usage(row: RequestRecord) -> bool:
    """Return whether a request counts as usage: it was sent to a provider, or got an answer that another had bought."""
    return row.attempts > 0 or row.cache in {"hit", "joined"}


def check_same_credit(stored_entry: LedgerEntry, entry: LedgerEntry) -> None:
    """Raise ``Conflict`` unless credits with the same reference agree in kind and, for a top-up, amount."""
    if stored_entry.kind != entry.kind or (entry.kind == "top_up" and stored_entry.amount_nanos != entry.amount_nanos):
        raise Conflict(f"Another credit has the reference {entry.reference!r}", param="reference")
