"""Failed sign-ins, counted across all nodes of a cluster. Only PostgreSQL databases have the table."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sqlalchemy import bindparam, text

from gateway.frozen import quick_frozen
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database

_FIND_FAILURES = text(
    "SELECT name, failures, at_ms FROM failed_sign_ins WHERE name IN :names AND at_ms > :since_ms"
).bindparams(bindparam("names", expanding=True))
_PUT_FAILURES = text("""
INSERT INTO failed_sign_ins (name, failures, at_ms) VALUES (:name, :failures, :at_ms)
ON CONFLICT (name) DO UPDATE SET failures = excluded.failures, at_ms = excluded.at_ms
""")
_DELETE_FAILURES = text("DELETE FROM failed_sign_ins WHERE name IN :names").bindparams(
    bindparam("names", expanding=True)
)
_DELETE_OLD_FAILURES = text("DELETE FROM failed_sign_ins WHERE at_ms <= :since_ms")
_PURGE_INTERVAL_MS = 60_000


@quick_frozen
class Failures:
    """The number of failed attempts; the last failed at ``at_ms`` (Unix ms)."""

    count: int
    at_ms: int


FailureCounts = Mapping[bytes, Failures]
"""Counts by the digests of names and addresses."""


class FailedSignIns:
    """The ``failed_sign_ins`` table. ``kept_ms``: how long failures count after the last one."""

    def __init__(self, database: Database, kept_ms: int) -> None:
        self._database = database
        self._kept_ms = kept_ms
        self._purged_ms = 0

    async def find(self, names: Collection[bytes], now_ms: int) -> FailureCounts:
        rows = await self._database.read(_FIND_FAILURES.bindparams(names=list(names), since_ms=now_ms - self._kept_ms))
        return _read(rows)

    async def count(
        self, names: Collection[bytes], now_ms: int, check_counts: Callable[[FailureCounts], None]
    ) -> FailureCounts:
        """Count one more failure for each name, unless ``check_counts`` raises an error; return the former counts."""

        async def work(connection: AsyncConnection) -> FailureCounts:
            await self._purge(connection, now_ms)
            former_counts = await self._find(connection, names, now_ms)
            check_counts(former_counts)
            for name in sorted(names):
                failures = former_counts.get(name)
                await _put(connection, name, Failures(1 if failures is None else failures.count + 1, now_ms))
            return former_counts

        return await self._database.write(work)

    async def take_back(
        self, names: Collection[bytes], former_counts: FailureCounts, counted_ms: int, now_ms: int
    ) -> None:
        """Undo the ``count`` that was made at ``counted_ms`` (Unix ms) and returned ``former_counts``."""

        async def work(connection: AsyncConnection) -> None:
            current_counts = await self._find(connection, names, now_ms)
            for name in sorted(current_counts):
                former_failures = former_counts.get(name)
                own_failures = Failures(1 if former_failures is None else former_failures.count + 1, counted_ms)
                if current_counts[name] != own_failures:  # other attempts have failed since
                    await _put(
                        connection, name, Failures(max(current_counts[name].count - 1, 0), current_counts[name].at_ms)
                    )
                elif former_failures is not None:
                    await _put(connection, name, former_failures)
                else:
                    await connection.execute(_DELETE_FAILURES, {"names": [name]})

        await self._database.write(work)

    async def forget(self, name: bytes) -> None:
        await self._database.change(_DELETE_FAILURES.bindparams(names=[name]))

    async def _find(self, connection: AsyncConnection, names: Collection[bytes], now_ms: int) -> FailureCounts:
        rows = await connection.execute(_FIND_FAILURES, {"names": list(names), "since_ms": now_ms - self._kept_ms})
        return _read(rows)

    async def _purge(self, connection: AsyncConnection, now_ms: int) -> None:
        if now_ms - self._purged_ms > _PURGE_INTERVAL_MS:
            self._purged_ms = now_ms
            await connection.execute(_DELETE_OLD_FAILURES, {"since_ms": now_ms - self._kept_ms})


def _read(rows: Any) -> FailureCounts:
    return {bytes(row.name): Failures(row.failures, row.at_ms) for row in rows}


async def _put(connection: AsyncConnection, name: bytes, failures: Failures) -> None:
    await connection.execute(_PUT_FAILURES, {"name": name, "failures": failures.count, "at_ms": failures.at_ms})
