"""Credit leases in PostgreSQL, which alone judges how much of each limit is left (``credit_sql`` has the functions)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from gateway.domain.balance import Owner, UtcDay
from gateway.domain.credit import BalanceId, CreditGrant, CreditWant, StoredLease

LIMITS_LOCK = 7_130_001
"""The advisory lock that a change of limits has alone, and that every transaction which posts rows shares."""
OWNER_NUMBERS: Mapping[Owner, int] = {"account": 0, "key": 1}
OWNERS: Mapping[int, Owner] = {0: "account", 1: "key"}

# Each by its name: a newer version may answer more, and nodes of this one go on.
_TAKE = """
SELECT o, i, limited, g, room, others, since, outstanding, holders
FROM take_credit($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""
_GIVE = "SELECT give_credit($1, $2, $3, $4)"
_POST = "SELECT post_spending($1, $2, $3, $4, $5, $6)"
_FOLD = "SELECT fold_leases($1)"
_LEASES = "SELECT owner, owner_id, granted, posted, late FROM credit_leases WHERE node = $1"

Connection: TypeAlias = Any
"""asyncpg's ``Connection``, which has no types."""


async def take_credit(
    connection: Connection, node: str, live: int, day: UtcDay, wants: Iterable[CreditWant]
) -> Sequence[CreditGrant]:
    """Ask for credit, for all of ``wants`` in one transaction; return the answers in the order of the balances.

    Args:
        connection: outside any transaction.
        node: whose leases they are.
        live: how many nodes are alive, at least 1.
        day: the current one by the store's clock.
        wants: one for each balance.
    """
    requested = sorted(wants, key=lambda want: _place(want.balance))
    rows = await connection.fetch(
        _TAKE,
        node,
        live,
        day.number,
        day.month_number,
        *_columns([want.balance for want in requested]),
        [want.least_nanos for want in requested],
        [want.need_nanos for want in requested],
        [want.want_nanos for want in requested],
    )
    return [CreditGrant((OWNERS[owner], number), *answer) for owner, number, *answer in rows]


async def give_credit(connection: Connection, node: str, amounts: Mapping[BalanceId, int]) -> None:
    """Return what the node has already given up of its leases."""
    balances = sorted(amounts, key=_place)
    await connection.execute(_GIVE, node, *_columns(balances), [amounts[balance] for balance in balances])


async def post_spending(connection: Connection, node: str, day: UtcDay, amounts: Mapping[BalanceId, int]) -> None:
    """Count charges of ``day`` as part of the transaction that stores their rows, right before its commit."""
    balances = sorted(amounts, key=_place)
    columns = _columns(balances)
    await connection.execute(
        _POST, node, day.number, day.month_number, *columns, [amounts[balance] for balance in balances]
    )


async def find_leases(connection: Connection, node: str) -> Sequence[StoredLease]:
    """Return what the store has set aside for a node."""
    return [
        StoredLease((OWNERS[row["owner"]], row["owner_id"]), row["granted"], row["posted"], row["late"])
        for row in await connection.fetch(_LEASES, node)
    ]


async def release_leases(connection: Connection, node: str) -> None:
    """End every lease of a node: what it spent stays spent, and the rest is free. Its journal is posted before."""
    await connection.execute(_FOLD, node)


def _place(balance: BalanceId) -> tuple[int, int]:
    return OWNER_NUMBERS[balance[0]], balance[1]


def _columns(balances: Sequence[BalanceId]) -> tuple[Any, Any]:
    return [OWNER_NUMBERS[owner] for owner, _ in balances], [number for _, number in balances]
