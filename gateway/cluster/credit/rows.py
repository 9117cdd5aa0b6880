"""Credit leases in PostgreSQL, whose functions alone decide what is left of a limit (``credit_sql``)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from gateway.domain.balance import BalanceOwner, UtcDay
from gateway.domain.credit import BalanceId, CreditGrant, CreditRequest, StoredLease
from gateway.storage.postgres.lock_numbers import WRITES_LOCK

LIMITS_LOCK = WRITES_LOCK
"""An advisory lock: writes such as changes of limits hold it exclusively, transactions that post rows share it."""
LIST_RESTORING_NODES = """
SELECT e.id, CASE WHEN coalesce(b.detail ->> 'store', '') = '' THEN 0 ELSE b.beat END AS beat
FROM (SELECT id FROM nodes WHERE state = 'live' UNION SELECT unnest($1::text[])) e
LEFT JOIN beats b ON b.node = e.id WHERE e.id <> $2 AND b.detail ->> 'store' IS DISTINCT FROM $3 ORDER BY 1
"""
"""The nodes that have not stored their last rows again on a server of this generation.

``beat`` is the number of beats of a node that still has rows of another server; 0 for a node that is starting, or of
an older version.
"""
OWNER_NUMBERS: Mapping[BalanceOwner, int] = {"account": 0, "key": 1, "limit": 2}
OWNERS: Mapping[int, BalanceOwner] = {number: owner for owner, number in OWNER_NUMBERS.items()}

# Columns are listed by name: a newer version may return more, while nodes of this version continue.
_TAKE_CREDIT = """
SELECT o, i, limited, g, room, others, since, outstanding, holders
FROM take_credit($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""
_TAKE_LIMIT_CREDIT = """
SELECT i, g, room, others, outstanding, holders, first, cap
FROM take_limit_credit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
# One statement, because the balance is locked until the commit: a slow node would hold the lock over round trips.
_RETURN_CREDIT = """
SELECT give_credit($1, $2, $3, $4),
  (SELECT bool_and(pg_notify($5, payload) IS NULL) FROM unnest($6::text[]) payload) AS sent
"""
_POST_SPENDING = "SELECT post_spending($1, $2, $3, $4, $5, $6)"
_FOLD_LEASES = "SELECT fold_leases($1)"
_LIST_LEASES = "SELECT owner, owner_id, granted, posted, late FROM credit_leases WHERE node = $1"

Connection: TypeAlias = Any
"""asyncpg's ``Connection``, which is untyped."""


async def take_credit(
    connection: Connection, node: str, live_nodes: int, day: UtcDay, credit_requests: Iterable[CreditRequest]
) -> Sequence[CreditGrant]:
    """Make all ``credit_requests``, outside any transaction. Return the answers in the order of balances."""
    sorted_requests = sorted(credit_requests, key=lambda request: build_key(request.balance))
    rows = await connection.fetch(
        _TAKE_CREDIT,
        node,
        live_nodes,
        day.number,
        day.month_number,
        *build_arrays([request.balance for request in sorted_requests]),
        [request.min_nanos for request in sorted_requests],
        [request.needed_nanos for request in sorted_requests],
        [request.desired_nanos for request in sorted_requests],
    )
    return [CreditGrant((OWNERS[owner], number), *answer) for owner, number, *answer in rows]


async def take_limit_credit(
    connection: Connection, node: str, live_nodes: int, credit_requests: Iterable[CreditRequest]
) -> Sequence[CreditGrant]:
    """Make ``credit_requests`` for subjects of limits, each with terms; return the answers as ``take_credit`` does."""
    sorted_requests = sorted(credit_requests, key=lambda request: build_key(request.balance))
    terms = [request.terms for request in sorted_requests if request.terms is not None]
    rows = await connection.fetch(
        _TAKE_LIMIT_CREDIT,
        node,
        live_nodes,
        [request.balance[1] for request in sorted_requests],
        [request.min_nanos for request in sorted_requests],
        [request.needed_nanos for request in sorted_requests],
        [request.desired_nanos for request in sorted_requests],
        [term.counter for term in terms],
        [term.subject for term in terms],
        [term.cap_nanos for term in terms],
        [term.since_s for term in terms],
        [term.is_rolling for term in terms],
    )
    return [
        CreditGrant(("limit", number), True, granted, room, others, 0, outstanding, holders, first, cap)
        for number, granted, room, others, outstanding, holders, first, cap in rows
    ]


async def return_credit(
    connection: Connection, node: str, amounts: Mapping[BalanceId, int], channel: str = "", messages: Sequence[str] = ()
) -> None:
    """Give back credit that the node has already removed from its leases, and notify ``channel`` of ``messages``."""
    balances = sorted(amounts, key=build_key)
    nanos = [amounts[balance] for balance in balances]
    await connection.execute(_RETURN_CREDIT, node, *build_arrays(balances), nanos, channel, messages)


async def post_spending(connection: Connection, node: str, day: UtcDay, amounts: Mapping[BalanceId, int]) -> None:
    """Count the charges of ``day`` in the transaction that stores their rows, right before its commit."""
    balances = sorted(amounts, key=build_key)
    columns = build_arrays(balances)
    await connection.execute(
        _POST_SPENDING, node, day.number, day.month_number, *columns, [amounts[balance] for balance in balances]
    )


async def find_leases(connection: Connection, node: str) -> Sequence[StoredLease]:
    """Return the credit that the store has set aside for a node."""
    return [
        StoredLease((OWNERS[row["owner"]], row["owner_id"]), row["granted"], row["posted"], row["late"])
        for row in await connection.fetch(_LIST_LEASES, node)
    ]


async def end_leases(connection: Connection, node: str) -> None:
    """End every lease of a node: spent credit stays spent, the remainder becomes free.

    The charges of the node's journal must be stored before.
    """
    await connection.execute(_FOLD_LEASES, node)


def build_key(balance: BalanceId) -> tuple[int, int]:
    """Return the sort key of a balance in the order in which locks are taken."""
    return OWNER_NUMBERS[balance[0]], balance[1]


def build_arrays(balances: Sequence[BalanceId]) -> tuple[Any, Any]:
    """Return the columns ``owner`` and ``owner_id`` of ``balances``."""
    return [OWNER_NUMBERS[owner] for owner, _ in balances], [number for _, number in balances]
