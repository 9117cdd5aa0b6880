"""Finds the requests of one database that another one lacks, after both have taken writes at the same time."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.frozen import frozen
from gateway.storage.copying.postgres_store import PostgresStore, open_snapshot
from gateway.storage.copying.store_copy import CopyFailed

ROWS_PER_BATCH = 5_000
_FIND_LAST_DELETED = "SELECT max(until_ms) FROM retired"
_LIST_SECRETS = "SELECT name, fingerprint FROM fingerprints ORDER BY name"
_LIST_REQUESTS = """
SELECT sequence, id, account, key_name, cost_nanos, row_to_json(requests)::text FROM requests
WHERE sequence > $1 AND settled_ms >= $2 ORDER BY sequence LIMIT $3
"""
_FIND_REQUESTS = "SELECT id, cost_nanos FROM requests WHERE id = ANY($1::text[])"
Write = Callable[[Mapping[str, Any]], None]


@frozen
class KeySum:
    """The missing requests of one key, and their charges."""

    account: str
    key: str
    requests: int
    charged_nanos: int


@frozen
class MissingReport:
    """The requests that one database has and the other lacks, by key.

    Attributes:
        keys: a sum for each key that has missing requests.
        differing_count: how many requests both databases have with different charges.
    """

    keys: Sequence[KeySum]
    differing_count: int

    @property
    def requests(self) -> int:
        return sum(key.requests for key in self.keys)

    @property
    def charged_nanos(self) -> int:
        return sum(key.charged_nanos for key in self.keys)


async def list_missing_requests(source: str, target: str, since_ms: int, write: Write) -> MissingReport:
    """Pass each request in ``source`` that ``target`` lacks to ``write``, with all its columns; return their sums.

    Both are URLs of PostgreSQL databases, and gateways may use them: each is read as of one moment, and nothing is
    changed. Requests settled before ``since_ms`` are left out. Raises ``CopyFailed``.
    """
    async with (
        open_snapshot(source, needs_sums=False) as source_store,
        open_snapshot(target, needs_sums=False) as target_store,
    ):
        await _check(source_store, target_store, since_ms)
        return await _compare(source_store, target_store, since_ms, write)


async def _check(source: PostgresStore, target: PostgresStore, since_ms: int) -> None:
    for store in (source, target):
        if not await store.read_schema():
            raise CopyFailed(f"{store.name} has no tables of a gateway")
    if await source.fetch(_LIST_SECRETS) != await target.fetch(_LIST_SECRETS):
        raise CopyFailed(f"{source.name} and {target.name} are not databases of the same gateway")
    ((deleted_ms,),) = await target.fetch(_FIND_LAST_DELETED)
    if deleted_ms is not None and deleted_ms >= since_ms:
        raise CopyFailed(
            f"{target.name} has already deleted requests of that time (requests.keep_days): name a later one"
        )


async def _compare(source: PostgresStore, target: PostgresStore, since_ms: int, write: Write) -> MissingReport:
    sums: dict[tuple[str, str], KeySum] = {}
    differing_count = last_sequence = 0
    while rows := await source.fetch(_LIST_REQUESTS, last_sequence, since_ms, ROWS_PER_BATCH):
        known_costs: dict[str, int] = dict(await target.fetch(_FIND_REQUESTS, [row[1] for row in rows]))
        for last_sequence, request_id, account, key, cost_nanos, columns in rows:  # noqa: B007 - the next batch follows
            if request_id in known_costs:
                differing_count += known_costs[request_id] != cost_nanos
                continue
            write(json.loads(columns))
            key_sum = sums.get((account, key)) or KeySum(account, key, 0, 0)
            sums[account, key] = KeySum(account, key, key_sum.requests + 1, key_sum.charged_nanos + cost_nanos)
    return MissingReport([sums[owner] for owner in sorted(sums)], differing_count)
