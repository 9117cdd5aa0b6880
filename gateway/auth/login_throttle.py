"""Slows down guessing. Each failed attempt lengthens the next wait, during which no passphrase is compared."""

import hashlib
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import attrs

from gateway.domain.ip_address import find_subnet
from gateway.domain.member import WrongPassphrase
from gateway.errors import RateLimited
from gateway.frozen import frozen

MAX_COUNTERS = 10_000
COUNTER_TTL_S = 15 * 60.0


@frozen
class Pace:
    """The waits after failed attempts.

    The first ``free_attempts`` are made without a wait. From the last of them on, failures cause waits of 1, 2, 4 …
    seconds, up to ``max_wait_s``.
    """

    free_attempts: int
    max_wait_s: float

    def compute_wait_s(self, attempts: int) -> float:
        if attempts < self.free_attempts:
            return 0.0
        return min(self.max_wait_s, 2.0 ** min(attempts - self.free_attempts, 32))


PAIR_PACE = Pace(5, 300.0)
ADDRESS_PACE = Pace(30, 300.0)
NAME_PACE = Pace(30, 60.0)
"""Pace for one name from any address. A single attacker can cause this wait, so it does not apply to an address from
which the member has signed in before."""


@frozen
class _AttemptCount:
    attempts: int
    at_s: float


class _AttemptCounter:
    """Counts failed attempts by key, for at most ``max_counters`` keys: the key with the oldest count is dropped."""

    def __init__(self, pace: Pace, clock: Callable[[], float], max_counters: int) -> None:
        self._pace = pace
        self._max_counters = max_counters
        self._clock = clock
        self._counts: OrderedDict[bytes, _AttemptCount] = OrderedDict()

    def compute_wait_s(self, key: bytes) -> float:
        attempt_count = self._find(key)
        if attempt_count is None:
            return 0.0
        return attempt_count.at_s + self._pace.compute_wait_s(attempt_count.attempts) - self._clock()

    def count(self, key: bytes) -> Callable[[], None]:
        """Count one more attempt; return a function that undoes this."""
        earlier_count = self._find(key)
        self._counts[key] = attempt_count = _AttemptCount(
            1 if earlier_count is None else earlier_count.attempts + 1, self._clock()
        )
        self._counts.move_to_end(key)
        if len(self._counts) > self._max_counters:
            self._counts.popitem(last=False)

        def undo() -> None:
            current_count = self._counts.get(key)
            if current_count is attempt_count and earlier_count is not None:
                self._counts[key] = earlier_count
            elif current_count is attempt_count:
                del self._counts[key]
            elif current_count is not None:
                self._counts[key] = attrs.evolve(current_count, attempts=max(current_count.attempts - 1, 0))

        return undo

    def forget(self, key: bytes) -> None:
        self._counts.pop(key, None)

    def _find(self, key: bytes) -> _AttemptCount | None:
        attempt_count = self._counts.get(key)
        return (
            attempt_count if attempt_count is not None and self._clock() < attempt_count.at_s + COUNTER_TTL_S else None
        )


class Throttle(Protocol):
    """Limits attempts by name and address, in one process or across all nodes of a cluster."""

    def attempt(
        self, name: str, address: str, failure_type: type[Exception] = ..., *, is_whole: bool = ...
    ) -> AbstractAsyncContextManager[None]:
        """Run the block as one attempt. Raises ``RateLimited``."""
        ...


class LoginThrottle:
    """Limits attempts by name, by address and by both together, in memory.

    Each of the three has at most ``max_counters`` counters. ``clock`` is monotonic.
    """

    def __init__(self, clock: Callable[[], float], *, max_counters: int = MAX_COUNTERS) -> None:
        paces = (PAIR_PACE, NAME_PACE, ADDRESS_PACE)
        self._pairs, self._names, self._addresses = (_AttemptCounter(pace, clock, max_counters) for pace in paces)
        self._max_counters = max_counters
        self._known_pairs: OrderedDict[bytes, None] = OrderedDict()

    @asynccontextmanager
    async def attempt(
        self, name: str, address: str, failure_type: type[Exception] = WrongPassphrase, *, is_whole: bool = True
    ) -> AsyncIterator[None]:
        """Run the block as one attempt, which fails if the block raises ``failure_type``.

        An attempt counts from its start, so parallel attempts gain nothing. If ``is_whole`` is False, success does not
        open a session yet, and earlier failures stay counted. Raises ``RateLimited``.
        """
        network = find_subnet(address)
        pair_key, name_key, address_key = (
            make_counter_key(name, network),
            make_counter_key(name),
            make_counter_key(network),
        )
        wait_s = self._pairs.compute_wait_s(pair_key)
        if pair_key not in self._known_pairs:
            wait_s = max(wait_s, self._names.compute_wait_s(name_key), self._addresses.compute_wait_s(address_key))
        check_wait(wait_s)
        undo_functions = [self._pairs.count(pair_key), self._names.count(name_key), self._addresses.count(address_key)]
        try:
            yield
        except failure_type:
            undo_functions.clear()
            raise
        finally:
            for undo in undo_functions:
                undo()
        if is_whole:
            self._pairs.forget(pair_key)
            self._record_pair(pair_key)

    def _record_pair(self, pair_key: bytes) -> None:
        self._known_pairs[pair_key] = None
        self._known_pairs.move_to_end(pair_key)
        if len(self._known_pairs) > self._max_counters:
            self._known_pairs.popitem(last=False)


def check_wait(wait_s: float) -> None:
    """Raise ``RateLimited`` if ``wait_s`` is above 0."""
    if wait_s > 0:
        seconds = math.ceil(wait_s)
        raise RateLimited(f"Too many wrong attempts: wait {seconds} s", retry_after_s=seconds)


def make_counter_key(*values: str) -> bytes:
    """Return the key under which attempts are counted. ``values`` are a name, a network, or both."""
    # Users sometimes type a passphrase into the name field, so only a digest is kept here.
    return hashlib.blake2b("\0".join(values).encode("utf-8", "surrogatepass"), digest_size=16).digest()
