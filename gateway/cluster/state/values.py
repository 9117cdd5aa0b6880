"""Encrypted short-lived values shared by the nodes of a cluster. Only PostgreSQL databases have the table."""

from collections.abc import Callable

from sqlalchemy import text

from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.encryption import DecryptionFailed, SecretBox

PURPOSE = "shared values"
"""The encryption purpose of the values."""
_DELETE_EXPIRED = text("DELETE FROM shared_values WHERE expires_ms <= :now_ms")
_INSERT_VALUE = text("""
INSERT INTO shared_values (kind, name, key_id, value, expires_ms) VALUES (:kind, :name, :key_id, :value, :expires_ms)
ON CONFLICT DO NOTHING
""")
_FIND_VALUE = text("SELECT value FROM shared_values WHERE kind = :kind AND name = :name AND expires_ms > :now_ms")
_DELETE_VALUE = text("DELETE FROM shared_values WHERE kind = :kind AND name = :name AND expires_ms > :now_ms")
_COUNT_VALUES = text("""
SELECT count(*) FILTER (WHERE key_id = :key_id) AS own, count(*) AS total,
  coalesce(min(expires_ms) FILTER (WHERE key_id = :key_id), min(expires_ms), 0) AS first_ms
FROM shared_values WHERE kind = :kind AND expires_ms > :now_ms
""")


class SharedValues:
    """The ``shared_values`` table. ``secret_box`` encrypts the values, each bound to its kind and name."""

    def __init__(self, database: Database, secret_box: SecretBox, clock: Callable[[], float]) -> None:
        self._database = database
        self._secret_box = secret_box.derive(PURPOSE)
        self._clock = clock

    async def put(self, kind: str, name: bytes, value: bytes, expires_ms: int, key_id: int | None = None) -> bool:
        sealed = self._secret_box.seal(value, context=_build_associated_data(kind, name))
        row = {"kind": kind, "name": name, "key_id": key_id, "value": sealed, "expires_ms": expires_ms}

        async def work(connection: AsyncConnection) -> bool:
            await connection.execute(_DELETE_EXPIRED, {"now_ms": self._now_ms()})
            return bool((await connection.execute(_INSERT_VALUE, row)).rowcount)

        return await self._database.write(work)

    async def find(self, kind: str, name: bytes) -> bytes | None:
        statement = _FIND_VALUE.bindparams(kind=kind, name=name, now_ms=self._now_ms())
        for row in await self._database.read(statement):
            try:
                return self._secret_box.open(bytes(row.value), context=_build_associated_data(kind, name))
            except DecryptionFailed:
                return None
        return None

    async def remove(self, kind: str, name: bytes) -> bool:
        return bool(await self._database.change(_DELETE_VALUE.bindparams(kind=kind, name=name, now_ms=self._now_ms())))

    async def count_values(self, kind: str, key_id: int) -> tuple[int, int, int]:
        statement = _COUNT_VALUES.bindparams(kind=kind, key_id=key_id, now_ms=self._now_ms())
        (row,) = await self._database.read(statement)
        return row.own, row.total, row.first_ms

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _build_associated_data(kind: str, name: bytes) -> str:
    return f"{kind}:{name.hex()}"
