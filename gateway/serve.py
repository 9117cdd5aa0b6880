"""Runs the application: binds the port, announces the address, stops on SIGTERM or SIGINT, reloads on SIGHUP."""

import asyncio
import contextlib
import gc
import linecache
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import structlog
from aiohttp import web

from gateway import __version__
from gateway.allocator import bound_free_memory
from gateway.app import open_runner
from gateway.config.certificate import ServerCertificate
from gateway.config.server_schema import ServerSection
from gateway.deferred import load
from gateway.errors import StoreUnavailable
from gateway.log import batch_lines
from gateway.options import AppOptions, StartupInfo
from gateway.routing.model_catalog import ModelCatalog
from gateway.server.connection_limits import compute_limits
from gateway.server.context import SERVICES, DrainState, Services
from gateway.server.protocol import GatewayRunner
from gateway.services import describe_channels
from gateway.systemd import ServiceManager

MAX_DESCRIPTORS = 1_048_576
"""Linux's default maximum; more would only enlarge the kernel's tables."""
READ_BUFFER = 64 * 1024
SEND_BUFFER = 64 * 1024
"""Kernel send buffer per connection, inherited from the listening socket. Without this limit, a client that does not
read makes the kernel grow the buffer to 2.9 MB."""
SHUTDOWN_TIMEOUT_S = 1.0
BACKLOG = 1024
_GC_THRESHOLDS = (10_000, 10, 10)
_SWITCH_INTERVAL_S = 0.0005
"""How long the event loop waits for a thread that computes, such as one that redacts bodies. Python's default of 5 ms
delays the events of all streams by as much."""
_POLL_INTERVAL_S = 0.05
_MODEL_POLLS = 40

log = structlog.stdlib.get_logger(__name__)


class PortInUse(Exception):
    """The gateway cannot listen on the address; the message is for the operator."""


def run(options: AppOptions, manager: ServiceManager, on_ready: Callable[[str, StartupInfo], None]) -> None:
    """Serve until a signal; call ``on_ready`` with the address and the content of the startup message.

    Raises ``PortInUse``, and the errors of ``open_runner``.
    """
    if not bound_free_memory():
        log.info("free_memory_not_bounded", reason="the C library is not glibc: its allocator decides what it keeps")
    with asyncio.Runner(loop_factory=_find_loop_factory()) as runner, batch_lines(runner.get_loop()):
        runner.run(_serve(options, manager, on_ready))


def _find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(options: AppOptions, manager: ServiceManager, on_ready: Callable[[str, StartupInfo], None]) -> None:
    host, sockets = _open_sockets(options.config.server, manager)
    loop, drain, stop_event = asyncio.get_running_loop(), DrainState(), asyncio.Event()
    services_future: asyncio.Future[Services] = loop.create_future()
    reloads: set[asyncio.Task[None]] = set()
    watchdog = loop.create_task(manager.keep_watchdog())
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, _stop, drain, stop_event)
    loop.add_signal_handler(signal.SIGHUP, _start_reload, services_future, reloads)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # blocked by the command until the handler is set
    settings = _find_settings(options.config.server, inherits_sockets=bool(manager.socket_count))
    try:
        async with open_runner(options, drain, **settings) as runner, _end_reloads(reloads):
            for sock in sockets:
                await _make_site(runner, sock, options.certificate).start()
            services = runner.app[SERVICES]
            local_address = _announce(options, host, sockets[0].getsockname()[1])
            address = options.config.server.base_url or local_address
            log.info("gateway_started", url=address, version=__version__, pid=os.getpid())
            linecache.clearcache()  # 0.5 MB: attrs puts the source text of each method that it generates there
            _tune_garbage_collector()
            sys.setswitchinterval(_SWITCH_INTERVAL_S)
            on_ready(address, await _get_startup_info(services))
            services_future.set_result(services)
            manager.notify("READY=1")
            await stop_event.wait()
            manager.notify("STOPPING=1")
            log.info("gateway_stopping", running=drain.active_count)
            if options.config.server.shutdown_delay_s:
                await _leave(drain, runner, options.config.server.shutdown_delay_s)
            if services.open_streams.instance is not None:
                await _await_streams(runner, options, sockets, inherited=bool(manager.socket_count))
    finally:
        watchdog.cancel()
        for sock in sockets:
            sock.close()
    log.info("gateway_stopped", pid=os.getpid())


@contextlib.asynccontextmanager
async def _end_reloads(reloads: set[asyncio.Task[None]]) -> AsyncIterator[None]:
    """Cancel the ``reloads`` in progress, and ignore later ones, when the block ends."""
    try:
        yield
    finally:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _ignore_reload)
        for reload in reloads:  # a reload may wait for a provider; the next start reads the file anyway
            reload.cancel()
        await asyncio.gather(*reloads, return_exceptions=True)


def _make_site(runner: GatewayRunner, sock: socket.socket, certificate: ServerCertificate | None) -> web.SockSite:
    if certificate is None:
        return web.SockSite(runner, sock, backlog=BACKLOG)
    site: web.SockSite = load("server.tls_site:TlsSite")(runner, sock, ssl_context=certificate.context, backlog=BACKLOG)
    return site


def _announce(options: AppOptions, host: str, port: int) -> str:
    """Publish the address, and the current certificate, to the gateway's commands. Return the address."""
    certificate = options.certificate
    url = format_address(host, port, tls=certificate is not None)
    if certificate is None:
        options.folder.announce(url)
        return url

    def announce() -> None:
        options.folder.announce(url, certificate.current.fingerprint)

    certificate.on_change = announce
    announce()
    return url


