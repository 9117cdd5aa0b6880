"""Open every part of the gateway at start, in order, and close them in reverse order at the end."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial

import attrs
from aiohttp import web

from gateway.auth.accounts import AccountService
from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.auth.declared import declare
from gateway.background import JobRunner
from gateway.billing.quota import QuotaService
from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.billing.retention_worker import RetentionWorker
from gateway.billing.settlement import Settlement
from gateway.books import Books, open_books, open_live_config
from gateway.cinema import Cinema, Materials, open_cinema
from gateway.config.live_settings import SettingsService
from gateway.config.loader import read_words_file
from gateway.config.reload import LiveConfig, Reloader, Ruled, build_channels, build_models, build_tariff
from gateway.demo.server import DEMO_MODELS, DemoUpstream
from gateway.domain.audit_log import GATEWAY
from gateway.domain.channel import Channel
from gateway.domain.ip_address import parse_networks
from gateway.domain.model_info import ModelInfo
from gateway.errors import StoreUnavailable
from gateway.lobby import Lobby, open_lobby
from gateway.media.cleanup_worker import MediaCleanup
from gateway.media.image_delivery import ImageDelivery
from gateway.media.images import ImageService
from gateway.media.signed_links import SignedLinks
from gateway.options import AppOptions, StartupInfo
from gateway.proxy.failover import Proxy
from gateway.routing.channels import ChannelService, Fetch, Found
from gateway.routing.discovery import find_keyed, find_local
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.model_listing import fetch_models
from gateway.routing.probe_worker import ChannelProber
from gateway.routing.router import Router
from gateway.routing.sync_worker import ModelSyncer
from gateway.server.admin.request_history import RequestHistory
from gateway.server.admin.route_explain import RouteExplainer
from gateway.server.context import (
    INVITATIONS,
    OFFICE,
    PROBE,
    ROOMS,
    SESSIONS,
    DrainState,
    Office,
    Rooms,
)
from gateway.server.handlers.media import KEEPER
from gateway.server.multipart import FormLimits
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.channels import ChannelRepository
from gateway.storage.database import DatabaseStartupError
from gateway.storage.encryption import DecryptionFailed, SecretBox
from gateway.storage.media_files import MediaFiles
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.retention import RetentionRepository
from gateway.storage.settings import SettingRepository
from gateway.storage.traffic import TrafficRepository
from gateway.storage.upload_spool import UploadSpool
from gateway.upstream.client import FallbackHttpClient
from gateway.upstream.interface import HttpClient
from gateway.upstream.safe_fetch import SafeFetcher
from gateway.ward import open_ward

FIRST_ACCOUNT = "local"
FIRST_KEY = "first"
MIB = 1024 * 1024
UPLOADS = 16
"""So many times what one request may upload may wait on the disk at a time."""
WELCOME = web.AppKey("welcome", StartupInfo)


async def open_services(app: web.Application, *, options: AppOptions) -> AsyncIterator[None]:
    """Open what handlers need and start the workers; a ``cleanup_ctx`` of aiohttp."""
    async with AsyncExitStack() as stack:
        try:
            books = await open_books(options, stack)
            in_force = await open_live_config(options, books)
            options = attrs.evolve(options, config=in_force.config)
            administration, secret = await _open_administration(options, in_force, books)
        except (StoreUnavailable, OSError) as error:
            raise DatabaseStartupError(f"The data folder {options.folder.path} cannot be used: {error}") from error
        upstream, jobs = FallbackHttpClient(ordinary=options.config.server.client == "ordinary"), JobRunner()
        stack.push_async_callback(upstream.close)
        stack.push_async_callback(jobs.stop)
        ways = await _open_ways(options, in_force, books, upstream, stack)
        studio = _open_studio(options, in_force, upstream, stack)
        ways.router.models = build_models(options.config)
        hall = _build_hall(options, books, upstream, ways)
        cinema = await _open_cinema(options, in_force, books, _Ends(upstream, ways, studio, hall), stack)
        inside = _Inside(ways, studio, hall, cinema)
        app[ROOMS] = _build_rooms(options, in_force, books, administration.directory, inside)
        app[KEEPER], app[PROBE] = studio.keeper, books.check_writable
        lobby = open_lobby(books.database, ways.seal, options.clock)
        stack.callback(lobby.close)
        app[SESSIONS], app[INVITATIONS] = lobby.sessions, lobby.invitations
        stored = SettingRepository(books.database)
        ruled = _list_ruled(administration, ways, studio, cinema)
        trail = AuditLogRepository(books.database)
        reloader = Reloader(in_force, options.read_config, stored, ruled, trail=trail, clock=options.clock)
        settings = SettingsService(in_force, reloader, stored, clock=options.clock)
        app[OFFICE] = _open_office(
            options, books, administration, ways, reloader, settings=settings, cinema=cinema, lobby=lobby
        )
        stack.push_async_callback(app[OFFICE].finish)
        open_ward(app, books, options.folder.path, jobs)
        app[WELCOME] = _describe_startup(secret, ways.catalog)
        _start_jobs(jobs, books, ways, app[OFFICE])
        _start_sweeps(jobs, options, in_force, books, studio)
        if options.declare:  # who only looks may know other channels, and must not end the jobs of those it does not
            cinema.start()
        yield


def _describe_startup(secret: str | None, catalog: ModelCatalog) -> StartupInfo:
    demo = any(channel.origin == "demo" for channel in catalog.channels)
    return StartupInfo(secret, tuple(listed.id for listed in catalog.list_models()), demo)


@attrs.frozen
class _Hall:
    """The rooms that every call walks through, whatever it asks for."""

    admission: QuotaService
    relay: Proxy
    settlement: Settlement


def _build_hall(site: AppOptions, books: Books, upstream: HttpClient, ways: "_Ways") -> _Hall:
    admission = QuotaService(books.bank, InMemoryRateLimiter(time.monotonic), books.journal, books.outbox)
    return _Hall(
        admission,
        Proxy(upstream, ways.switchboard, clock=site.clock),
        Settlement(admission, books.journal, books.outbox),
    )


@attrs.frozen
class _Ends:
    """Where a call comes out of the house, and what it has walked through."""

    upstream: HttpClient
    ways: "_Ways"
    studio: "_Studio"
    hall: _Hall


async def _open_cinema(
    site: AppOptions, in_force: LiveConfig, books: Books, ends: _Ends, stack: AsyncExitStack
) -> Cinema:
    materials = Materials(
        database=books.database,
        left=books.left,
        folder=site.folder.path / "videos",
        webhook_key=site.folder.secret("webhook.key"),
        in_force=in_force,
        upstream=ends.upstream,
        fetcher=ends.studio.fetcher,
        spool=ends.studio.spool,
        catalog=ends.ways.catalog,
        bank=books.bank,
        outbox=books.outbox,
        admission=ends.hall.admission,
        settlement=ends.hall.settlement,
        relay=ends.hall.relay,
        clock=site.clock,
        expiry=books.expiry.now,
        pace=site.task_pace,
    )
    try:
        cinema = await open_cinema(materials, stack)
    except (StoreUnavailable, OSError) as error:
        raise DatabaseStartupError(f"The data folder {site.folder.path} cannot be used: {error}") from error
    cinema.submissions.words = ends.studio.images.words
    return cinema


@attrs.frozen
class _Inside:
    """What a call may need on its way."""

    ways: "_Ways"
    studio: "_Studio"
    hall: _Hall
    cinema: Cinema


def _build_rooms(
    site: AppOptions, in_force: LiveConfig, books: Books, directory: ApiKeyAuthenticator, inside: _Inside
) -> Rooms:
    server, studio, ways, cinema = site.config.server, inside.studio, inside.ways, inside.cinema
    inside.hall.settlement.find_abandoned = in_force.find_abandoned
    return Rooms(
        directory=directory,
        catalog=ways.catalog,
        switchboard=ways.switchboard,
        router=ways.router,
        admission=inside.hall.admission,
        relay=inside.hall.relay,
        settlement=inside.hall.settlement,
        accounting=books.accounting,
        outbox=books.outbox,
        gate=DrainState(),
        clock=site.clock,
        max_body_mb=server.max_body_mb,
        images=studio.images,
        spool=studio.spool,
        form_limits=FormLimits(
            max_body_bytes=server.max_upload_mb * MIB,
            max_file_bytes=server.max_file_mb * MIB,
        ),
        videos=cinema.videos,
        submissions=cinema.submissions,
        video_content=cinema.video_content,
        replays=cinema.replays,
        response_owners=cinema.response_owners,
        status_words=in_force.find_status_words,
        webhook_hosts=in_force.find_webhook_hosts,
        base_url=server.base_url.rstrip("/"),
        trusted_proxies=parse_networks(server.trusted_proxies),
    )


@attrs.frozen
class _Ways:
    """The ways to providers."""

    catalog: ModelCatalog
    switchboard: LoadBalancer
    fleet: ChannelService
    router: Router
    fetch: Fetch
    seal: SecretBox


async def _open_ways(
    site: AppOptions, in_force: LiveConfig, books: Books, upstream: HttpClient, stack: AsyncExitStack
) -> _Ways:
    """The file's channels and the stored ones; without any, whatever can be found; without that, the demo."""
    catalog, switchboard = ModelCatalog(clock=site.clock), LoadBalancer(time.monotonic)
    switchboard.settings = site.config.routing.settings()
    master = bytes.fromhex(site.config.store.master_key) or site.folder.secret("master.key")
    seal, fetch = SecretBox(master), partial(_fetch_models, upstream, site.clock)
    fleet = ChannelService(
        catalog,
        switchboard,
        ChannelRepository(books.database, seal),
        fetch=fetch,
        discover=partial(_discover, site, upstream, stack),
        clock=site.clock,
    )
    try:
        await fleet.declare(build_channels(site.config))
    except DecryptionFailed as broken:
        raise DatabaseStartupError(str(broken)) from None
    return _Ways(catalog, switchboard, fleet, Router(catalog, switchboard, build_tariff(in_force.settled)), fetch, seal)


