"""Probes failed channels for their recovery: otherwise clients' requests would have to test them."""

import asyncio
import random
from collections.abc import Callable

from gateway.domain.channel import Channel
from gateway.errors import ProviderError
from gateway.providers.registry import PROVIDERS
from gateway.routing.channel_state import ChannelState
from gateway.routing.channel_tester import Fetch
from gateway.routing.load_balancer import PROBE_EVERY_S, LoadBalancer
from gateway.routing.model_catalog import ModelCatalog

LOOK_EVERY_S = 1.0


class ChannelProber:
    """Probes tripped channels by listing their models, which costs nothing.

    A successful listing does not prove that requests work. So a channel that passes warms up with a small share of the
    requests, and one failure trips it again for longer than before.

    ``find_share`` returns the probability that this process probes in a given second: not every node needs to.
    """

    def __init__(
        self, catalog: ModelCatalog, load_balancer: LoadBalancer, fetch: Fetch, *, find_share: Callable[[], float]
    ) -> None:
        self._find_share = find_share
        self._catalog = catalog
        self._load_balancer = load_balancer
        self._fetch = fetch

    async def run(self) -> None:
        """Probe every second, with the probability ``find_share``, while a failure is remembered. Never returns."""
        failed = self._load_balancer.failed
        while True:
            failed.clear()
            if not self._load_balancer.remembers_failures:
                await failed.wait()
            await asyncio.sleep(LOOK_EVERY_S)
            share = self._find_share()
            if share >= 1.0 or random.random() < share:  # noqa: S311 - no secret
                await self.probe()

    async def probe(self) -> None:
        """Probe every channel that is due: it has tripped, entirely or for some requests. Drop old failures first."""
        self._load_balancer.tidy()
        now, channels = self._load_balancer.now, self._load_balancer.channels
        due_channels = [
            (channel, state)
            for channel in self._catalog.channels
            if (state := channels.get(channel.name)) is not None
            and channel.status == "active"
            and state.is_probe_due(now, PROBE_EVERY_S)
            and PROVIDERS[channel.provider].models_path is not None
        ]
        await asyncio.gather(*(self._probe_channel(channel, state) for channel, state in due_channels))

    async def _probe_channel(self, channel: Channel, state: ChannelState) -> None:
        generation = state.breaker.generation
        try:
            await self._fetch(channel)
        except ProviderError as error:
            if not error.answered:
                self._load_balancer.note_probe_failed(state, generation, error)
                return
        self._load_balancer.note_probe_answered(state, generation)
