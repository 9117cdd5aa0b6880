"""Looks whether channels that were tripped are well again, where no call has come to find out."""

import asyncio

from gateway.domain.channel import Channel
from gateway.domain.fault import UpstreamFault
from gateway.flow.fleet import Fetch
from gateway.flow.line import Line
from gateway.flow.models import Catalog
from gateway.flow.switchboard import Switchboard
from gateway.providers.registry import PROVIDERS

LOOK_EVERY_S = 1.0
IDLE_S = 2.0
"""How long after its cooldown a channel is left to its callers: a call is the better probe, and costs nothing more."""


class ProbeChannels:
    """The job. A probe asks for the list of models: it costs nothing and no caller waits for it.

    A list is not yet an answer, so a channel that passes comes up carefully: with a small share of the calls, and one
    failure takes it down again for longer than before.

    Args:
        catalog: the channels.
        switchboard: how they stand.
        fetch: asks a provider for its models.
    """

    def __init__(self, catalog: Catalog, switchboard: Switchboard, fetch: Fetch) -> None:
        self._catalog = catalog
        self._switchboard = switchboard
        self._fetch = fetch

    async def run(self) -> None:
        """Look every second, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.probe()

    async def probe(self) -> None:
        """Probe every channel that has been down, and asked for by nobody, for a while after its cooldown."""
        now, lines = self._switchboard.now, self._switchboard.lines
        due = [
            (channel, line)
            for channel in self._catalog.channels
            if (line := lines.get(channel.name)) is not None
            and line.breaker.state == "down"
            and now >= line.breaker.until + IDLE_S
            and channel.status == "active"
            and PROVIDERS[channel.provider].models_path is not None
        ]
        await asyncio.gather(*(self._probe_channel(channel, line) for channel, line in due))

    async def _probe_channel(self, channel: Channel, line: Line) -> None:
        epoch = line.breaker.epoch
        try:
            await self._fetch(channel)
        except UpstreamFault as fault:
            if not fault.answered:
                self._switchboard.note_probe_failed(line, epoch, fault)
                return
        self._switchboard.note_probe_answered(line, epoch)
