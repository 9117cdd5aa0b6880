"""The ledger: charges and credits, entry by entry.

Entries are only ever added. What is spent of a quota is the sum of its charges; ``gateway audit`` adds them up again.
"""

from collections.abc import Sequence
from typing import Literal

from gateway.domain.balance import DAY_S
from gateway.domain.request_log import RequestRecord
from gateway.errors import Conflict
from gateway.frozen import frozen

EntryKind = Literal["charge", "top_up", "set", "orphan"]
"""A request's cost; money added to a quota; the difference that set a balance to an amount; what a node of a cluster
that was lost had set aside (negative), or that amount again when the node has come back."""

UsageAxis = Literal["day", "model", "key", "account"]

OnCrash = Literal["release", "charge"]
"""The fate of a reservation whose request a crash has cut off: nothing is charged, or all of it."""

_DAY_MS = DAY_S * 1000


@frozen
class LedgerEntry:
    """One entry. A charge belongs to the key and its account; a credit to the key, or without one to the account.

    ``sequence``: the order of writing; 0 before it is stored. ``reference``: the operator's own, for example of a
    payment; unique among the credits of a balance.
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
    """What one key (None: its account) was charged and credited: ever, this month, today."""

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
    """Which days (numbers since 1970, inclusive), and whose; None does not restrict."""

    since: int
    until: int
    account_id: int | None = None
    key_id: int | None = None
    model: str | None = None


@frozen
class UsageLine:
    """The usage of one day, model, key or account. ``label`` is that: a day's number, an id, a name."""

    label: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_nanos: int


@frozen
class KeyTotals:
    """The charges of one key by every source, which must agree. Requests include those deleted for their age."""

    account_id: int
    key_id: int
    entries_nanos: int
    usage_nanos: int
    requests_nanos: int


@frozen
class ClusterAudit:
    """What the store says of what the nodes of a cluster share, at one moment.

    ``problems``: differences between balances, leases, charges, credits and jobs. ``totals``: the charges of each key.
    ``jobs``: how many jobs have not ended, and ``held_nanos`` what they hold.
    """

    problems: Sequence[str]
    totals: Sequence[KeyTotals]
    jobs: int
    held_nanos: int


def is_retired(row: RequestRecord, until_ms: int | None) -> bool:
    """Return whether a stored row may have been deleted for its age: its key's are gone up to ``until_ms``.

    Rows are kept for a day at least, and no request takes so long: one that started before is known, whatever end it
    gives.
    """
    return until_ms is not None and row.started_ms <= until_ms


@frozen
class UnfinishedRequest:
    """A request of an earlier process that the ledger may lack. ``settled``: the request had ended, too."""

    row: RequestRecord
    settled: bool


def day_of(row: RequestRecord) -> int:
    """Return the UTC day on which a row was settled, as a number since 1970."""
    return row.settled_ms // _DAY_MS


def counts_as_usage(row: RequestRecord) -> bool:
    """Return whether a row's request reached a provider: only those count as usage."""
    return row.attempts > 0


def check_same_credit(known: LedgerEntry, entry: LedgerEntry) -> None:
    """Raise ``Conflict`` unless two credits under one reference are the same: kind, and amount of a top-up.

    The amount of a "set" is a difference, which changes from one moment to the next.
    """
    if known.kind != entry.kind or (entry.kind == "top_up" and known.amount_nanos != entry.amount_nanos):
        raise Conflict(f"Another credit has the reference {entry.reference!r}", param="reference")
