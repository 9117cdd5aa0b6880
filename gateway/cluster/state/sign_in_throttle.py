"""Slows down guessing across all nodes of a cluster: asking several nodes gives an attacker no more attempts."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from gateway.auth.login_throttle import ADDRESS_PACE, MAX_COUNTERS, NAME_PACE, PAIR_PACE, check_wait, make_counter_key
from gateway.auth.short_lived import ShortLived
from gateway.cluster.state.failed_sign_ins import Counts, FailedSignIns
from gateway.domain.ip_address import find_subnet
from gateway.domain.member import WrongPassphrase
from gateway.errors import StoreUnavailable

_HOME = "signed_in_from"
_HOME_MS = 30 * 24 * 3_600_000
"""How long after a sign-in a member's address is exempt from waiting for failures of other names and addresses."""


class SharedThrottle:
    """Attempts by name and address, in the cluster's database. ``space`` separates the counts of several throttles."""

    def __init__(
        self, failures: FailedSignIns, values: ShortLived, clock: Callable[[], float], *, space: str = ""
    ) -> None:
        self._failures = failures
        self._values = values
        self._clock = clock
        self._space = space
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        """When the wait of a name at an address ends (Unix s): refused guesses cause no query meanwhile."""

    @asynccontextmanager
    async def attempt(
        self, name: str, address: str, fails: type[Exception] = WrongPassphrase, *, is_whole: bool = True
    ) -> AsyncIterator[None]:
        """Run the block as one attempt, as ``LoginThrottle.attempt`` does. Raises ``RateLimited``."""
        network = find_subnet(address)
        parts = ((self._space, name, network), (self._space, "name", name), (self._space, "address", network))
        pair, named, placed = names = tuple(make_counter_key(*each) for each in parts)
        check_wait(self._refused.get(pair, 0.0) - self._clock())
        at_home = await self._values.find(_HOME, pair) is not None
        paces = {pair: PAIR_PACE} if at_home else {pair: PAIR_PACE, named: NAME_PACE, placed: ADDRESS_PACE}

        def judge(counts: Counts) -> None:
            until_s = (
                found.at_ms / 1000 + pace.compute_wait_s(found.count)
                for key, pace in paces.items()
                if (found := counts.get(key)) is not None
            )
            self._raise_if_waiting(pair, max(until_s, default=0.0))

        judge(await self._failures.find(names, self._now_ms()))  # a refused attempt needs no write
        counted_ms = self._now_ms()
        before = await self._failures.count(names, counted_ms, judge)
        failed = False
        try:
            yield
        except fails:
            failed = True
            raise
        finally:
            if not failed:
                await asyncio.shield(self._take_back(names, before, counted_ms))
        if is_whole:
            await self._record_known(pair, at_home=at_home)

    def _raise_if_waiting(self, pair: bytes, until_s: float) -> None:
        wait_s = until_s - self._clock()
        if wait_s > 0:
            self._refused[pair] = until_s
            if len(self._refused) > MAX_COUNTERS:
                self._refused.popitem(last=False)
        check_wait(wait_s)

    async def _take_back(self, names: tuple[bytes, ...], before: Counts, counted_ms: int) -> None:
        with suppress(StoreUnavailable):  # otherwise the attempt counts as failed for some minutes
            await self._failures.take_back(names, before, counted_ms, self._now_ms())

    async def _record_known(self, pair: bytes, *, at_home: bool) -> None:
        with suppress(StoreUnavailable):
            await self._failures.forget(pair)
            if not at_home:
                await self._values.put(_HOME, pair, b"", self._now_ms() + _HOME_MS)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
