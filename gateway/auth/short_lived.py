"""Values that sign-in and client secrets need for minutes: in memory, or in the database for all nodes of a cluster."""

from collections.abc import Callable
from typing import Protocol

from gateway.frozen import frozen


class ShortLived(Protocol):
    """Values by kind and name, until they expire. Every method raises ``StoreUnavailable``."""

    async def put(self, kind: str, name: bytes, value: bytes, expires_ms: int, key_id: int | None = None) -> bool:
        """Store a value unless there is one already; return whether the value was stored."""
        ...

    async def find(self, kind: str, name: bytes) -> bytes | None: ...

    async def remove(self, kind: str, name: bytes) -> bool: ...

    async def count_values(self, kind: str, key_id: int) -> tuple[int, int, int]:
        """Return the number of a key's values, the number of all values, and the earliest expiry in Unix ms.

        The expiry is that of the key's values if it has any, else of all values; 0 without any value.
        """
        ...


@frozen
class _Value:
    value: bytes
    expires_ms: int
    key_id: int | None


class MemoryValues:
    """The values of one process. ``clock``: Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: dict[tuple[str, bytes], _Value] = {}

    def __len__(self) -> int:
        return len(self._values)

    async def put(self, kind: str, name: bytes, value: bytes, expires_ms: int, key_id: int | None = None) -> bool:
        """Store a value unless there is one already; return whether the value was stored."""
        now_ms = self._clock() * 1000
        self._values = {path: kept for path, kept in self._values.items() if kept.expires_ms > now_ms}
        if (kind, name) in self._values:
            return False
        self._values[kind, name] = _Value(value, expires_ms, key_id)
        return True

    async def find(self, kind: str, name: bytes) -> bytes | None:
        kept = self._values.get((kind, name))
        return None if kept is None or kept.expires_ms <= self._clock() * 1000 else kept.value

    async def remove(self, kind: str, name: bytes) -> bool:
        kept = self._values.pop((kind, name), None)
        return kept is not None and kept.expires_ms > self._clock() * 1000

    async def count_values(self, kind: str, key_id: int) -> tuple[int, int, int]:
        """Return the number of a key's values, the number of all values, and the earliest expiry (Unix ms)."""
        now_ms = self._clock() * 1000
        found = [kept for (of, _), kept in self._values.items() if of == kind and kept.expires_ms > now_ms]
        own = [kept.expires_ms for kept in found if kept.key_id == key_id]
        return len(own), len(found), min(own or [kept.expires_ms for kept in found], default=0)
