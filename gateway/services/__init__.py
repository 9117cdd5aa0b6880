"""At startup, opens the services that handlers use and starts the workers; closes all in reverse order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import attrs

from gateway.allocator import MemoryTrimmer
from gateway.auth.accounts import AccountService
from gateway.background import JobRunner, TaskSet
from gateway.deferred import CreatedOnce
from gateway.domain.ip_address import parse_networks
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.media.cleanup_worker import MediaCleanup
from gateway.media.prompt_addresses import PromptAddresses
from gateway.memory_budget import MemoryBudget
from gateway.observability.process_monitor import LoopLagMeter, find_memory
from gateway.observability.request_metrics import RequestMetrics
from gateway.options import AppOptions, StartupInfo
from gateway.proxy.active_requests import ActiveRequests
from gateway.proxy.failover import Proxy
from gateway.proxy.idempotency import IdempotencyService
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.probe_worker import ChannelProber
from gateway.routing.sync_worker import ChannelRetrier, ModelSyncer
from gateway.server.context import (
    AdminServices,
    AuthServices,
    BillingServices,
    DrainState,
    FileServices,
    HttpSettings,
    MediaServices,
    RoutingServices,
    Services,
    VideoServices,
)
from gateway.server.multipart import FormLimits
from gateway.server.path_prefix import find_path_prefix
from gateway.services.admin import open_admin
from gateway.services.auth import open_accounts, open_api_keys, open_auth
from gateway.services.base import BaseServices, RequestTracking
from gateway.services.billing import open_billing, open_ledger
from gateway.services.clients import Clients, open_clients
from gateway.services.media import MIB, open_media
from gateway.services.media_store import sweep_store, watch_nodes
from gateway.services.observability import open_metrics
from gateway.services.routing import open_routing
from gateway.services.storage import open_live_config, open_storage
from gateway.services.videos import open_videos, start_video_workers
from gateway.storage.database import DatabaseStartupError
from gateway.storage.encryption import SecretBox
from gateway.storage.integrity_worker import IntegrityWorker
from gateway.storage.sqlite_database import SqliteDatabase
from gateway.upstream.interface import HttpClient
from gateway.upstream.safe_fetch import SafeFetcher

if TYPE_CHECKING:  # a process imports only what it uses; some need optional dependencies
    from gateway.alerts.watcher import AlertWatcher
    from gateway.auth.provider_sign_in import ProviderSignIn
    from gateway.batches.service import BatchService
    from gateway.cluster.membership.node import ClusterNode
    from gateway.proxy.answer_flights import CachedAnswers
    from gateway.proxy.resumable_streams import ResumableStreams
    from gateway.sinks.service import SinkService
    from gateway.storage.bodies.body_store import BodyStore

RETENTION_DELAY_S = 60.0
"""The time from the start to the first deletion of old rows, and to the first sums of durations."""
_BODIES_FOLDER = "bodies"
_CACHE_FOLDER = "cache"
_HANDED_OVER_STREAMS = "streams/handed-over"
_GRACE_S = 2.0
"""How long background requests may take to settle at shutdown, in seconds. The drain has already waited for them."""


@frozen
class _StoredState:
    """The services that the stored state is read into.

    ``catalog`` has no channels yet. ``first_secret`` is the secret of the first key; None if there was one already.
    """

    base: BaseServices
    billing: BillingServices
    accounts: AccountService
    catalog: ModelCatalog
    first_secret: str | None


@frozen
class _RequestServices:
    """The services that requests pass through: authentication, routing, media, video jobs, batches and what is kept."""

    routing: RoutingServices
    media: MediaServices
    files: FileServices
    proxy: Proxy
    videos: VideoServices
    idempotency: IdempotencyService
    auth: AuthServices
    http: HttpSettings
    kept: "_KeptServices"
    batches: "CreatedOnce[BatchService]"


@frozen
class _KeptServices:
    """The stores for what is kept of requests. A store is opened when it is first needed."""

    bodies: "CreatedOnce[BodyStore]"
    streams: "CreatedOnce[ResumableStreams]"
    answers: "CreatedOnce[CachedAnswers]"


@frozen
class _OperationServices:
    """Services for operators. ``sign_in``, ``alerts`` and ``sinks`` are None if they are not configured."""

    admin: AdminServices
    sign_in: "ProviderSignIn | None"
    metrics: RequestMetrics
    alerts: "AlertWatcher | None"
    sinks: "SinkService | None"


@asynccontextmanager
async def open_services(options: AppOptions, drain: DrainState) -> AsyncIterator[Services]:
    """Open all services and start the workers; at the end of the block, stop and close them in reverse order.

    If a service cannot be opened, those opened before it are closed. Raises ``DatabaseStartupError``, ``ConfigError``,
    ``DataFolderDamaged``.
    """
    async with AsyncExitStack() as stack:
        active, background = ActiveRequests(_find_own_node(options)), TaskSet()
        stored_state = await _open_stored_state(options, active.__len__, stack)
        options = stored_state.base.options
        clients = open_clients(options, stack)
        jobs = JobRunner()
        stack.push_async_callback(jobs.stop)
        requests = RequestTracking(drain, active, background, MemoryBudget(options.config.server.max_loaded_bytes))
        with _explain_store_errors(options):
            request_services = await _open_request_services(stored_state, clients.http, requests, stack, jobs=jobs)
        operations = _open_operations(
            stored_state.base, stored_state.billing, request_services, requests, jobs=jobs, stack=stack
        )
        services = _build_services(stored_state, clients, requests, request_services, operations)
        _start_workers(services, options, jobs)
        if (options.folder.path / _CACHE_FOLDER).exists():
            services.open_answers()  # an earlier process has stored answers: they expire, and are deleted on request
        if options.declare:
            if (options.folder.path / _HANDED_OVER_STREAMS).exists():
                await _take_over(services, stored_state.base, services.routing.secret_box)
            # Commands other than ``serve`` may know other channels and a shorter retention: they must not end jobs or
            # delete rows.
            _start_cleanup(services, options, jobs)
            start_video_workers(services, stack)
        if services.storage.node is not None:
            with _explain_store_errors(options):
                await _follow_changes(services, services.storage.node)
        yield services


def _find_own_node(options: AppOptions) -> str | None:
    """Return this gateway's id as a node of a cluster; None for a single gateway, or commands other than ``serve``."""
    if not (options.config.cluster.enabled and options.declare):
        return None
    with _explain_store_errors(options):
        return options.folder.node_id()


