"""Looks whether channels that failed are well again, so that no call has to find out."""

import asyncio

from gateway.domain.channel import Channel
from gateway.errors import ProviderError
from gateway.providers.registry import PROVIDERS
from gateway.routing.channel_state import ChannelState
from gateway.routing.channels import Fetch
from gateway.routing.load_balancer import PROBE_EVERY_S, LoadBalancer
from gateway.routing.model_catalog import ModelCatalog

LOOK_EVERY_S = 1.0


class ChannelProber:
    """The job. A probe asks for the list of models: it costs nothing and no caller waits for it.

    A list is not yet an answer, so a channel that passes comes up carefully: with a small share of the calls, and one
    failure takes it down again for longer than before.

    Args:
        catalog: the channels.
        switchboard: how they stand.
        fetch: asks a provider for its models.
    """

    def __init__(self, catalog: ModelCatalog, switchboard: LoadBalancer, fetch: Fetch) -> None:
        self._catalog = catalog
        self._switchboard = switchboard
        self._fetch = fetch

    async def run(self) -> None:
        """Look every second, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.probe()

    async def probe(self) -> None:
        """Probe every channel that has tripped, as a whole or for some calls, and forget old failures."""
        self._switchboard.tidy()
        now, lines = self._switchboard.now, self._switchboard.lines
        due = [
            (channel, line)
            for channel in self._catalog.channels
            if (line := lines.get(channel.name)) is not None
            and channel.status == "active"
            and line.is_probe_due(now, PROBE_EVERY_S)
            and PROVIDERS[channel.provider].models_path is not None
        ]
        await asyncio.gather(*(self._probe_channel(channel, line) for channel, line in due))

    async def _probe_channel(self, channel: Channel, line: ChannelState) -> None:
        generation = line.breaker.generation
        try:
            await self._fetch(channel)
        except ProviderError as fault:
            if not fault.answered:
                self._switchboard.note_probe_failed(line, generation, fault)
                return
        self._switchboard.note_probe_answered(line, generation)