@attrs.frozen
class _Studio:
    """What pictures and uploads need beyond the ways to providers."""

    store: MediaFiles
    keeper: SignedLinks
    images: ImageService
    spool: UploadSpool
    fetcher: SafeFetcher


def _open_studio(site: AppOptions, in_force: LiveConfig, upstream: HttpClient, stack: AsyncExitStack) -> _Studio:
    """The media store, the guarded way to what providers name, and the place where uploads wait."""
    store = MediaFiles(site.folder.path / "media")
    keeper = SignedLinks(store, site.folder.secret("media.key"), ttl_s=in_force.find_link_ttl_s, clock=site.clock)
    fetcher = SafeFetcher(allow=in_force.find_allowed_networks)
    stack.push_async_callback(fetcher.close)
    images = ImageService(upstream, ImageDelivery(fetcher, keeper), clock=site.clock, pace=site.task_pace)
    images.words = read_words_file(site.config)
    stack.push_async_callback(images.close)
    spool = UploadSpool(site.folder.path / "uploads", limit_bytes=UPLOADS * site.config.server.max_upload_mb * MIB)
    return _Studio(store, keeper, images, spool, fetcher)


def _list_ruled(administration: AccountService, ways: _Ways, studio: _Studio, cinema: Cinema) -> Ruled:
    return Ruled(
        administration=administration,
        fleet=ways.fleet,
        catalog=ways.catalog,
        router=ways.router,
        switchboard=ways.switchboard,
        images=studio.images,
        submissions=cinema.submissions,
    )


