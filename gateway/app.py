"""The roof: builds every part of the house and joins them. It reads like a table of contents."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial

import attrs
from aiohttp import web

from gateway.config import Config
from gateway.config_file import read_words_file
from gateway.demo.server import DEMO_MODELS, DemoUpstream
from gateway.domain.catalog import Listed
from gateway.domain.channel import Channel
from gateway.domain.fault import StoreUnavailable
from gateway.domain.network import read_networks
from gateway.flow.accounting import Accounting
from gateway.flow.administration import Administration
from gateway.flow.admission import Admission, Bank
from gateway.flow.auth import Directory
from gateway.flow.discovery import find_keyed, find_local
from gateway.flow.explain import Explainer
from gateway.flow.fleet import Fetch, Fleet, Found
from gateway.flow.gallery import Gallery
from gateway.flow.images import Images
from gateway.flow.keeping import Keeper
from gateway.flow.listing import fetch_models
from gateway.flow.models import Catalog
from gateway.flow.outbox import Outbox
from gateway.flow.recovery import open_bank, recover
from gateway.flow.relay import Relay
from gateway.flow.routing import Router
from gateway.flow.settlement import Settlement
from gateway.flow.switchboard import Switchboard
from gateway.jobs.flush_ledger import FlushLedger
from gateway.jobs.probe_channels import ProbeChannels
from gateway.jobs.runner import JobRunner
from gateway.jobs.sweep_media import SweepMedia
from gateway.jobs.sync_models import SyncModels
from gateway.reload import InForce, Reloader, build_channels, build_models, build_tariff
from gateway.store.accounts import SqlAccountStore
from gateway.store.channels import SqlChannelStore
from gateway.store.counters import MemoryCounters
from gateway.store.engine import Database, StoreRefused, open_database
from gateway.store.folder import DataFolder
from gateway.store.journal import FileJournal
from gateway.store.keys import SqlKeyStore
from gateway.store.ledger import SqlLedger
from gateway.store.media import FileMediaStore
from gateway.store.requests import SqlRequestLog
from gateway.store.seal import Seal, SealBroken
from gateway.store.spool import Spool
from gateway.upstream.client import AiohttpUpstream
from gateway.upstream.guard import GuardedFetcher
from gateway.upstream.port import Upstream
from gateway.web.admin.routes import add_admin_routes, check_admin
from gateway.web.drain import drain
from gateway.web.form import FormLimits
from gateway.web.keys import OFFICE, PROBE, ROOMS, Gate, Office, Rooms
from gateway.web.media import KEEPER, add_media_routes
from gateway.web.middleware import access_log, authenticate, error_shape, sign_response
from gateway.web.probes import add_probes
from gateway.web.routes import add_routes

FIRST_ACCOUNT = "local"
FIRST_KEY = "first"
MIB = 1024 * 1024
UPLOADS = 16
"""So many times what one request may upload may wait on the disk at a time."""


@attrs.define
class Welcome:
    """What the operator is told at start. ``secret`` is the first key, on the first start only."""

    secret: str | None = None
    models: tuple[str, ...] = ()
    demo: bool = False


WELCOME = web.AppKey("welcome", Welcome)


@attrs.frozen
class Site:
    """What the house is built on.

    Attributes:
        config: the settings.
        folder: the data folder, locked.
        environ: where provider keys are looked for when no channel is configured.
        discover: whether they are, and servers on this machine too.
        declare: whether the settings' accounts and keys are brought into the store.
        demo_pace_s: pause between the words of the built-in demo.
        task_pace: what waits for a provider's tasks are multiplied by.
        clock: Unix seconds.
        read_config: reads the settings anew, for a reload. Raises ``ConfigError``.
    """

    config: Config
    folder: DataFolder
    environ: Mapping[str, str]
    discover: bool = True
    declare: bool = True
    demo_pace_s: float = 0.03
    task_pace: float = 1.0
    clock: Callable[[], float] = time.time
    read_config: Callable[[], Config] | None = None


def build(site: Site) -> web.Application:
    """The application. Its parts start with it and stop with it."""
    app = web.Application(
        middlewares=[access_log, error_shape, check_admin, authenticate],
        client_max_size=site.config.server.max_body_mb * 1024 * 1024,
    )
    add_routes(app)
    add_admin_routes(app)
    add_media_routes(app)
    add_probes(app)
    app.on_response_prepare.append(sign_response)
    app.on_shutdown.append(partial(drain, timeout_s=site.config.server.drain_timeout_s))
    app.cleanup_ctx.append(partial(_live, site=site))
    return app


async def _live(app: web.Application, *, site: Site) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        try:
            books = await _open_books(site, stack)
            administration, secret = await _open_administration(site, books)
        except (StoreUnavailable, OSError) as error:
            raise StoreRefused(f"The data folder {site.folder.path} cannot be used: {error}") from error
        upstream, jobs = AiohttpUpstream(), JobRunner()
        stack.push_async_callback(upstream.close)
        stack.push_async_callback(jobs.stop)
        ways = await _open_ways(site, books, upstream, stack)
        in_force = InForce(site.config)
        studio = _open_studio(site, in_force, upstream, stack)
        ways.router.models = build_models(site.config)
        app[ROOMS] = _build_rooms(site, books, administration.directory, ways, _Ends(upstream, studio))
        app[KEEPER] = studio.keeper
        reloader = _open_reloader(site, in_force, administration, ways, studio)
        app[OFFICE] = _open_office(site, books, administration, ways, reloader)
        stack.push_async_callback(app[OFFICE].finish)
        app[PROBE] = books.check_writable
        demo = any(channel.origin == "demo" for channel in ways.catalog.channels)
        app[WELCOME] = Welcome(secret, tuple(listed.id for listed in ways.catalog.list_models()), demo)
        _start_jobs(jobs, books, ways, app[OFFICE])
        jobs.start("sweep_media", SweepMedia(studio.store, in_force.find_media_rules, site.clock).run)
        yield


@attrs.frozen
class _Ends:
    """Where a request comes out of the house, and where what belongs to it waits meanwhile."""

    upstream: Upstream
    studio: "_Studio"


def _build_rooms(site: Site, books: "_Books", directory: Directory, ways: "_Ways", ends: _Ends) -> Rooms:
    admission = Admission(books.bank, MemoryCounters(time.monotonic), books.journal, books.outbox)
    server, studio = site.config.server, ends.studio
    return Rooms(
        directory=directory,
        catalog=ways.catalog,
        switchboard=ways.switchboard,
        router=ways.router,
        admission=admission,
        relay=Relay(ends.upstream, ways.switchboard, studio.images, clock=site.clock),
        settlement=Settlement(admission, books.journal, books.outbox),
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


async def _open_ways(site: Site, books: "_Books", upstream: Upstream, stack: AsyncExitStack) -> _Ways:
    """The file's channels and the stored ones; without any, whatever can be found; without that, the demo."""
    catalog, switchboard = Catalog(clock=site.clock), Switchboard(time.monotonic)
    switchboard.settings = site.config.routing.settings()
    master = bytes.fromhex(site.config.store.master_key) or site.folder.secret("master.key")
    fetch = partial(_fetch_models, upstream, site.clock)
    fleet = Fleet(
        catalog,
        switchboard,
        SqlChannelStore(books.database, Seal(master)),
        fetch=fetch,
        discover=partial(_discover, site, upstream, stack),
        clock=site.clock,
    )
    try:
        await fleet.declare(build_channels(site.config))
    except SealBroken as broken:
        raise StoreRefused(str(broken)) from None
    return _Ways(catalog, switchboard, fleet, Router(catalog, switchboard, build_tariff(site.config)), fetch)


