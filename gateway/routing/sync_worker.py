"""Keeps the catalog and the channels up to date, regularly.

Lists the models of every synchronized channel, tests held channels again, reviews the demo, and looks for local
servers.
"""

import asyncio
import random
from collections.abc import Callable

from gateway.routing.channels import ChannelService
from gateway.routing.model_catalog import ModelCatalog

JITTER = 0.1
RETRY_EVERY_S = 60.0


class ModelSyncer:
    """Synchronizes the models of channels; a failed listing removes no model. ``interval`` returns seconds."""

    def __init__(self, catalog: ModelCatalog, channels: ChannelService, *, interval: Callable[[], float]) -> None:
        self._catalog = catalog
        self._channels = channels
        self._interval = interval

    async def run(self) -> None:
        while True:
            await self.sync()
            await asyncio.sleep(self._interval() * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - no secret

    async def sync(self) -> None:
        """List the models of every synchronized channel once, concurrently."""
        await asyncio.gather(*(self._channels.sync(channel) for channel in self._catalog.channels))


class ChannelRetrier:
    """Tests held channels, reviews the demo and looks for local servers, every ``RETRY_EVERY_S``."""

    def __init__(self, channels: ChannelService) -> None:
        self._channels = channels

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RETRY_EVERY_S)
            await self._channels.retry()
