"""Slows down clients that send many unknown API keys: guessing, or misconfigured programs.

A valid key is never delayed, even if its address also sends unknown keys.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import attrs

from gateway.domain.ip_address import find_subnet
from gateway.errors import RateLimited

FREE_ATTEMPTS = 20
"""Unknown keys per address and window that are answered without delay."""
WINDOW_S = 60.0
DELAY_S = 1.0
"""The delay of further answers, in seconds."""
MAX_DELAYED = 10
"""Concurrent delayed answers per address; further requests are refused at once."""
MAX_ADDRESSES = 10_000
"""Maximum of remembered addresses; the oldest one is dropped."""


@attrs.define
class _Window:
    until_s: float
    unknown_key_count: int = 0
    delayed_count: int = 0


class UnknownKeys:
    """Counts unknown keys by client address: an IPv4 address, or the first 64 bits of an IPv6 address."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        free_attempts: int = FREE_ATTEMPTS,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self.free_attempts = free_attempts
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    async def delay_request(self, address: str | None) -> None:
        """Count an unknown key; return when its request may be answered. Raises ``RateLimited`` if too many wait."""
        window = self._find(find_subnet(address or ""))
        window.unknown_key_count += 1
        if window.unknown_key_count <= self.free_attempts:
            return
        if window.delayed_count >= MAX_DELAYED:
            wait_s = max(1, math.ceil(window.until_s - self._clock()))
            raise RateLimited(f"Too many unknown API keys from your address: wait {wait_s} s", retry_after_s=wait_s)
        window.delayed_count += 1
        try:
            await self._sleep(DELAY_S)
        finally:
            window.delayed_count -= 1

    def _find(self, network: str) -> _Window:
        now_s = self._clock()
        window = self._windows.get(network)
        if window is None or (now_s >= window.until_s and not window.delayed_count):
            self._windows.pop(network, None)
            window = self._windows[network] = _Window(now_s + WINDOW_S)
            if len(self._windows) > MAX_ADDRESSES:
                self._windows.popitem(last=False)
        return window