async def _open_stored_state(
    options: AppOptions, count_active: Callable[[], int], stack: AsyncExitStack
) -> _StoredState:
    """Open the stored state: settings, balances, accounts and keys. Meanwhile no other node of a cluster starts."""
    async with AsyncExitStack() as startup_stack:
        with _explain_store_errors(options):
            storage = await open_storage(options, count_active, stack, startup_stack)
            live_config = await open_live_config(options, storage)
            options = attrs.evolve(options, config=live_config.config, clock=storage.deployment.clock)
            base = BaseServices(options, storage, live_config)
            ledger = await open_ledger(base, stack)
            api_keys = open_api_keys(options, storage.database, ledger.accounting)
            billing = open_billing(base, ledger, stack, refresh=api_keys.refresh)
            catalog = ModelCatalog(clock=options.clock)
            accounts, first_secret = await open_accounts(base, api_keys, ledger.accounting, catalog)
    return _StoredState(base, billing, accounts, catalog, first_secret)


async def _open_request_services(
    stored_state: _StoredState, client: HttpClient, requests: RequestTracking, stack: AsyncExitStack, *, jobs: JobRunner
) -> _RequestServices:
    base, billing, catalog = stored_state.base, stored_state.billing, stored_state.catalog
    routing = await open_routing(base, catalog, client, stack, shared_limits=billing.shared_limits, requests=requests)
    media, files = open_media(base, client, stack)
    prompt_media = PromptAddresses(media.fetcher, requests.memory)
    proxy = Proxy(client, routing.load_balancer, clock=base.options.clock, prompt_media=prompt_media)
    videos, idempotency = await open_videos(base, billing, media, stack, client=client, proxy=proxy, catalog=catalog)
    auth = open_auth(base, stored_state.accounts, routing.secret_box, stack)
    http = _build_http_settings(base.options)
    kept = _open_kept_services(
        base, routing.secret_box, jobs, stack
    )  # before batches, whose last lines may still be kept
    batches = CreatedOnce(
        lambda: _make_batches(base, billing, routing, requests, proxy=proxy, auth=auth, files=files, bodies=kept.bodies)
    )
    stack.push_async_callback(_close_batches, batches)
    await _start_batches(base, batches, stack)
    return _RequestServices(routing, media, files, proxy, videos, idempotency, auth, http, kept, batches)