async def _leave(drain: DrainState, runner: GatewayRunner, delay_s: float) -> None:
    """Keep serving for ``delay_s``; ``/readyz`` and every response announce the end. A second signal ends the wait."""
    loop = asyncio.get_running_loop()
    drain.leaving = True
    runner.end_connections()
    deadline_s = loop.time() + delay_s
    while loop.time() < deadline_s and not drain.hurried:  # noqa: ASYNC110 - runs once, and a signal sets no event
        await asyncio.sleep(_POLL_INTERVAL_S)


async def _await_streams(
    runner: GatewayRunner, options: AppOptions, sockets: list[socket.socket], *, inherited: bool
) -> None:
    """Wait until resumable streams have ended or the drain timeout is over; readers can resume them meanwhile.

    A node of a cluster listens at another port for that; the socket is added to ``sockets``.
    """
    server = options.config.server

    async def listen_elsewhere() -> int:
        try:
            (sock,) = bind(server.host, 0)
        except PortInUse as error:
            raise OSError(str(error)) from None
        sockets.append(sock)
        await _make_site(runner, sock, options.certificate).start()
        return int(sock.getsockname()[1])

    await load("server.reader_drain:await_streams")(runner, server, listen_elsewhere, inherited=inherited)


def _find_settings(server: ServerSection, *, inherits_sockets: bool) -> dict[str, Any]:
    """Return the settings of the runner, and raise this process's limit of open files, on which they depend.

    With ``inherits_sockets``, the sockets belong to a service manager.
    """
    return {
        "handler_cancellation": True,
        "keepalive_timeout": server.keepalive_s,
        "limits": compute_limits(raise_descriptor_limit(), server.max_connections, server.max_connections_per_address),
        "inherited": inherits_sockets,
        "read_bufsize": READ_BUFFER,
        "shutdown_timeout": SHUTDOWN_TIMEOUT_S,
    }


async def _get_startup_info(services: Services) -> StartupInfo:
    """Return the content of the startup message, with the console's setup token if there is no administrator.

    Waits briefly for the providers: the message contains an example request with a model that a provider or the demo
    serves.
    """
    catalog = services.routing.catalog
    for _ in range(_MODEL_POLLS):
        if _has_real_models(catalog):
            break
        await asyncio.sleep(_POLL_INTERVAL_S)
    info = describe_channels(services.startup_info, catalog)
    with contextlib.suppress(StoreUnavailable):
        info = attrs.evolve(info, setup_token=await services.auth.find_setup_token())
    return info


def _has_real_models(catalog: ModelCatalog) -> bool:
    """Return whether the startup message need not wait for models any longer.

    Once a provider has listed its models, the demo must be gone; before that, no listing may be pending.
    """
    if any(channel.sync and catalog.find_offer(channel) is not None for channel in catalog.channels):
        return all(channel.origin != "demo" for channel in catalog.channels)
    return not any(
        channel.sync
        and channel.status == "active"
        and catalog.find_offer(channel) is None
        and catalog.find_sync_status(channel).error is None
        for channel in catalog.channels
    )


def _stop(drain: DrainState, stop_event: asyncio.Event) -> None:
    """Handle SIGTERM and SIGINT: stop; a second one aborts running requests."""
    if stop_event.is_set():
        drain.hurried = True
    stop_event.set()


def _start_reload(services_future: asyncio.Future[Services], reloads: set[asyncio.Task[None]]) -> None:
    """Handle SIGHUP. Reloads do not overlap: ``Reloader`` has a lock for them."""
    task = asyncio.get_running_loop().create_task(_reload(services_future))
    reloads.add(task)
    task.add_done_callback(reloads.discard)


async def _reload(services_future: asyncio.Future[Services]) -> None:
    # The start read the file before it opened the database: the file may have changed since.
    await asyncio.wait((services_future,))  # when cancelled, unlike a plain await, it leaves the future as it is
    await services_future.result().admin.reloader.reload_logged()


def _ignore_reload() -> None:
    """Handle SIGHUP while the gateway stops: without a handler the signal would kill the process."""


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to the hard one, at most ``MAX_DESCRIPTORS``; return the limit in effect."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    new_limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < new_limit:
        with contextlib.suppress(ValueError, OSError):  # macOS reports no limit, but has one
            resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def _tune_garbage_collector() -> None:
    """Exclude all objects created at startup from garbage collection, and collect less often. Saves 18 us per request.

    The first threshold is about as many objects as a few dozen running requests hold. Requests rarely leave cycles
    behind.
    """
    gc.freeze()  # not collected before: imports leave no memory worth the 60 ms
    gc.set_threshold(*_GC_THRESHOLDS)  # all three: the start has set the older generations' far higher


def format_address(host: str, port: int, *, tls: bool = False) -> str:
    """Return the URL at which this machine reaches a gateway that listens on ``host``."""
    if host in {"0.0.0.0", "::", ""}:  # noqa: S104 - compared, not bound
        host = "127.0.0.1"
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _open_sockets(server: ServerSection, manager: ServiceManager) -> tuple[str, list[socket.socket]]:
    """Return the host, and the sockets passed by systemd or else bound from the settings. Raises ``PortInUse``."""
    try:
        inherited_sockets = manager.open_sockets()
    except OSError as error:
        raise PortInUse(str(error)) from None
    for sock in inherited_sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    if inherited_sockets:
        return inherited_sockets[0].getsockname()[0], inherited_sockets
    return server.host, bind(server.host, server.port)


def bind(host: str, port: int) -> list[socket.socket]:
    """Bind a socket for every address of ``host``; with port 0, only for the first address. Raises ``PortInUse``."""
    sockets: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in addresses[: 1 if port == 0 else None]:
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise PortInUse(f"Cannot listen on {host}:{port}: {error.strerror or error}") from None
    return sockets
