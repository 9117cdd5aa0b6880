"""The roof: builds every part of the house and joins them. It reads like a table of contents."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial

import attrs
from aiohttp import web

from gateway.auth.accounts import Administration
from gateway.auth.api_keys import Directory
from gateway.background import JobRunner
from gateway.billing.quota import Admission
from gateway.billing.rate_limiter import MemoryCounters
from gateway.billing.retention_worker import RetireRequests
from gateway.billing.settlement import Settlement
from gateway.books import Books, open_books
from gateway.cinema import Cinema, Materials, open_cinema
from gateway.config.live_settings import LiveSettings, open_in_force
from gateway.config.loader import read_words_file
from gateway.config.reload import InForce, Reloader, Ruled, build_channels, build_models, build_tariff
from gateway.demo.server import DEMO_MODELS, DemoUpstream
from gateway.domain.audit_log import GATEWAY
from gateway.domain.channel import Channel
from gateway.domain.ip_address import read_networks
from gateway.domain.model_info import Listed
from gateway.errors import StoreUnavailable
from gateway.lobby import Lobby, open_lobby
from gateway.media.cleanup_worker import SweepMedia
from gateway.media.image_delivery import Gallery
from gateway.media.images import Images
from gateway.media.signed_links import Keeper
from gateway.options import Site, Welcome
from gateway.proxy.failover import Relay
from gateway.routing.channels import Fetch, Fleet, Found
from gateway.routing.discovery import find_keyed, find_local
from gateway.routing.load_balancer import Switchboard
from gateway.routing.model_catalog import Catalog
from gateway.routing.model_listing import fetch_models
from gateway.routing.probe_worker import ProbeChannels
from gateway.routing.router import Router
from gateway.routing.sync_worker import SyncModels
from gateway.server.admin.operation import hang
from gateway.server.admin.request_history import History
from gateway.server.admin.route_explain import Explainer
from gateway.server.admin.routes import list_doors
from gateway.server.console.routes import add_console
from gateway.server.context import INVITATIONS, OFFICE, PROBE, RECEPTION, ROOMS, Gate, Office, Rooms
from gateway.server.handlers.health import add_probes
from gateway.server.handlers.media import KEEPER, add_media_routes
from gateway.server.middlewares import sign_response
from gateway.server.multipart import FormLimits
from gateway.server.openapi.routes import add_docs
from gateway.server.routes import add_routes
from gateway.server.shutdown import drain
from gateway.server.threshold import cross
from gateway.storage.accounts import SqlAccountStore
from gateway.storage.api_keys import SqlKeyStore
from gateway.storage.audit_log import SqlAuditTrail
from gateway.storage.channels import SqlChannelStore
from gateway.storage.database import StoreRefused
from gateway.storage.encryption import Seal, SealBroken
from gateway.storage.media_files import FileMediaStore
from gateway.storage.request_log import SqlRequestLog
from gateway.storage.retention import SqlRetirement
from gateway.storage.settings import SqlSettingStore
from gateway.storage.traffic import SqlTraffic
from gateway.storage.upload_spool import Spool
from gateway.upstream.client import EitherUpstream
from gateway.upstream.interface import Upstream
from gateway.upstream.safe_fetch import GuardedFetcher
from gateway.ward import open_ward

FIRST_ACCOUNT = "local"
FIRST_KEY = "first"
MIB = 1024 * 1024
UPLOADS = 16
"""So many times what one request may upload may wait on the disk at a time."""


WELCOME = web.AppKey("welcome", Welcome)


def build(site: Site) -> web.Application:
    """The application. Its parts start with it and stop with it."""
    app = web.Application(
        middlewares=[cross],
        client_max_size=site.config.server.max_body_mb * 1024 * 1024,
    )
    add_routes(app, site.config.server.cors_origins)
    hang(app, list_doors())
    add_console(app)
    add_docs(app)
    add_media_routes(app)
    add_probes(app)
    app.on_response_prepare.append(sign_response)
    app.on_shutdown.append(partial(drain, timeout_s=site.config.server.drain_timeout_s))
    app.cleanup_ctx.append(partial(_live, site=site))
    return app


async def _live(app: web.Application, *, site: Site) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        try:
            books = await open_books(site, stack)
            in_force = await open_in_force(site, books)
            site = attrs.evolve(site, config=in_force.config)
            administration, secret = await _open_administration(site, in_force, books)
        except (StoreUnavailable, OSError) as error:
            raise StoreRefused(f"The data folder {site.folder.path} cannot be used: {error}") from error
        upstream, jobs = EitherUpstream(ordinary=site.config.server.client == "ordinary"), JobRunner()
        stack.push_async_callback(upstream.close)
        stack.push_async_callback(jobs.stop)
        ways = await _open_ways(site, in_force, books, upstream, stack)
        studio = _open_studio(site, in_force, upstream, stack)
        ways.router.models = build_models(site.config)
        hall = _build_hall(site, books, upstream, ways, studio)
        cinema = await _open_cinema(site, in_force, books, _Ends(upstream, ways, studio, hall), stack)
        app[ROOMS] = _build_rooms(site, in_force, books, administration.directory, _Inside(ways, studio, hall, cinema))
        app[KEEPER], app[PROBE] = studio.keeper, books.check_writable
        lobby = open_lobby(books.database, ways.seal, site.clock)
        stack.callback(lobby.close)
        app[RECEPTION], app[INVITATIONS] = lobby.reception, lobby.invitations
        stored = SqlSettingStore(books.database)
        ruled = _list_ruled(administration, ways, studio, cinema)
        trail = SqlAuditTrail(books.database)
        reloader = Reloader(in_force, site.read_config, stored, ruled, trail=trail, clock=site.clock)
        settings = LiveSettings(in_force, reloader, stored, clock=site.clock)
        app[OFFICE] = _open_office(
            site, books, administration, ways, reloader, settings=settings, cinema=cinema, lobby=lobby
        )
        stack.push_async_callback(app[OFFICE].finish)
        open_ward(app, books, site.folder.path, jobs)
        demo = any(channel.origin == "demo" for channel in ways.catalog.channels)
        app[WELCOME] = Welcome(secret, tuple(listed.id for listed in ways.catalog.list_models()), demo)
        _start_jobs(jobs, books, ways, app[OFFICE])
        _start_sweeps(jobs, site, in_force, books, studio)
        if site.declare:  # who only looks may know other channels, and must not end the jobs of those it does not
            cinema.start()
        yield


@attrs.frozen
class _Hall:
    """The rooms that every call walks through, whatever it asks for."""

    admission: Admission
    relay: Relay
    settlement: Settlement


def _build_hall(site: Site, books: Books, upstream: Upstream, ways: "_Ways", studio: "_Studio") -> _Hall:
    admission = Admission(books.bank, MemoryCounters(time.monotonic), books.journal, books.outbox)
    return _Hall(
        admission,
        Relay(upstream, ways.switchboard, studio.images, clock=site.clock),
        Settlement(admission, books.journal, books.outbox),
    )


@attrs.frozen
class _Ends:
    """Where a call comes out of the house, and what it has walked through."""

    upstream: Upstream
    ways: "_Ways"
    studio: "_Studio"
    hall: _Hall


async def _open_cinema(site: Site, in_force: InForce, books: Books, ends: _Ends, stack: AsyncExitStack) -> Cinema:
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
        raise StoreRefused(f"The data folder {site.folder.path} cannot be used: {error}") from error
    cinema.submissions.words = ends.studio.images.words
    return cinema


@attrs.frozen
class _Inside:
    """What a call may need on its way."""

    ways: "_Ways"
    studio: "_Studio"
    hall: _Hall
    cinema: Cinema


def _build_rooms(site: Site, in_force: InForce, books: Books, directory: Directory, inside: _Inside) -> Rooms:
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
        gate=Gate(),
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
        footage=cinema.footage,
        replays=cinema.replays,
        response_owners=cinema.response_owners,
        status_words=in_force.find_status_words,
        webhook_hosts=in_force.find_webhook_hosts,
        base_url=server.base_url.rstrip("/"),
        trusted_proxies=read_networks(server.trusted_proxies),
    )


@attrs.frozen
class _Ways:
    """The ways to providers."""

    catalog: Catalog
    switchboard: Switchboard
    fleet: Fleet
    router: Router
    fetch: Fetch
    seal: Seal


async def _open_ways(site: Site, in_force: InForce, books: Books, upstream: Upstream, stack: AsyncExitStack) -> _Ways:
    """The file's channels and the stored ones; without any, whatever can be found; without that, the demo."""
    catalog, switchboard = Catalog(clock=site.clock), Switchboard(time.monotonic)
    switchboard.settings = site.config.routing.settings()
    master = bytes.fromhex(site.config.store.master_key) or site.folder.secret("master.key")
    seal, fetch = Seal(master), partial(_fetch_models, upstream, site.clock)
    fleet = Fleet(
        catalog,
        switchboard,
        SqlChannelStore(books.database, seal),
        fetch=fetch,
        discover=partial(_discover, site, upstream, stack),
        clock=site.clock,
    )
    try:
        await fleet.declare(build_channels(site.config))
    except SealBroken as broken:
        raise StoreRefused(str(broken)) from None
    return _Ways(catalog, switchboard, fleet, Router(catalog, switchboard, build_tariff(in_force.settled)), fetch, seal)