def _open_operations(
    base: BaseServices,
    billing: BillingServices,
    request_services: _RequestServices,
    requests: RequestTracking,
    *,
    jobs: JobRunner,
    stack: AsyncExitStack,
) -> _OperationServices:
    routing, auth, fetcher = request_services.routing, request_services.auth, request_services.media.fetcher
    folder = request_services.media.stores.folder
    admin = open_admin(base, routing, auth, stack, media_folder=folder, requests=requests, limits=billing.limits)
    stack.push_async_callback(admin.finish_changes)
    sign_in = _open_sign_in(base, auth, fetcher, routing.secret_box)
    metrics = open_metrics(billing.settlement.ended, routing.load_balancer, routing.router)
    bodies = request_services.kept.bodies
    stack.push_async_callback(requests.background.close, _GRACE_S)
    sinks = None
    if base.options.declare and base.options.config.sink:
        from gateway.services.sinks import open_sinks  # noqa: PLC0415 - only if it is configured

        sinks = open_sinks(base, jobs, stack, load_balancer=routing.load_balancer, bodies=bodies)
    alerts = None
    if base.options.declare and base.options.config.alert:
        from gateway.services.alerts import open_alerts  # noqa: PLC0415 - only if it is configured

        alerts = open_alerts(
            base,
            jobs,
            stack,
            billing=billing,
            load_balancer=routing.load_balancer,
            accounts=auth.accounts,
            metrics=metrics,
            read_bodies_problem=lambda: "" if bodies.instance is None else bodies.instance.problem,
        )
    return _OperationServices(admin, sign_in, metrics, alerts, sinks)


def _open_kept_services(
    base: BaseServices, secret_box: SecretBox, jobs: JobRunner, stack: AsyncExitStack
) -> _KeptServices:
    bodies = CreatedOnce(lambda: _open_bodies(base, secret_box, jobs))
    stack.push_async_callback(_close_store, bodies)
    streams = CreatedOnce(lambda: _open_streams(base))
    stack.push_async_callback(_hand_over, base, secret_box, streams)
    answers = CreatedOnce(lambda: _open_answers(base, secret_box, jobs))
    stack.push_async_callback(_close_store, answers)
    return _KeptServices(bodies, streams, answers)


def _build_services(
    stored_state: _StoredState,
    clients: Clients,
    requests: RequestTracking,
    request_services: _RequestServices,
    operations: _OperationServices,
) -> Services:
    return Services(
        clock=stored_state.base.options.clock,
        drain=requests.drain,
        active_requests=requests.active,
        background=requests.background,
        memory=requests.memory,
        storage=stored_state.base.storage,
        live_config=stored_state.base.live_config,
        http=request_services.http,
        billing=stored_state.billing,
        client=clients.http,
        websockets=clients.websockets,
        routing=request_services.routing,
        proxy=request_services.proxy,
        media=request_services.media,
        files=request_services.files,
        videos=request_services.videos,
        idempotency=request_services.idempotency,
        auth=request_services.auth,
        open_batches=request_services.batches,
        sign_in=operations.sign_in,
        admin=operations.admin,
        metrics=operations.metrics,
        alerts=operations.alerts,
        tracing=clients.tracing,
        open_bodies=request_services.kept.bodies,
        open_streams=request_services.kept.streams,
        sinks=operations.sinks,
        open_answers=request_services.kept.answers,
        startup_info=describe_channels(StartupInfo(stored_state.first_secret), request_services.routing.catalog),
    )


