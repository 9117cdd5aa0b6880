"""Open the services that handlers use at startup, package by package, and close them in reverse order."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs
from aiohttp import web

from gateway.allocator import MemoryTrimmer
from gateway.auth.accounts import AccountService
from gateway.background import JobRunner
from gateway.billing.retention_worker import RetentionWorker
from gateway.deferred import Once, late, load
from gateway.domain.ip_address import parse_networks
from gateway.errors import StoreUnavailable
from gateway.media.cleanup_worker import MediaCleanup
from gateway.media.prompt_addresses import PromptAddresses
from gateway.memory_budget import MemoryBudget
from gateway.observability.process_monitor import LoopLagMeter, find_memory
from gateway.observability.trace_context import TracedHttpClient
from gateway.options import AppOptions, StartupInfo
from gateway.proxy.failover import Proxy
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.probe_worker import ChannelProber
from gateway.routing.sync_worker import ChannelRetrier, ModelSyncer
from gateway.server.context import SERVICES, HttpSettings, Services
from gateway.server.multipart import FormLimits
from gateway.server.path_prefix import find_path_prefix
from gateway.services.admin import open_admin
from gateway.services.auth import open_accounts, open_api_keys, open_auth
from gateway.services.billing import open_billing, open_ledger
from gateway.services.media import MIB, open_media
from gateway.services.media_store import sweep_store, watch_nodes
from gateway.services.observability import open_metrics, open_tracing
from gateway.services.routing import open_routing
from gateway.services.storage import open_live_config, open_storage
from gateway.services.videos import open_videos, start_video_workers
from gateway.storage.database import DatabaseStartupError
from gateway.storage.integrity_worker import IntegrityWorker
from gateway.storage.retention import RetentionRepository
from gateway.storage.sqlite_database import SqliteDatabase
from gateway.upstream.client import PooledHttpClient
from gateway.upstream.environment_proxy import open_environment_proxies
from gateway.upstream.websocket import WebSocketClient

if TYPE_CHECKING:  # some need optional dependencies
    from gateway.auth.provider_sign_in import ProviderSignIn
    from gateway.cluster.membership.node import ClusterNode

_GRACE_S = 2.0
"""How long background requests may take to settle at shutdown, in seconds. The drain has already waited for them."""


async def open_services(app: web.Application) -> AsyncIterator[None]:
    """Fill ``app[SERVICES]`` and start the workers; a ``cleanup_ctx`` of aiohttp.

    aiohttp does not close the contexts of a failed startup, so one exit stack closes everything that was opened.
    """
    services = app[SERVICES]
    async with AsyncExitStack() as stack:
        accounts, catalog, first_secret = await _open_stored(services, stack)
        _open_clients(services, stack)
        jobs = JobRunner()
        stack.push_async_callback(jobs.stop)
        services.routing = await open_routing(services, catalog, stack)
        services.media, services.files = open_media(services, stack)
        services.proxy = _open_proxy(services)
        with _explain_store_errors(services.options):
            services.videos, services.idempotency = await open_videos(services, stack)
        services.auth = open_auth(services, accounts, stack)
        await _open_batches(services, stack)
        services.admin, services.sign_in = open_admin(services, stack), _open_sign_in(services)
        stack.push_async_callback(services.admin.finish_changes)
        services.metrics = open_metrics(services)
        services.startup_info = _describe_startup(first_secret, services.routing.catalog)
        _start_workers(services, jobs, stack)
        if services.options.declare:
            # Commands other than ``serve`` may know other channels and a shorter retention: they must not end jobs or
            # delete rows.
            _start_cleanup(services, jobs)
            start_video_workers(services, stack)
        if services.storage.node is not None:
            await _follow_changes(services, services.storage.node)
        yield


async def _open_stored(services: Services, stack: AsyncExitStack) -> tuple[AccountService, ModelCatalog, str | None]:
    """Open the stored state: settings, balances, accounts and keys. Meanwhile no other node of a cluster starts.

    Also return the catalog, which has no channels yet, and the secret of the first key if this is the first start.
    """
    async with AsyncExitStack() as starting:
        with _explain_store_errors(services.options):
            services.storage = storage = await open_storage(services, stack, starting)
            services.live_config = live_config = await open_live_config(services.options, storage)
            services.options = options = attrs.evolve(services.options, config=live_config.config)
            services.http, services.memory = _build_http_settings(options)
            ledger = await open_ledger(options, storage, stack)
            api_keys = open_api_keys(options, storage.database, ledger.accounting)
            services.billing = open_billing(
                *(options, storage, ledger, stack), find_abandoned=live_config.find_abandoned, refresh=api_keys.refresh
            )
            catalog = ModelCatalog(clock=services.clock)
            accounts, first_secret = await open_accounts(services, api_keys, catalog)
    return accounts, catalog, first_secret


async def _follow_changes(services: Services, node: "ClusterNode") -> None:
    from gateway.cluster.changes import follow_changes  # noqa: PLC0415 - a single process does not need it

    with _explain_store_errors(services.options):
        await follow_changes(services, node)


def _open_sign_in(services: Services) -> "ProviderSignIn | None":
    """Open sign-in by OpenID Connect; None if no ``[[sign_in]]`` is configured. Raises ``ConfigError``."""
    if not services.options.config.sign_in:
        return None
    sign_in: ProviderSignIn = load("services.sign_in:open_sign_in")(services)
    return sign_in


async def _open_batches(services: Services, stack: AsyncExitStack) -> None:
    """Open batches; ``serve`` continues the batches of an earlier process. Raises ``StoreUnavailable``."""
    services.open_batches = Once(partial(late("services.batches:open_batches"), services))
    stack.push_async_callback(_close_batches, services)
    if (node := services.storage.node) is not None:
        load("services.batches:share_batches")(services.batches, node.notifications, stack)
    elif services.options.declare and services.storage.leftovers.batches:  # other commands than serve send no requests
        await services.batches.open()


async def _close_batches(services: Services) -> None:
    if (batches := services.open_batches.made) is not None:
        await batches.close()


def _open_proxy(services: Services) -> Proxy:
    prompt_media = PromptAddresses(services.media.fetcher, services.memory)
    load_balancer = services.routing.load_balancer
    return Proxy(services.client, load_balancer, clock=services.clock, prompt_media=prompt_media)


def _open_clients(services: Services, stack: AsyncExitStack) -> None:
    """Open the clients that send requests to providers, and tracing, which adds a header to these requests."""
    find_proxy = open_environment_proxies(services.options.environ)
    client = PooledHttpClient(find_proxy=find_proxy)
    services.client = client
    stack.push_async_callback(client.close)
    services.websockets = WebSocketClient(client.access_tokens.authorize, find_proxy)
    stack.push_async_callback(services.websockets.close)
    services.tracing = open_tracing(services, stack)
    if services.tracing is not None:
        services.client = TracedHttpClient(client, services.tracing.current)


@contextmanager
def _explain_store_errors(options: AppOptions) -> Iterator[None]:
    try:
        yield
    except (StoreUnavailable, OSError) as error:
        raise DatabaseStartupError(f"The data folder {options.folder.path} cannot be used: {error}") from error


def _build_http_settings(options: AppOptions) -> tuple[HttpSettings, MemoryBudget]:
    server = options.config.server
    settings = HttpSettings(
        max_body_mb=server.max_body_mb,
        form_limits=FormLimits(max_body_bytes=server.max_upload_mb * MIB, max_file_bytes=server.max_file_mb * MIB),
        base_url=server.base_url.rstrip("/"),
        trusted_proxies=parse_networks(server.trusted_proxies),
        path_prefix=find_path_prefix(server.base_url),
    )
    return settings, MemoryBudget(server.max_loaded_bytes)


def _describe_startup(first_secret: str | None, catalog: ModelCatalog) -> StartupInfo:
    return describe_channels(StartupInfo(first_secret), catalog)


def describe_channels(info: StartupInfo, catalog: ModelCatalog) -> StartupInfo:
    """Return ``info`` with the channels and models known now."""
    models, demo = catalog.list_models(), [channel for channel in catalog.channels if channel.origin == "demo"]
    return attrs.evolve(
        info,
        models=tuple(listed.id for listed in models),
        demo=any(catalog.find_offer(channel) == models for channel in demo),
        failures=tuple(
            f"{channel.name}: {error}"
            for channel in catalog.channels
            if (error := catalog.find_synced(channel).error) is not None
        ),
    )


def _start_workers(services: Services, jobs: JobRunner, stack: AsyncExitStack) -> None:
    routing, storage = services.routing, services.storage
    stack.push_async_callback(services.background.close, _GRACE_S)
    interval = services.live_config.find_sync_interval_s
    jobs.start("flush_ledger", services.billing.flusher.run)
    if services.billing.keeper is not None:
        jobs.start("keep_credit", services.billing.keeper.run)
    if (lists := routing.model_lists) is None:
        jobs.start("sync_models", ModelSyncer(routing.catalog, routing.channels, interval=interval).run)
    else:
        jobs.start("sync_models", lists.run)
        jobs.start("sweep_models", storage.deployment.run_once(lists.sweep))
    jobs.start("retry_channels", ChannelRetrier(routing.channels).run)
    prober = ChannelProber(
        routing.catalog, routing.load_balancer, routing.fetch_models, find_share=storage.deployment.find_share
    )
    jobs.start("probe_channels", prober.run)
    if isinstance(storage.database, SqliteDatabase):
        jobs.start("check_store", IntegrityWorker(storage.database).run)
    jobs.start("count_requests", services.metrics.run)
    jobs.start("give_back_memory", MemoryTrimmer(find_memory).run)
    jobs.start("measure_lag", LoopLagMeter(services.admin.monitor.lag).run)
    # ``sweep_media`` keeps media within the configured limits, so it runs with every command.
    rules, clock, stores = services.live_config.find_media_rules, storage.retention_clock.now, services.media.stores
    jobs.start("sweep_media", sweep_store(services, MediaCleanup(stores.images, rules, clock).run))
    if storage.node is not None and not stores.shared:
        jobs.start("watch_nodes", partial(watch_nodes, storage.node))
    if services.options.certificate is not None:
        jobs.start("renew_certificate", services.options.certificate.run)
    if services.options.declare and services.options.config.alert:
        services.alerts = load("services.alerts:open_alerts")(services, stack, jobs)


def _start_cleanup(services: Services, jobs: JobRunner) -> None:
    storage = services.storage
    repository, keep_days = RetentionRepository(storage.database), services.live_config.find_keep_days
    worker = RetentionWorker(repository, storage.write_queue, keep_days, storage.retention_clock.now)
    jobs.start("retire_requests", storage.deployment.run_once(worker.run))
    jobs.start("sweep_files", sweep_store(services, services.files.files.run))
    if storage.node is not None:
        from gateway.cluster.open_journal import collect_notes  # noqa: PLC0415 - its driver is an extra

        collect_notes(services, jobs, storage.node)
    if services.billing.ledger_check is not None:
        jobs.start("check_ledger", storage.deployment.run_once(services.billing.ledger_check.run))
