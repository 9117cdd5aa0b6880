"""The channel service over a database."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs

from gateway.domain.audit_log import AuditRow
from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo
from gateway.errors import GatewayError, ProviderBadResponse, StoreUnavailable
from gateway.routing.channel_tester import Answer, ChannelTester
from gateway.routing.channels import ChannelService, DiscoveredChannel
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.server.admin.channel_view import build_channel_view
from tests.support.answers import to_json
from tests.support.repositories import Repositories

NOW = 1_750_000_000


BARE: dict[str, Any] = {"name": "up", "provider": "custom", "base_url": "http://127.0.0.1:9/v1", "models": ["m"]}


DECLARED = Channel("filed", "custom", "http://127.0.0.1:9/v1", models=("m",))


@attrs.define
class Vendors:
    """Every provider at once. ``lists``: what it answers by channel; where it has nothing, nobody is there."""

    lists: dict[str, Sequence[str] | GatewayError] = attrs.Factory(dict)
    asked: list[Channel] = attrs.Factory(list)
    before: Callable[[Channel], Awaitable[None]] | None = None
    """Awaited while it answers."""
    refused: GatewayError | None = None
    """How every chat request is refused."""

    async def list_models(self, channel: Channel) -> Sequence[ModelInfo]:
        self.asked.append(channel)
        found = self.lists.get(channel.name, ProviderBadResponse("nobody there"))
        if self.before is not None:
            await self.before(channel)
        if isinstance(found, GatewayError):
            raise found
        return [ModelInfo(name, NOW, channel.provider) for name in found]

    async def answer_chat(self, _channel: Channel, _model: str) -> int:
        if self.refused is not None:
            raise self.refused
        return 7


@attrs.define
class Disk(Repositories):
    """A store that reads every channel anew, as a database does, and takes nothing any more once it is ``broken``."""

    broken: bool = False

    def __attrs_post_init__(self) -> None:
        super().__init__()

    async def list_channels(self) -> Sequence[Channel]:
        return [attrs.evolve(channel) for channel in await super().list_channels()]

    async def add_channel(self, channel: Channel, audit: AuditRow | None = None) -> Channel:
        self._check()
        return await super().add_channel(channel, audit)

    async def put_channels(
        self, changed_channels: Sequence[Channel], audit: AuditRow | None = None, *, originals: Sequence[Channel] = ()
    ) -> None:
        self._check()
        await super().put_channels(changed_channels, audit, originals=originals)

    async def delete_channel(self, channel_id: int, audit: AuditRow | None = None) -> None:
        self._check()
        await super().delete_channel(channel_id, audit)

    def _check(self) -> None:
        if self.broken:
            raise StoreUnavailable("The store cannot be written to")


@attrs.define
class ChannelServices:
    """A fleet with what it tells."""

    found: Sequence[DiscoveredChannel] = ()
    vendors: Vendors = attrs.Factory(Vendors)
    store: Disk = attrs.Factory(Disk)
    catalog: ModelCatalog = attrs.Factory(lambda: ModelCatalog(clock=lambda: float(NOW)))
    load_balancer: LoadBalancer = attrs.Factory(
        lambda: LoadBalancer(lambda: 0.0, settings=DEFAULT_SETTINGS, shared=None)
    )
    note_listing: Callable[[Channel, Answer], object] | None = None
    looked: int = 0
    channel_service: ChannelService = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.channel_service = ChannelService(
            self.catalog,
            self.store,
            tester=ChannelTester(
                self.load_balancer, self.vendors.list_models, self.vendors.answer_chat, lambda: float(NOW)
            ),
            discover=self._discover,
            clock=lambda: float(NOW),
            leads=lambda: True,
            note_listing=self.note_listing,
        )

    async def _discover(self) -> Sequence[DiscoveredChannel]:
        self.looked += 1
        return self.found

    @property
    def names(self) -> list[str]:
        """Every channel that is offered; the switchboard knows the same ones, as they are."""
        assert [line.channel for line in self.load_balancer.channels.values()] == list(self.catalog.channels)
        return [channel.name for channel in self.catalog.channels]

    def show(self, name: str = "up") -> dict[str, Any]:
        """The channel as the admin API shows it."""
        channel = self.channel_service.get(name)
        shown: dict[str, Any] = to_json(build_channel_view(channel, self.catalog, self.load_balancer, {}))
        return shown

    def offers(self, name: str) -> list[str] | None:
        offer = self.catalog.find_offer(self.channel_service.get(name))
        return None if offer is None else [listed.id for listed in offer]


async def declare_channels(*declared: Channel, **kwargs: Any) -> ChannelServices:
    services = ChannelServices(**kwargs)
    await services.channel_service.declare(declared)
    return services