def _open_bodies(base: BaseServices, secret_box: SecretBox, jobs: JobRunner) -> "BodyStore":
    from gateway.services.bodies import open_bodies  # noqa: PLC0415 - only if bodies are kept

    return open_bodies(base, secret_box, jobs)


def _open_streams(base: BaseServices) -> "ResumableStreams":
    from gateway.services.streams import open_streams  # noqa: PLC0415 - only if a stream is kept

    return open_streams(base)


def _open_answers(base: BaseServices, secret_box: SecretBox, jobs: JobRunner) -> "CachedAnswers":
    from gateway.services.cache import open_answers  # noqa: PLC0415 - only if answers are cached

    return open_answers(base, secret_box, jobs)


async def _hand_over(base: BaseServices, secret_box: SecretBox, streams: "CreatedOnce[ResumableStreams]") -> None:
    if streams.instance is not None:
        from gateway.services.streams import hand_over  # noqa: PLC0415 - only if a stream is kept

        await hand_over(base.options.folder.path, secret_box, streams.instance)


async def _take_over(services: Services, base: BaseServices, secret_box: SecretBox) -> None:
    from gateway.services.streams import take_over  # noqa: PLC0415 - only if the former process has left streams

    await take_over(services, base, secret_box)


async def _close_store(store: "CreatedOnce[BodyStore] | CreatedOnce[CachedAnswers]") -> None:
    if store.instance is not None:
        await store.instance.close()


async def _start_batches(base: BaseServices, batches: "CreatedOnce[BatchService]", stack: AsyncExitStack) -> None:
    """Continue the batches of an earlier process or, in a cluster, of any node."""
    if (node := base.storage.node) is not None:
        from gateway.services.batches import share_batches  # noqa: PLC0415 - only in a cluster

        share_batches(batches(), node.notifications, stack)
    elif base.options.declare and base.storage.leftovers.batches:  # other commands than serve send no requests
        await batches().open()


def _make_batches(
    base: BaseServices,
    billing: BillingServices,
    routing: RoutingServices,
    requests: RequestTracking,
    *,
    proxy: Proxy,
    auth: AuthServices,
    files: FileServices,
    bodies: "CreatedOnce[BodyStore]",
) -> "BatchService":
    from gateway.services.batches import open_batches  # noqa: PLC0415 - with the first batch

    return open_batches(base, billing, routing, requests, proxy=proxy, auth=auth, files=files.files, bodies=bodies)


async def _close_batches(batches: "CreatedOnce[BatchService]") -> None:
    if batches.instance is not None:
        await batches.instance.close()


def _open_sign_in(
    base: BaseServices, auth: AuthServices, fetcher: SafeFetcher, secret_box: SecretBox
) -> "ProviderSignIn | None":
    """Open sign-in by OpenID Connect; None if no ``[[sign_in]]`` is configured. Raises ``ConfigError``."""
    if not base.options.config.sign_in:
        return None
    from gateway.services.sign_in import open_sign_in  # noqa: PLC0415 - only if it is configured

    return open_sign_in(base, auth, fetcher, secret_box)


@contextmanager
def _explain_store_errors(options: AppOptions) -> Iterator[None]:
    try:
        yield
    except (StoreUnavailable, OSError) as error:
        raise DatabaseStartupError(f"The data folder {options.folder.path} cannot be used: {error}") from error


def _build_http_settings(options: AppOptions) -> HttpSettings:
    server = options.config.server
    return HttpSettings(
        max_body_mb=server.max_body_mb,
        form_limits=FormLimits(max_body_bytes=server.max_upload_mb * MIB, max_file_bytes=server.max_file_mb * MIB),
        base_url=server.base_url.rstrip("/"),
        trusted_proxies=parse_networks(server.trusted_proxies),
        path_prefix=find_path_prefix(server.base_url),
    )