def _open_office(
    site: AppOptions,
    books: Books,
    administration: AccountService,
    ways: _Ways,
    reloader: Reloader,
    *,
    settings: SettingsService,
    cinema: Cinema,
    lobby: Lobby,
) -> Office:
    books.accounting.jobs = cinema.videos
    administration.check_account_may_go = lobby.members.check_account_may_go
    lobby.members.changing = administration.changing
    log = RequestLogRepository(books.database)
    return Office(
        administration=administration,
        members=lobby.members,
        settings=settings,
        accounting=books.accounting,
        catalog=ways.catalog,
        fleet=ways.fleet,
        explainer=RouteExplainer(ways.catalog, ways.switchboard, ways.router, books.accounting, site.clock),
        requests=log,
        history=RequestHistory(
            log, TrafficRepository(books.database), administration.directory, ways.catalog, ways.router
        ),
        videos=cinema.videos,
        deliveries=cinema.deliveries,
        find_secret=cinema.find_secret,
        reload=reloader.reload,
        reload_logged=reloader.reload_logged,
        sync_interval=reloader.find_sync_interval_s,
        trail=AuditLogRepository(books.database),
        token=site.folder.admin_token(),
    )


def _start_jobs(jobs: JobRunner, books: Books, ways: _Ways, office: Office) -> None:
    jobs.start("flush_ledger", books.flush.run)
    jobs.start("sync_models", ModelSyncer(ways.catalog, ways.fleet, interval=office.sync_interval).run)
    jobs.start("probe_channels", ChannelProber(ways.catalog, ways.switchboard, ways.fetch).run)


