"""Keeps the catalogue true: asks every synchronised channel for its models, at start and then regularly."""

import asyncio
import random
from collections.abc import Callable

import structlog

from gateway.domain.channel import Channel
from gateway.domain.fault import UpstreamFault
from gateway.flow.listing import fetch_models
from gateway.flow.models import Catalog
from gateway.upstream.port import Upstream

SYNC_INTERVAL_S = 600.0
JITTER = 0.1

log = structlog.stdlib.get_logger(__name__)


class SyncModels:
    """The job. A failed listing removes nothing; see ``domain/catalog.py`` for what a successful one changes.

    Args:
        catalog: what callers are offered.
        upstream: the way out.
        clock: Unix seconds.
    """

    def __init__(self, catalog: Catalog, upstream: Upstream, *, clock: Callable[[], float]) -> None:
        self._catalog = catalog
        self._upstream = upstream
        self._clock = clock

    async def run(self) -> None:
        """Synchronise now and then every ten minutes or so, for ever."""
        while True:
            await self.sync()
            await asyncio.sleep(SYNC_INTERVAL_S * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - no secret

    async def sync(self) -> None:
        """Ask every synchronised channel once, side by side."""
        await asyncio.gather(*(self._sync_channel(channel) for channel in self._catalog.channels if channel.sync))

    async def _sync_channel(self, channel: Channel) -> None:
        try:
            listing = await fetch_models(self._upstream, channel, now_s=int(self._clock()))
        except UpstreamFault as fault:
            log.warning("models_not_synced", channel=channel.name, error=fault.message)
            return
        came, went = self._catalog.apply_listing(channel, listing)
        if came or went:
            log.info("models_synced", channel=channel.name, models=len(listing), came=len(came), went=sorted(went))