@attrs.frozen
class _Studio:
    """What pictures and uploads need beyond the ways to providers."""

    store: FileMediaStore
    keeper: Keeper
    images: Images
    spool: Spool


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
    return _Studio(store, keeper, images, spool)


def _open_reloader(
    site: Site,
    in_force: InForce,
    administration: Administration,
    ways: _Ways,
    studio: _Studio,
) -> Reloader:
    return Reloader(
        in_force,
        site.read_config,
        administration=administration,
        fleet=ways.fleet,
        catalog=ways.catalog,
        router=ways.router,
        switchboard=ways.switchboard,
        images=studio.images,
    )


def _open_office(
    site: Site,
    books: "_Books",
    administration: Administration,
    ways: _Ways,
    reloader: Reloader,
) -> Office:
    return Office(
        administration=administration,
        accounting=books.accounting,
        catalog=ways.catalog,
        fleet=ways.fleet,
        explainer=Explainer(ways.catalog, ways.switchboard, ways.router, books.accounting, site.clock),
        requests=SqlRequestLog(books.database),
        reload=reloader.reload,
        reload_logged=reloader.reload_logged,
        sync_interval=reloader.find_sync_interval_s,
        token=site.folder.admin_token(),
    )


def _start_jobs(jobs: JobRunner, books: "_Books", ways: _Ways, office: Office) -> None:
    jobs.start("flush_ledger", books.flush.run)
    jobs.start("sync_models", SyncModels(ways.catalog, ways.fleet, interval=office.sync_interval).run)
    jobs.start("probe_channels", ProbeChannels(ways.catalog, ways.switchboard, ways.fetch).run)


@attrs.frozen
class _Books:
    """The store and what is kept in memory of it."""

    database: Database
    journal: FileJournal
    outbox: Outbox
    bank: Bank
    accounting: Accounting
    flush: FlushLedger

    async def check_writable(self) -> None:
        """Raise ``StoreUnavailable`` where a request could not be recorded now."""
        self.outbox.check_room()
        self.journal.check_writable()
        await self.database.check_writable()


async def _open_books(site: Site, stack: AsyncExitStack) -> _Books:
    """Open the store, bring in what a crash has left, read every balance. ``stack`` closes it, rows stored first."""
    url = site.config.store.url or f"sqlite:///{site.folder.private_file('gateway.db')}"
    database = await open_database(url)
    stack.push_async_callback(database.close)
    ledger, outbox = SqlLedger(database), Outbox()
    journal = FileJournal(site.folder.private_file("requests.journal"))
    stack.callback(journal.close)
    flush = FlushLedger(outbox, ledger, journal)
    stack.push_async_callback(flush.finish)
    now_ms = int(site.clock() * 1000)
    # A command that only looks must not decide about money by a configuration that may be another than the gateway's.
    on_crash = site.config.ledger.on_crash if site.declare else None
    await recover(journal.leftovers, ledger, journal, on_crash=on_crash, now_ms=now_ms)
    journal.renew()
    bank = await open_bank(ledger, site.clock)
    accounting = Accounting(bank, ledger, outbox, clock=site.clock)
    return _Books(database, journal, outbox, bank, accounting, flush)


async def _open_administration(site: Site, books: _Books) -> tuple[Administration, str | None]:
    """The accounts and keys, and the secret of the first one where this is the first start."""
    accounts, keys = SqlAccountStore(books.database), SqlKeyStore(books.database)
    directory = Directory(accounts, keys, pepper=site.folder.secret("pepper"), clock=site.clock)
    administration = Administration(accounts, keys, directory, books.accounting, clock=site.clock)
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
    await administration.add_account({"name": FIRST_ACCOUNT})
    key = await administration.add_key({"name": FIRST_KEY, "account": FIRST_ACCOUNT})
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
