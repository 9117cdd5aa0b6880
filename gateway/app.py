"""The roof: builds every part of the house and joins them. It reads like a table of contents."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial

import attrs
import structlog
from aiohttp import web

from gateway.config import Config
from gateway.config_file import read_prices
from gateway.demo.server import DEMO_MODELS, DemoUpstream
from gateway.domain.catalog import Listed
from gateway.domain.channel import Channel
from gateway.domain.fault import StoreUnavailable
from gateway.domain.network import read_networks
from gateway.domain.price import ONE_PPM
from gateway.flow.accounting import Accounting
from gateway.flow.administration import Administration
from gateway.flow.admission import Admission, Bank
from gateway.flow.auth import Directory
from gateway.flow.discovery import find_keyed, find_local
from gateway.flow.listing import fetch_models
from gateway.flow.models import Catalog
from gateway.flow.outbox import Outbox
from gateway.flow.recovery import open_bank, recover
from gateway.flow.relay import Relay
from gateway.flow.routing import Router
from gateway.flow.settlement import Settlement
from gateway.jobs.flush_ledger import FlushLedger
from gateway.jobs.runner import JobRunner
from gateway.jobs.sync_models import SyncModels
from gateway.store.accounts import SqlAccountStore
from gateway.store.counters import MemoryCounters
from gateway.store.engine import Database, StoreRefused, open_database
from gateway.store.folder import DataFolder
from gateway.store.journal import FileJournal
from gateway.store.keys import SqlKeyStore
from gateway.store.ledger import SqlLedger
from gateway.store.requests import SqlRequestLog
from gateway.upstream.client import AiohttpUpstream
from gateway.upstream.port import Upstream
from gateway.web.admin.routes import add_admin_routes, check_admin
from gateway.web.drain import drain
from gateway.web.keys import OFFICE, PROBE, ROOMS, Gate, Office, Rooms
from gateway.web.middleware import access_log, authenticate, error_shape, sign_response
from gateway.web.probes import add_probes
from gateway.web.routes import add_routes

FIRST_ACCOUNT = "local"
FIRST_KEY = "first"

log = structlog.stdlib.get_logger(__name__)


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
        clock: Unix seconds.
    """

    config: Config
    folder: DataFolder
    environ: Mapping[str, str]
    discover: bool = True
    declare: bool = True
    demo_pace_s: float = 0.03
    clock: Callable[[], float] = time.time


def build(site: Site) -> web.Application:
    """The application. Its parts start with it and stop with it."""
    app = web.Application(
        middlewares=[access_log, error_shape, check_admin, authenticate],
        client_max_size=site.config.server.max_body_mb * 1024 * 1024,
    )
    add_routes(app)
    add_admin_routes(app)
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
        config, clock = site.config, site.clock
        catalog, relay = Catalog(clock=clock), Relay(upstream)
        demo = await _add_channels(site, catalog, upstream, stack)
        admission = Admission(books.bank, MemoryCounters(time.monotonic), books.journal, books.outbox)
        app[ROOMS] = Rooms(
            directory=administration.directory,
            catalog=catalog,
            router=_build_router(catalog, config),
            admission=admission,
            relay=relay,
            settlement=Settlement(admission, books.journal, books.outbox),
            accounting=books.accounting,
            outbox=books.outbox,
            gate=Gate(),
            clock=clock,
            max_body_mb=config.server.max_body_mb,
            trusted_proxies=read_networks(config.server.trusted_proxies),
        )
        fetch, log_of_requests = partial(_fetch_models, upstream, clock), SqlRequestLog(books.database)
        token = site.folder.admin_token()
        app[OFFICE] = Office(administration, books.accounting, catalog, log_of_requests, fetch, token)
        stack.push_async_callback(app[OFFICE].finish)
        app[PROBE] = books.check_writable
        app[WELCOME] = Welcome(secret, tuple(listed.id for listed in catalog.list_models()), demo)
        jobs.start("flush_ledger", books.flush.run)
        jobs.start("sync_models", SyncModels(catalog, upstream, clock=clock).run)
        yield


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


def _build_router(catalog: Catalog, config: Config) -> Router:
    groups = {group.name: int(group.price_multiplier * ONE_PPM) for group in config.group}
    return Router(catalog, read_prices(config), groups=groups, require_price=config.billing.require_price)


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


async def _add_channels(site: Site, catalog: Catalog, upstream: Upstream, stack: AsyncExitStack) -> bool:
    """The file's channels; without any, whatever can be found; without that, the demo. True where it is the demo."""
    catalog.add_channels(section.channel() for section in site.config.channel)
    if not catalog.channels and site.discover:
        catalog.add_channels(find_keyed(site.environ))
        local = await find_local(upstream, own_port=site.config.server.port, now_s=int(site.clock()))
        for channel, listing in local:
            catalog.add_channels([channel])
            catalog.apply_listing(channel, listing)
    for channel in catalog.channels:
        log.info("channel_added", channel=channel.name, address=channel.base_url, reason=channel.origin)
    if catalog.channels:
        return False
    demo = DemoUpstream(pace_s=site.demo_pace_s)
    stack.push_async_callback(demo.stop)
    await demo.start()
    catalog.add_channels([Channel("demo", "demo", demo.base_url, (demo.api_key,), DEMO_MODELS, origin="demo")])
    return True
