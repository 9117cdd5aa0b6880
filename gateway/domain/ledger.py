"""The ledger: what was charged and credited, entry by entry, and the ports that keep it.

Entries are only ever added. What is spent of a cap is the sum of its charges; ``gateway audit`` adds them up again.
"""

from typing import Literal

import attrs

from gateway.domain.balance import DAY_S
from gateway.domain.request_log import RequestRecord
from gateway.errors import Conflict

EntryKind = Literal["charge", "top_up", "set"]
"""A request's cost; money added to a cap; the difference that brought a balance to what it was set to."""

UsageAxis = Literal["day", "model", "key", "account"]

OnCrash = Literal["release", "charge"]
"""What becomes of the hold of a request that a crash has cut off: nothing is charged, or what was held."""

_DAY_MS = DAY_S * 1000


@attrs.frozen
class LedgerEntry:
    """One movement. A charge is the key's and its account's; a credit is the key's, or without one the account's.

    Attributes:
        sequence: the order of writing; 0 until it is stored.
        reference: the operator's own, for instance a payment's; no two credits of a purse share one.
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


@attrs.frozen
class Spending:
    """What one key (None: its account) has had charged and credited: ever, this month, today."""

    account_id: int
    key_id: int | None
    lifetime_nanos: int = 0
    month_nanos: int = 0
    day_nanos: int = 0
    lifetime_credit_nanos: int = 0
    month_credit_nanos: int = 0
    day_credit_nanos: int = 0


@attrs.frozen
class UsageFilter:
    """Which days (numbers since 1970, both inclusive), and whose; None does not restrict."""

    since: int
    until: int
    account_id: int | None = None
    key_id: int | None = None
    model: str | None = None


@attrs.frozen
class UsageLine:
    """The usage of one day, model, key or account. ``label`` is that: a day's number, an id, a name."""

    label: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_nanos: int


@attrs.frozen
class KeyTotals:
    """The charges of one key, added up from each place that knows of them: they must agree.

    What requests say includes those that were retired.
    """

    account_id: int
    key_id: int
    entries_nanos: int
    usage_nanos: int
    requests_nanos: int


def is_retired(row: RequestRecord, until_ms: int | None) -> bool:
    """Whether a row that may have been stored was deleted since for its age: its key's are gone up to ``until_ms``.

    Rows are kept for a day at least, and no call takes so long: one that began before is known, whatever it says of
    its end.
    """
    return until_ms is not None and row.started_ms <= until_ms


@attrs.frozen
class UnfinishedRequest:
    """A call of a process that has ended, which the store may not have; ``settled``: the call had ended, too."""

    row: RequestRecord
    settled: bool


def day_of(row: RequestRecord) -> int:
    """The day, in UTC, on which a row was settled; a number since 1970."""
    return row.settled_ms // _DAY_MS


def counts_as_usage(row: RequestRecord) -> bool:
    """Whether a row is of a call that reached a provider: only those are summed up."""
    return row.attempts > 0


def check_same_credit(known: LedgerEntry, entry: LedgerEntry) -> None:
    """Raise ``Conflict`` where two credits under one reference are not one: of one kind, top-ups of one amount.

    The amount of a "set" is a difference, which another moment gives another value.
    """
    if known.kind != entry.kind or (entry.kind == "top_up" and known.amount_nanos != entry.amount_nanos):
        raise Conflict(f"Another credit has the reference {entry.reference!r}", param="reference")
