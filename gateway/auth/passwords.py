"""Passphrases, hashed and compared where nobody waits for it but who asks.

argon2id (RFC 9106) with 19 MiB, 2 passes and 1 lane: OWASP's Password Storage Cheat Sheet. That is 25 ms of a core.
"""

import asyncio
import unicodedata
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

import attrs

from gateway.errors import RateLimited

if TYPE_CHECKING:
    from argon2 import PasswordHasher

T = TypeVar("T")

AT_ONCE = 2
"""Hashes at a time: so many cores and 19 MiB are lent to people who sign in, and no more."""
MOST_WAITING = 16
"""Beside them; whoever comes then is told to come again."""
_SALT_BYTES, _HASH_BYTES = 16, 32


@attrs.frozen
class HashCost:
    """What a hash costs who makes one, or guesses."""

    memory_kib: int = 19_456
    passes: int = 2
    lanes: int = 1


OWASP = HashCost()


class PasswordService:
    """Makes hashes and compares with them, in threads of its own. ``close`` ends those."""

    def __init__(self, cost: HashCost = OWASP) -> None:
        self._cost = cost
        self._under_way = 0

    async def hash(self, passphrase: str) -> str:
        """What is kept of a passphrase. Raises ``RateLimited`` where too many wait."""
        return await self._run(partial(self._hasher.hash, _normalize(passphrase)))

    async def fits(self, kept: str | None, passphrase: str) -> bool:
        """Whether ``kept`` was made from it; with None it was not, which takes as long to tell.

        Raises ``RateLimited`` where too many wait.
        """
        return await self._run(partial(self._compare, kept or self._nobodys, _normalize(passphrase)))

    def is_worn(self, kept: str) -> bool:
        """Whether ``kept`` was made at another cost than one would be made today."""
        return self._hasher.check_needs_rehash(kept)

    def close(self) -> None:
        """End the threads; one that is at work finishes for nobody."""
        if "_pool" in self.__dict__:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _compare(self, kept: str, passphrase: bytes) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError  # noqa: PLC0415 - as below

        try:
            return self._hasher.verify(kept, passphrase)
        except (VerificationError, InvalidHashError):
            return False

    async def _run(self, work: "partial[T]") -> T:
        if self._under_way >= AT_ONCE + MOST_WAITING:
            raise RateLimited("Too many people sign in at this moment", retry_after_s=2)
        self._under_way += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(self._end)  # and not where the caller leaves: a thread goes on
        return await asyncio.shield(future)

    def _end(self, future: "asyncio.Future[T]") -> None:
        self._under_way -= 1
        if not future.cancelled():
            future.exception()

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(AT_ONCE, "passphrases")

    @cached_property
    def _hasher(self) -> "PasswordHasher":
        # Imported where somebody signs in: a gateway that nobody looks at needs none of it.
        from argon2 import PasswordHasher  # noqa: PLC0415 - see above

        return PasswordHasher(self._cost.passes, self._cost.memory_kib, self._cost.lanes, _HASH_BYTES, _SALT_BYTES)

    @cached_property
    def _nobodys(self) -> str:
        """A hash of today's cost that no passphrase is known to fit."""
        salt, digest = (b64encode(bytes(size)).decode().rstrip("=") for size in (_SALT_BYTES, _HASH_BYTES))
        cost = f"m={self._cost.memory_kib},t={self._cost.passes},p={self._cost.lanes}"
        return f"$argon2id$v=19${cost}${salt}${digest}"


def _normalize(passphrase: str) -> bytes:
    """One form for what keyboards write in several: NIST SP 800-63B, 5.1.1.2. What is no Unicode fits nothing."""
    return unicodedata.normalize("NFKC", passphrase).encode("utf-8", "surrogatepass")
