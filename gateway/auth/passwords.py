"""Password hashing and comparison in threads, which keep the event loop free.

argon2id (RFC 9106) with 19 MiB, 2 passes and 1 lane, as in OWASP's Password Storage Cheat Sheet: 25 ms of one core.
"""

import asyncio
import unicodedata
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from gateway.errors import RateLimited
from gateway.frozen import frozen

if TYPE_CHECKING:
    from argon2 import PasswordHasher

T = TypeVar("T")

MAX_PARALLEL_HASHES = 2
"""Concurrent hashes: sign-in uses at most this many cores, and 19 MiB for each."""
MAX_QUEUED_HASHES = 16
"""Maximum of waiting hashes; further ones are refused."""
_SALT_BYTES, _HASH_BYTES = 16, 32


@frozen
class HashCost:
    """The cost of one argon2id hash: memory in KiB, passes over the memory, and parallel lanes."""

    memory_kib: int = 19_456
    passes: int = 2
    lanes: int = 1


OWASP = HashCost()


class PasswordService:
    """Creates and compares hashes in its own threads, which ``close`` ends.

    Raises ``RateLimited`` while too many hashes wait.
    """

    def __init__(self, cost: HashCost = OWASP) -> None:
        self._cost = cost
        self._unfinished_count = 0

    async def hash(self, passphrase: str) -> str:
        return await self._run(partial(self._hasher.hash, _normalize(passphrase)))

    async def matches(self, passphrase_hash: str | None, passphrase: str) -> bool:
        """Return whether ``passphrase_hash`` is the passphrase's hash; False for None, after as long a computation."""
        return await self._run(partial(self._compare, passphrase_hash or self._decoy_hash, _normalize(passphrase)))

    def needs_rehash(self, passphrase_hash: str) -> bool:
        """Return whether ``passphrase_hash`` was created with a cost other than today's."""
        return self._hasher.check_needs_rehash(passphrase_hash)

    def close(self) -> None:
        if "_pool" in self.__dict__:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _compare(self, passphrase_hash: str, passphrase: bytes) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError  # noqa: PLC0415 - as below

        try:
            return self._hasher.verify(passphrase_hash, passphrase)
        except (VerificationError, InvalidHashError):
            return False

    async def _run(self, work: "partial[T]") -> T:
        if self._unfinished_count >= MAX_PARALLEL_HASHES + MAX_QUEUED_HASHES:
            raise RateLimited("Too many people are signing in right now", retry_after_s=2)
        self._unfinished_count += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(self._finish_hash)  # not when the awaiting task ends, because the thread continues
        return await asyncio.shield(future)

    def _finish_hash(self, future: "asyncio.Future[T]") -> None:
        self._unfinished_count -= 1
        if not future.cancelled():
            future.exception()

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(MAX_PARALLEL_HASHES, "passphrases")

    @cached_property
    def _hasher(self) -> "PasswordHasher":
        # Imported at the first sign-in: a gateway without console users does not need it.
        from argon2 import PasswordHasher  # noqa: PLC0415 - see above

        return PasswordHasher(self._cost.passes, self._cost.memory_kib, self._cost.lanes, _HASH_BYTES, _SALT_BYTES)

    @cached_property
    def _decoy_hash(self) -> str:
        """A hash of today's cost that no known passphrase matches."""
        salt, digest = (b64encode(bytes(size)).decode().rstrip("=") for size in (_SALT_BYTES, _HASH_BYTES))
        cost = f"m={self._cost.memory_kib},t={self._cost.passes},p={self._cost.lanes}"
        return f"$argon2id$v=19${cost}${salt}${digest}"


def _normalize(passphrase: str) -> bytes:
    """Return the bytes of a passphrase, normalized because keyboards differ (NIST SP 800-63B, 5.1.1.2)."""
    return unicodedata.normalize("NFKC", passphrase).encode("utf-8", "surrogatepass")
