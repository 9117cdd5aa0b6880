"""The channel limits that several gateways share, usually limits agreed with the provider.

A gateway's own count, in ``ChannelState``, applies as well: it refuses without asking when this gateway alone exceeds a
limit.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gateway.domain.channel import Channel
from gateway.domain.rate_limit import (
    MINUTE_S,
    Limits,
    RateLimiter,
    RateLimitPermit,
    RateLimitSubject,
    compute_smooth_burst,
)
from gateway.errors import Overloaded, RateLimited
from gateway.routing.channel_state import ChannelSlot, ChannelState

_Subjects = tuple[RateLimitSubject]
MAX_CHANNELS = 1_000
"""How many channels' limits are cached."""


class ChannelLimiter(RateLimiter, Protocol):
    """A rate limiter that several gateways share."""

    def add_requests(self, subjects: Sequence[RateLimitSubject], requests: int) -> None: ...


class SharedChannelLimits:
    """Asks the shared limiter before each attempt on a channel that has limits."""

    def __init__(self, limiter: ChannelLimiter) -> None:
        self._limiter = limiter
        self._subjects: dict[str, _Subjects] = {}

    async def acquire(self, slot: ChannelSlot) -> bool:
        """Count an attempt across all gateways and return True; return False, uncounted, if a limit refuses it."""
        subjects = self._find_subjects(slot.state.channel)
        if subjects is None:
            return True
        permit = await self._take_permit(subjects)
        if permit is None:
            if (rpm := slot.state.channel.rpm) is not None:
                slot.state.tat -= MINUTE_S / rpm
            return False
        slot.shared = self
        slot.permits = (permit,)
        return True

    async def widen(self, slot: ChannelSlot, parts: int, places: int) -> int:
        """Count ``parts`` more requests of an attempt. Take up to ``places`` permits; return the number taken."""
        subjects = self._find_subjects(slot.state.channel)
        if subjects is None:
            return places

        async def take_place() -> None:
            permit = await self._take_permit(subjects)
            if permit is not None and slot.ended:
                self._limiter.release(permit, 0)
            elif permit is not None:
                slot.permits += (permit,)

        former_count = len(slot.permits)
        await asyncio.gather(*(take_place() for _ in range(places)))
        taken_places = len(slot.permits) - former_count
        self._limiter.add_requests(subjects, parts - taken_places)
        return taken_places

    def release(self, slot: ChannelSlot) -> None:
        permits, slot.permits = slot.permits, ()
        for permit in permits:
            self._limiter.release(permit, 0)

    def has_spare(self, state: ChannelState) -> bool:
        """Return whether, by the last known state, a request of low priority may take a place."""
        subjects = self._find_subjects(state.channel)
        try:
            if subjects is not None:
                self._limiter.check_spare(subjects, 0)
        except (RateLimited, Overloaded):
            return False
        return True

    async def _take_permit(self, subjects: _Subjects) -> RateLimitPermit | None:
        try:
            return self._limiter.take_now(subjects, 0) or await self._limiter.take(subjects, 0)
        except (RateLimited, Overloaded):
            return None

    def _find_subjects(self, channel: Channel) -> _Subjects | None:
        """Return the channel's subject, the same object for the same limits; None without limits."""
        rpm, max_concurrency = channel.rpm, channel.max_concurrency
        if rpm is None and max_concurrency is None:
            return None
        limits = Limits(rpm, None, max_concurrency, None if rpm is None else compute_smooth_burst(rpm))
        subjects = self._subjects.get(channel.name)
        if subjects is None or subjects[0].limits != limits:
            if len(self._subjects) >= MAX_CHANNELS:  # most of them belong to removed channels
                self._subjects.clear()
            subjects = self._subjects[channel.name] = (RateLimitSubject("channel", channel.name, limits),)
        return subjects
