"""Finds the requests of one database that another one lacks, after both have taken writes at the same time."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.frozen import frozen
from gateway.storage.copying.postgres_store import PostgresStore, open_snapshot
from gateway.storage.copying.store_copy import CopyFailed

BATCH = 5_000
_LAST_DELETED = "SELECT max(until_ms) FROM retired"
_SECRETS = "SELECT name, fingerprint FROM fingerprints ORDER BY name"
_REQUESTS = """
SELECT sequence, id, account, key_name, cost_nanos, row_to_json(requests)::text FROM requests
WHERE sequence > $1 AND settled_ms >= $2 ORDER BY sequence LIMIT $3
"""
_KNOWN = "SELECT id, cost_nanos FROM requests WHERE id = ANY($1::text[])"
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
    """What one database has and the other lacks. ``differing``: requests that both have, with different charges."""

    keys: Sequence[KeySum]
    differing: int

    @property
    def requests(self) -> int:
        return sum(key.requests for key in self.keys)

    @property
    def charged_nanos(self) -> int:
        return sum(key.charged_nanos for key in self.keys)


async def list_missing(source: str, other: str, since_ms: int, write: Write) -> MissingReport:
    """Pass each request in ``source`` that ``other`` lacks to ``write``, with all its columns; return their sums.

    Both are URLs of PostgreSQL databases, and gateways may use them: each is read as of one moment, and nothing is
    changed. Requests settled before ``since_ms`` are left out. Raises ``CopyFailed``.
    """
    async with open_snapshot(source) as read, open_snapshot(other) as compared:
        await _check(read, compared, since_ms)
        return await _compare(read, compared, since_ms, write)


async def _check(source: PostgresStore, other: PostgresStore, since_ms: int) -> None:
    for store in (source, other):
        if not await store.read_schema():
            raise CopyFailed(f"{store.name} has no tables of a gateway")
    if await source.fetch(_SECRETS) != await other.fetch(_SECRETS):
        raise CopyFailed(f"{source.name} and {other.name} are not databases of the same gateway")
    ((deleted_ms,),) = await other.fetch(_LAST_DELETED)
    if deleted_ms is not None and deleted_ms >= since_ms:
        raise CopyFailed(
            f"{other.name} has already deleted requests of that time (requests.keep_days): name a later one"
        )


async def _compare(source: PostgresStore, other: PostgresStore, since_ms: int, write: Write) -> MissingReport:
    sums: dict[tuple[str, str], KeySum] = {}
    differing = last = 0
    while rows := await source.fetch(_REQUESTS, last, since_ms, BATCH):
        known: dict[str, int] = dict(await other.fetch(_KNOWN, [row[1] for row in rows]))
        for last, request_id, account, key, charged, columns in rows:  # noqa: B007 - the last one is where to go on
            if request_id in known:
                differing += known[request_id] != charged
                continue
            write(json.loads(columns))
            found = sums.get((account, key)) or KeySum(account, key, 0, 0)
            sums[account, key] = KeySum(account, key, found.requests + 1, found.charged_nanos + charged)
    return MissingReport([sums[place] for place in sorted(sums)], differing)
