"""Slows down guessing across all nodes of a cluster: asking several nodes gives an attacker no more attempts."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from gateway.auth.login_throttle import ADDRESS_PACE, MAX_COUNTERS, NAME_PACE, PAIR_PACE, check_wait, make_counter_key
from gateway.auth.short_lived import ShortLived
from gateway.cluster.state.failed_sign_ins import FailedSignIns, FailureCounts
from gateway.domain.ip_address import find_subnet
from gateway.domain.member import WrongPassphrase
from gateway.errors import StoreUnavailable

_KNOWN_ADDRESS = "signed_in_from"
_KNOWN_ADDRESS_TTL_MS = 30 * 24 * 3_600_000
"""How long after a sign-in only failures of the same name at the same address make its next sign-in there wait."""


class SharedThrottle:
    """Limits attempts by name and address, counted in the cluster's database.

    ``space`` separates the counts of several throttles.
    """

    def __init__(
        self, failures: FailedSignIns, values: ShortLived, clock: Callable[[], float], *, space: str = ""
    ) -> None:
        self._failures = failures
        self._values = values
        self._clock = clock
        self._space = space
        self._wait_ends: OrderedDict[bytes, float] = OrderedDict()
        """When the wait of a name at an address ends (Unix s): refused guesses cause no query meanwhile."""

    @asynccontextmanager
    async def attempt(
        self, name: str, address: str, failure_type: type[Exception] = WrongPassphrase, *, is_whole: bool = True
    ) -> AsyncIterator[None]:
        """Run the block as one attempt, as ``LoginThrottle.attempt`` does.

        Raises ``RateLimited`` while the name or the address has to wait after failures.
        """
        network = find_subnet(address)
        parts = ((self._space, name, network), (self._space, "name", name), (self._space, "address", network))
        pair_key, name_key, address_key = names = tuple(make_counter_key(*part) for part in parts)
        check_wait(self._wait_ends.get(pair_key, 0.0) - self._clock())
        is_known_address = await self._values.find(_KNOWN_ADDRESS, pair_key) is not None
        pace_by_key = (
            {pair_key: PAIR_PACE}
            if is_known_address
            else {pair_key: PAIR_PACE, name_key: NAME_PACE, address_key: ADDRESS_PACE}
        )

        def check_counts(counts: FailureCounts) -> None:
            until_s = (
                failures.at_ms / 1000 + pace.compute_wait_s(failures.count)
                for key, pace in pace_by_key.items()
                if (failures := counts.get(key)) is not None
            )
            self._raise_if_waiting(pair_key, max(until_s, default=0.0))

        check_counts(await self._failures.find(names, self._now_ms()))  # a refused attempt needs no write
        counted_ms = self._now_ms()
        former_counts = await self._failures.count(names, counted_ms, check_counts)
        has_failed = False
        try:
            yield
        except failure_type:
            has_failed = True
            raise
        finally:
            if not has_failed:
                await asyncio.shield(self._take_back(names, former_counts, counted_ms))
        if is_whole:
            await self._record_address(pair_key, is_known_address=is_known_address)

    def _raise_if_waiting(self, pair_key: bytes, until_s: float) -> None:
        wait_s = until_s - self._clock()
        if wait_s > 0:
            self._wait_ends[pair_key] = until_s
            if len(self._wait_ends) > MAX_COUNTERS:
                self._wait_ends.popitem(last=False)
        check_wait(wait_s)

    async def _take_back(self, names: tuple[bytes, ...], former_counts: FailureCounts, counted_ms: int) -> None:
        with suppress(StoreUnavailable):  # otherwise the attempt counts as failed for some minutes
            await self._failures.take_back(names, former_counts, counted_ms, self._now_ms())

    async def _record_address(self, pair_key: bytes, *, is_known_address: bool) -> None:
        with suppress(StoreUnavailable):
            await self._failures.forget(pair_key)
            if not is_known_address:
                await self._values.put(_KNOWN_ADDRESS, pair_key, b"", self._now_ms() + _KNOWN_ADDRESS_TTL_MS)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
