"""Keeps the catalogue true: asks every synchronised channel for its models, at start and then regularly."""

import asyncio
import random
from collections.abc import Callable

from gateway.routing.channels import ChannelService
from gateway.routing.model_catalog import ModelCatalog

JITTER = 0.1


class ModelSyncer:
    """The job. A failed listing removes nothing; see ``domain/model_info.py`` for what a successful one changes.

    Args:
        catalog: what callers are offered.
        fleet: asks a channel, and takes in what it says.
        interval: seconds between two rounds; asked anew each time, for it may be changed while the gateway runs.
    """

    def __init__(self, catalog: ModelCatalog, fleet: ChannelService, *, interval: Callable[[], float]) -> None:
        self._catalog = catalog
        self._fleet = fleet
        self._interval = interval

    async def run(self) -> None:
        """Synchronise now and then regularly, for ever."""
        while True:
            await self.sync()
            await asyncio.sleep(self._interval() * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - no secret

    async def sync(self) -> None:
        """Ask every synchronised channel once, side by side."""
        await asyncio.gather(*(self._fleet.sync(channel) for channel in self._catalog.channels))