@attrs.frozen
class _Studio:
    """What pictures and uploads need beyond the ways to providers."""

    store: FileMediaStore
    keeper: Keeper
    images: Images
    spool: Spool
    fetcher: GuardedFetcher


def _open_studio(site: Site, in_force: InForce, upstream: Upstream, stack: AsyncExitStack) -> _Studio:
    """The media store, the guarded way to what providers name, and the place where uploads wait."""
    store = FileMediaStore(site.folder.path / "media")
    keeper = Keeper(store, site.folder.secret("media.key"), ttl_s=in_force.find_link_ttl_s, clock=site.clock)
    fetcher = GuardedFetcher(allow=in_force.find_allowed_networks)
    stack.push_async_callback(fetcher.close)
    images = Images(upstream, Gallery(fetcher, keeper), clock=site.clock, pace=site.task_pace)
    images.words = read_words_file(site.config)
    stack.push_async_callback(images.close)
    spool = Spool(site.folder.path / "uploads", limit_bytes=UPLOADS * site.config.server.max_upload_mb * MIB)
    return _Studio(store, keeper, images, spool, fetcher)


def _list_ruled(administration: Administration, ways: _Ways, studio: _Studio, cinema: Cinema) -> Ruled:
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
    site: Site,
    books: Books,
    administration: Administration,
    ways: _Ways,
    reloader: Reloader,
    *,
    settings: LiveSettings,
    cinema: Cinema,
    lobby: Lobby,
) -> Office:
    books.accounting.jobs = cinema.videos
    administration.check_account_may_go = lobby.members.check_account_may_go
    lobby.members.changing = administration.changing
    log = SqlRequestLog(books.database)
    return Office(
        administration=administration,
        members=lobby.members,
        settings=settings,
        accounting=books.accounting,
        catalog=ways.catalog,
        fleet=ways.fleet,
        explainer=Explainer(ways.catalog, ways.switchboard, ways.router, books.accounting, site.clock),
        requests=log,
        history=History(log, SqlTraffic(books.database), administration.directory, ways.catalog, ways.router),
        videos=cinema.videos,
        deliveries=cinema.deliveries,
        find_secret=cinema.find_secret,
        reload=reloader.reload,
        reload_logged=reloader.reload_logged,
        sync_interval=reloader.find_sync_interval_s,
        trail=SqlAuditTrail(books.database),
        token=site.folder.admin_token(),
    )


