"""Stores of short-lived values of sign-ins and client secrets: the protocol, and the store in memory of one process."""

from collections.abc import Callable
from typing import Protocol

from gateway.frozen import frozen


class ShortLived(Protocol):
    """Values by kind and name, until they expire."""

    async def put(self, kind: str, name: bytes, value: bytes, expires_ms: int, key_id: int | None = None) -> bool:
        """Store a value unless there is one already; return whether it was stored. ``count_values`` uses ``key_id``."""
        ...

    async def find(self, kind: str, name: bytes) -> bytes | None: ...

    async def remove(self, kind: str, name: bytes) -> bool: ...

    async def count_values(self, kind: str, key_id: int) -> tuple[int, int, int]:
        """Return how many values of a kind a key has, how many there are, and the earliest expiry in Unix ms.

        The expiry is that of the key's values if it has any, else of all values; 0 without any value.
        """
        ...


@frozen
class _Value:
    value: bytes
    expires_ms: int
    key_id: int | None


class MemoryValues:
    """A ``ShortLived`` in the memory of one process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: dict[tuple[str, bytes], _Value] = {}

    def __len__(self) -> int:
        return len(self._values)

    async def put(self, kind: str, name: bytes, value: bytes, expires_ms: int, key_id: int | None = None) -> bool:
        """Store a value unless there is one already; return whether it was stored. ``count_values`` uses ``key_id``."""
        now_ms = self._clock() * 1000
        self._values = {path: entry for path, entry in self._values.items() if entry.expires_ms > now_ms}
        if (kind, name) in self._values:
            return False
        self._values[kind, name] = _Value(value, expires_ms, key_id)
        return True

    async def find(self, kind: str, name: bytes) -> bytes | None:
        entry = self._values.get((kind, name))
        return None if entry is None or entry.expires_ms <= self._clock() * 1000 else entry.value

    async def remove(self, kind: str, name: bytes) -> bool:
        entry = self._values.pop((kind, name), None)
        return entry is not None and entry.expires_ms > self._clock() * 1000

    async def count_values(self, kind: str, key_id: int) -> tuple[int, int, int]:
        """Return how many values of a kind a key has, how many there are, and the earliest expiry in Unix ms.

        The expiry is that of the key's values if it has any, else of all values; 0 without any value.
        """
        now_ms = self._clock() * 1000
        entries = [
            entry for (entry_kind, _), entry in self._values.items() if entry_kind == kind and entry.expires_ms > now_ms
        ]
        own_expiries = [entry.expires_ms for entry in entries if entry.key_id == key_id]
        return len(own_expiries), len(entries), min(own_expiries or [entry.expires_ms for entry in entries], default=0)
