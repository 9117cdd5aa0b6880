"""Failed sign-ins, counted across all nodes of a cluster. Only PostgreSQL databases have the table."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sqlalchemy import bindparam, text

from gateway.frozen import quick_frozen
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database

_FIND = text("SELECT name, failures, at_ms FROM failed_sign_ins WHERE name IN :names AND at_ms > :since_ms").bindparams(
    bindparam("names", expanding=True)
)
_PUT = text("""
INSERT INTO failed_sign_ins (name, failures, at_ms) VALUES (:name, :failures, :at_ms)
ON CONFLICT (name) DO UPDATE SET failures = excluded.failures, at_ms = excluded.at_ms
""")
_DELETE = text("DELETE FROM failed_sign_ins WHERE name IN :names").bindparams(bindparam("names", expanding=True))
_PURGE = text("DELETE FROM failed_sign_ins WHERE at_ms <= :since_ms")
_PURGED_EVERY_MS = 60_000


@quick_frozen
class Failures:
    """The number of failed attempts; the last failed at ``at_ms`` (Unix ms)."""

    count: int
    at_ms: int


Counts = Mapping[bytes, Failures]
"""Counts by the digests of names and addresses."""


class FailedSignIns:
    """The ``failed_sign_ins`` table. ``kept_ms``: how long failures count after the last one."""

    def __init__(self, database: Database, kept_ms: int) -> None:
        self._database = database
        self._kept_ms = kept_ms
        self._purged_ms = 0

    async def find(self, names: Collection[bytes], now_ms: int) -> Counts:
        rows = await self._database.read(_FIND.bindparams(names=list(names), since_ms=now_ms - self._kept_ms))
        return _read(rows)

    async def count(self, names: Collection[bytes], now_ms: int, judge: Callable[[Counts], None]) -> Counts:
        """Count one more failure for each name, unless ``judge`` raises; return the previous counts."""

        async def work(connection: AsyncConnection) -> Counts:
            await self._purge(connection, now_ms)
            before = await self._find(connection, names, now_ms)
            judge(before)
            for name in sorted(names):
                known = before.get(name)
                await _put(connection, name, Failures(1 if known is None else known.count + 1, now_ms))
            return before

        return await self._database.write(work)

    async def take_back(self, names: Collection[bytes], before: Counts, counted_ms: int, now_ms: int) -> None:
        """Undo the ``count`` of ``counted_ms``; ``before`` is its result."""

        async def work(connection: AsyncConnection) -> None:
            now = await self._find(connection, names, now_ms)
            for name in sorted(now):
                known = before.get(name)
                counted = Failures(1 if known is None else known.count + 1, counted_ms)
                if now[name] != counted:  # other attempts have failed since
                    await _put(connection, name, Failures(max(now[name].count - 1, 0), now[name].at_ms))
                elif known is not None:
                    await _put(connection, name, known)
                else:
                    await connection.execute(_DELETE, {"names": [name]})

        await self._database.write(work)

    async def forget(self, name: bytes) -> None:
        await self._database.change(_DELETE.bindparams(names=[name]))

    async def _find(self, connection: AsyncConnection, names: Collection[bytes], now_ms: int) -> Counts:
        rows = await connection.execute(_FIND, {"names": list(names), "since_ms": now_ms - self._kept_ms})
        return _read(rows)

    async def _purge(self, connection: AsyncConnection, now_ms: int) -> None:
        if now_ms - self._purged_ms > _PURGED_EVERY_MS:
            self._purged_ms = now_ms
            await connection.execute(_PURGE, {"since_ms": now_ms - self._kept_ms})


def _read(rows: Any) -> Counts:
    return {bytes(row.name): Failures(row.failures, row.at_ms) for row in rows}


async def _put(connection: AsyncConnection, name: bytes, failures: Failures) -> None:
    await connection.execute(_PUT, {"name": name, "failures": failures.count, "at_ms": failures.at_ms})