def _start_jobs(jobs: JobRunner, books: Books, ways: _Ways, office: Office) -> None:
    jobs.start("flush_ledger", books.flush.run)
    jobs.start("sync_models", SyncModels(ways.catalog, ways.fleet, interval=office.sync_interval).run)
    jobs.start("probe_channels", ProbeChannels(ways.catalog, ways.switchboard, ways.fetch).run)


def _start_sweeps(jobs: JobRunner, site: Site, in_force: InForce, books: Books, studio: _Studio) -> None:
    jobs.start("sweep_media", SweepMedia(studio.store, in_force.find_media_rules, books.expiry.now).run)
    if site.declare:  # who only looks may have been told to keep less
        retire = RetireRequests(SqlRetirement(books.database), books.outbox, in_force.find_keep_days, books.expiry.now)
        jobs.start("retire_requests", retire.run)


async def _open_administration(site: Site, in_force: InForce, books: Books) -> tuple[Administration, str | None]:
    """The accounts and keys, and the secret of the first one where this is the first start."""
    accounts, keys = SqlAccountStore(books.database), SqlKeyStore(books.database)
    directory = Directory(accounts, keys, pepper=site.folder.secret("pepper"), clock=site.clock)
    administration = Administration(accounts, keys, directory, books.accounting, clock=site.clock)
    administration.webhook_hosts = in_force.find_webhook_hosts
    return administration, await _declare(administration, site)


async def _fetch_models(upstream: Upstream, clock: Callable[[], float], channel: Channel) -> list[Listed]:
    return await fetch_models(upstream, channel, now_s=int(clock()))


async def _declare(administration: Administration, site: Site) -> str | None:
    """Bring the file's accounts and keys into the store; with none anywhere, make the first and return its secret."""
    if site.declare:
        await administration.declare(site.config.account, site.config.key)
    else:
        await administration.reload()
    if await administration.list_accounts():
        return None
    await administration.add_account({"name": FIRST_ACCOUNT}, GATEWAY)
    key = await administration.add_key({"name": FIRST_KEY, "account": FIRST_ACCOUNT}, GATEWAY)
    secret: str = key["secret"]
    return secret


async def _discover(site: Site, upstream: Upstream, stack: AsyncExitStack) -> list[Found]:
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