def _start_sweeps(jobs: JobRunner, site: AppOptions, in_force: LiveConfig, books: Books, studio: _Studio) -> None:
    jobs.start("sweep_media", MediaCleanup(studio.store, in_force.find_media_rules, books.expiry.now).run)
    if site.declare:  # who only looks may have been told to keep less
        retire = RetentionWorker(
            RetentionRepository(books.database), books.outbox, in_force.find_keep_days, books.expiry.now
        )
        jobs.start("retire_requests", retire.run)


async def _open_administration(
    site: AppOptions, in_force: LiveConfig, books: Books
) -> tuple[AccountService, str | None]:
    """The accounts and keys, and the secret of the first one where this is the first start."""
    accounts, keys = AccountRepository(books.database), ApiKeyRepository(books.database)
    directory = ApiKeyAuthenticator(accounts, keys, pepper=site.folder.secret("pepper"), clock=site.clock)
    administration = AccountService(accounts, keys, directory, books.accounting, clock=site.clock)
    administration.webhook_hosts = in_force.find_webhook_hosts
    return administration, await _declare(administration, site)


async def _fetch_models(upstream: HttpClient, clock: Callable[[], float], channel: Channel) -> list[ModelInfo]:
    return await fetch_models(upstream, channel, now_s=int(clock()))


async def _declare(administration: AccountService, site: AppOptions) -> str | None:
    """Bring the file's accounts and keys into the store; with none anywhere, make the first and return its secret."""
    if site.declare:
        await declare(administration, site.config.account, site.config.key)
    else:
        await administration.reload()
    if await administration.list_accounts():
        return None
    await administration.add_account({"name": FIRST_ACCOUNT}, GATEWAY)
    key = await administration.add_key({"name": FIRST_KEY, "account": FIRST_ACCOUNT}, GATEWAY)
    return str(key["secret"])


async def _discover(site: AppOptions, upstream: HttpClient, stack: AsyncExitStack) -> list[Found]:
    """Channels where none is configured: provider keys of the environment and local servers, else the demo."""
    found: list[Found] = []
    if site.discover:
        found += [(channel, None) for channel in find_keyed(site.environ)]
        found += await find_local(upstream, own_port=site.config.server.port, now_s=int(site.clock()))
    if found:
        return found
    demo = DemoUpstream(pace_s=site.demo_pace_s)
    stack.push_async_callback(demo.stop)
    await demo.start()
    return [(Channel("demo", "demo", demo.base_url, (demo.api_key,), DEMO_MODELS, origin="demo"), None)]