def describe_channels(info: StartupInfo, catalog: ModelCatalog) -> StartupInfo:
    """Return ``info`` with the known models, whether all are the demo's, and the channels that did not list theirs."""
    models, demo = catalog.list_models(), [channel for channel in catalog.channels if channel.origin == "demo"]
    return attrs.evolve(
        info,
        models=tuple(model.id for model in models),
        demo=any(catalog.find_offer(channel) == models for channel in demo),
        failures=tuple(
            f"{channel.name}: {error}"
            for channel in catalog.channels
            if (error := catalog.find_sync_status(channel).error) is not None
        ),
    )


async def _follow_changes(services: Services, node: "ClusterNode") -> None:
    """Start to apply the changes of all nodes of the cluster."""
    from gateway.cluster.changes import ChangeFollower  # noqa: PLC0415 - a single process does not need it
    from gateway.cluster.lost_changes import ChangeKeeper  # noqa: PLC0415
    from gateway.cluster.sessions import SessionFollower  # noqa: PLC0415
    from gateway.server.background_responses import CANCELLED, cancel_active  # noqa: PLC0415

    lost_changes = ChangeKeeper(node, services.storage.database, services.auth.api_keys.find_caller)
    follower = ChangeFollower(
        node,
        services.storage,
        services.routing,
        api_keys=services.auth.api_keys,
        reloader=services.admin.reloader,
        keeper=services.billing.keeper,
        start=services.background.start,
        bring_back=lost_changes.bring_back,
    )
    node.notifications.subscribe(CANCELLED, lambda name: cancel_active(services.active_requests, name))
    await follower.restore_jobs()
    sessions = SessionFollower(follower, services.billing.limits, services.active_requests)
    await node.follow(sessions.apply, sessions.reload, follower.restore, lost_changes.keep_new_rows)


def _start_workers(services: Services, options: AppOptions, jobs: JobRunner) -> None:
    routing, storage = services.routing, services.storage
    interval = services.live_config.find_sync_interval_s
    jobs.start("flush_ledger", lambda: services.billing.flusher.run(services.metrics.count_all))
    if services.billing.keeper is not None:
        jobs.start("keep_credit", services.billing.keeper.run)
    if (lists := routing.model_lists) is None:
        jobs.start("sync_models", ModelSyncer(routing.catalog, routing.channels, interval=interval).run)
    else:
        jobs.start("sync_models", lambda: lists.run(routing.channels.sync))
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
    jobs.start("sweep_media", sweep_store(stores, storage.deployment, MediaCleanup(stores.images, rules, clock).run))
    if (node := storage.node) is not None and not stores.shared:
        jobs.start("watch_nodes", lambda: watch_nodes(node))
    if options.certificate is not None:
        jobs.start("renew_certificate", options.certificate.run)


async def _retire_requests(services: Services) -> None:
    await asyncio.sleep(RETENTION_DELAY_S)
    from gateway.services.retention import open_retention_worker  # noqa: PLC0415 - not before the gateway is ready

    await open_retention_worker(services).run()


async def _sum_speed(services: Services) -> None:
    await asyncio.sleep(RETENTION_DELAY_S)
    from gateway.services.speed import run_speed_worker  # noqa: PLC0415 - not before the gateway is ready

    await run_speed_worker(services)


def _start_cleanup(services: Services, options: AppOptions, jobs: JobRunner) -> None:
    storage = services.storage
    if (options.folder.path / _BODIES_FOLDER).exists():
        services.open_bodies()  # an earlier process has kept bodies, which expire
    jobs.start("fill_limits", storage.deployment.run_once(services.billing.limits.fill))
    jobs.start("retire_requests", storage.deployment.run_once(lambda: _retire_requests(services)))
    jobs.start("sum_speed", storage.deployment.run_once(lambda: _sum_speed(services)))
    jobs.start("sweep_files", sweep_store(services.media.stores, storage.deployment, services.files.files.run))
    if storage.node is not None:
        from gateway.cluster.open_journal import collect_notes  # noqa: PLC0415 - its driver is an extra

        list_charges = services.billing.limits.list_charges
        collect_notes(storage.database, storage.node, options.config.ledger.on_crash, jobs, list_charges)
    if services.billing.ledger_check is not None:
        jobs.start("check_ledger", storage.deployment.run_once(services.billing.ledger_check.run))
