"""Opens routing: the configured and stored channels; if there are none, discovered channels and the demo."""

import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import attrs

from gateway.config.reload import build_channels, build_descriptions, build_models, build_pricing, build_routes
from gateway.demo.models import MODEL_NAMES as DEMO_MODELS
from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo
from gateway.domain.request_log import RequestFilter
from gateway.memory_budget import MemoryBudget
from gateway.options import AppOptions
from gateway.routing.channel_tester import ChannelTester, Fetch
from gateway.routing.channels import ChannelService, Demo, DemoMode, DiscoveredChannel
from gateway.routing.kept_responses import KeptResponses
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.model_listing import fetch_models
from gateway.routing.response_owners import ResponseOwners
from gateway.routing.router import Router
from gateway.server.context import RoutingServices
from gateway.services.base import BaseServices, RequestTracking
from gateway.storage.channels import ChannelRepository
from gateway.storage.database import DatabaseStartupError
from gateway.storage.encryption import DecryptionFailed, SecretBox
from gateway.storage.kept_responses import KeptResponseRepository
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.response_owners import ResponseOwnerRepository
from gateway.upstream.interface import HttpClient

if TYPE_CHECKING:
    from gateway.cluster.limits.channels import SharedChannelLimits
    from gateway.cluster.limits.limiter import SharedRateLimiter
    from gateway.cluster.state.models import SharedModelLists
    from gateway.demo.server import DemoUpstream

DEMO = "demo"
"""The name of the demo's channel."""


async def open_routing(
    base: BaseServices,
    catalog: ModelCatalog,
    client: HttpClient,
    stack: AsyncExitStack,
    *,
    shared_limits: "SharedRateLimiter | None",
    requests: RequestTracking,
) -> RoutingServices:
    """Open routing. Raises ``DatabaseStartupError`` if the secrets of a stored channel cannot be decrypted."""
    options, live_config = base.options, base.live_config
    settings, shared = options.config.routing.settings(), _share_limits(shared_limits)
    load_balancer = LoadBalancer(time.monotonic, settings=settings, shared=shared, unix_clock=options.clock)
    master_key = bytes.fromhex(options.config.store.master_key) or options.folder.secret("master.key")
    secret_box = SecretBox(master_key)
    tester, fetch = _open_tester(load_balancer, client, options.clock)
    lists = None if base.storage.node is None else _share_models(base, catalog, requests.background.start)
    discovery = Discovery(options, client, stack)
    channels = ChannelService(
        catalog,
        ChannelRepository(base.storage.database, secret_box),
        tester=tester,
        discover=discovery.find,
        clock=options.clock,
        leads=base.storage.deployment.leads,
        note_listing=None if lists is None else lists.store_answer,
        demo=discovery.describe_demo(live_config.find_demo_mode, RequestLogRepository(base.storage.database)),
    )
    try:
        await channels.declare(build_channels(options.config))
    except DecryptionFailed as error:
        raise DatabaseStartupError(str(error)) from None
    router = _build_router(base, catalog, load_balancer)
    owners, kept_responses = _open_responses(base, secret_box, requests.memory, stack)
    if lists is not None:
        await lists.load()
    return RoutingServices(catalog, load_balancer, channels, router, owners, kept_responses, fetch, secret_box, lists)


def _build_router(base: BaseServices, catalog: ModelCatalog, load_balancer: LoadBalancer) -> Router:
    config, effective = base.options.config, base.live_config.effective
    return Router(
        catalog,
        load_balancer,
        build_pricing(effective),
        models=build_models(config),
        routes=build_routes(effective),
        descriptions=build_descriptions(config),
    )


def _open_tester(
    load_balancer: LoadBalancer, client: HttpClient, clock: Callable[[], float]
) -> tuple[ChannelTester, Fetch]:
    """Return the tester of channels, and the function that fetches a channel's models."""

    def fetch(channel: Channel) -> Awaitable[list[ModelInfo]]:
        return fetch_models(client, channel, now_s=int(clock()))

    def send(channel: Channel, model: str) -> Awaitable[int]:
        from gateway.routing.chat_request import send_chat

        return send_chat(client, channel, model, now_s=int(clock()))

    return ChannelTester(load_balancer, fetch, send, clock), fetch


