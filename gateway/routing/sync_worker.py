"""Keeps the catalogue true: asks every synchronised channel for its models, at start and then regularly."""

import asyncio
import random
from collections.abc import Callable

from gateway.routing.channels import ChannelService
from gateway.routing.model_catalog import ModelCatalog

JITTER = 0.1
RETRY_EVERY_S = 60.0


class ModelSyncer:
    """Synchronises the models of channels. A failed listing removes nothing; see ``domain/model_info.py``.

    ``interval``: returns the seconds between two rounds, which may change at run time.
    """

    def __init__(self, catalog: ModelCatalog, channels: ChannelService, *, interval: Callable[[], float]) -> None:
        self._catalog = catalog
        self._channels = channels
        self._interval = interval

    async def run(self) -> None:
        """Synchronise now and then regularly, for ever."""
        while True:
            await self.sync()
            await asyncio.sleep(self._interval() * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - no secret

    async def sync(self) -> None:
        """Ask every synchronised channel once, side by side."""
        await asyncio.gather(*(self._channels.sync(channel) for channel in self._catalog.channels))


class ChannelRetrier:
    """Tests the channels that are held, and looks for local servers, every ``RETRY_EVERY_S``."""

    def __init__(self, channels: ChannelService) -> None:
        self._channels = channels

    async def run(self) -> None:
        """Retry regularly, for ever."""
        while True:
            await asyncio.sleep(RETRY_EVERY_S)
            await self._channels.retry()