def _open_responses(
    base: BaseServices, secret_box: SecretBox, memory: MemoryBudget, stack: AsyncExitStack
) -> tuple[ResponseOwners, KeptResponses]:
    """Open the responses of the Responses API: which channel has each, and those that the gateway stores."""
    database, clock, deployment = base.storage.database, base.options.clock, base.storage.deployment
    kept_responses = KeptResponses(
        KeptResponseRepository(database, secret_box), clock, base.live_config.find_kept_rules, memory
    )
    owners = ResponseOwners(ResponseOwnerRepository(database), kept_responses, clock, pauses_s=deployment.pauses_s)
    stack.push_async_callback(owners.close)
    stack.push_async_callback(kept_responses.close)
    return owners, kept_responses


def _share_limits(limiter: "SharedRateLimiter | None") -> "SharedChannelLimits | None":
    """Return the channel limits shared by several gateways; None if ``limiter`` is None."""
    if limiter is None:
        return None
    from gateway.cluster.limits.channels import SharedChannelLimits

    return SharedChannelLimits(limiter)


def _share_models(
    base: BaseServices, catalog: ModelCatalog, start: Callable[[Coroutine[Any, Any, None]], object]
) -> "SharedModelLists":
    """Return the model lists of the cluster, which also store this node's own lists for the other nodes."""
    # ruff: noqa: PLC0415 - only nodes of a cluster need them
    from gateway.cluster.state.models import SharedModelLists
    from gateway.cluster.state.stored_models import ModelListRepository

    return SharedModelLists(
        catalog,
        ModelListRepository(base.storage.database),
        leads=base.storage.deployment.leads,
        interval=base.live_config.find_sync_interval_s,
        clock=base.options.clock,
        start=start,
    )


async def _find_demo_use(request_log: RequestLogRepository, since_s: float) -> float | None:
    """Return when the newest demo request ended (Unix seconds); None if there was none since ``since_s``.

    The query runs once per model, because the log has an index on models but none on channels.
    """
    if not await request_log.has_model(DEMO_MODELS):
        return None
    demo_filter = RequestFilter(channel=DEMO, since_ms=int(since_s * 1000))
    pages = [await request_log.list_requests(attrs.evolve(demo_filter, model=model), 1) for model in DEMO_MODELS]
    return max((stored_request.row.settled_ms / 1000 for page in pages for stored_request in page), default=None)


class Discovery:
    """Finds channels while none is configured, and starts the demo once if no local server has answered."""

    def __init__(self, options: AppOptions, client: HttpClient, stack: AsyncExitStack) -> None:
        self._options = options
        self._client = client
        self._stack = stack
        self._demo: DemoUpstream | None = None

    async def find(self) -> list[DiscoveredChannel]:
        """Return channels for the provider keys in the environment and for local servers.

        Unless a local server has answered, the demo is included, because a key in the environment may be invalid.
        """
        options, found_channels = self._options, list[DiscoveredChannel]()
        if options.discover:
            from gateway.routing.discovery import find_keyed_channels, find_local_servers

            found_channels += [(channel, None) for channel in find_keyed_channels(options.environ)]
            own_port, now_s = options.config.server.port, int(options.clock())
            found_channels += await find_local_servers(self._client, own_port=own_port, now_s=now_s)
        if all(listing is None for _, listing in found_channels):
            found_channels.append((await self.start_demo(), None))
        return found_channels

    def describe_demo(self, find_mode: Callable[[], DemoMode], request_log: RequestLogRepository) -> Demo:
        return Demo(find_mode, self.start_demo, lambda since_s: _find_demo_use(request_log, since_s))

    async def start_demo(self) -> Channel:
        """Start the demo if it is not running; return its channel."""
        from gateway.demo.server import DemoUpstream

        if self._demo is None:
            self._demo = DemoUpstream(pace_s=self._options.demo_pace_s)
            self._stack.push_async_callback(self._demo.stop)
            await self._demo.start()
        return Channel(DEMO, "demo", self._demo.base_url, (self._demo.api_key,), DEMO_MODELS, origin="demo")
