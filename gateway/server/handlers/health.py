"""Health probes: liveness and readiness."""

import asyncio

from aiohttp import web

from gateway.errors import GatewayError, StoreUnavailable
from gateway.server.context import SERVICES
from gateway.storage.database import Database

STORE_TIMEOUT_S = 1.5
"""Time limit for the database's answer; it leaves time to answer a probe within two seconds."""
NODE_TIMEOUT_S = 5.0
"""How many seconds a node of a cluster stays ready without the database.

All nodes use one database, and can serve without it for longer than this. If all left the rotation as soon as the
database restarts, is busy, or has a table locked by an upgrade, a load balancer would refuse every request. A node that
alone has lost the database should leave soon.
"""
RECHECK_S = 1.0
"""Seconds between the checks that a node makes by itself after a failure."""


class StoreCheck:
    """Checks that the database is writable. Concurrent probes share one check, even one that hangs."""

    def __init__(self) -> None:
        self._task: asyncio.Task[GatewayError | None] | None = None
        self._rechecks: asyncio.Task[None] | None = None
        self._failing_since_s: float | None = None

    async def run(self, app: web.Application) -> None:
        """Raise ``StoreUnavailable`` if requests cannot be recorded at the moment.

        A node of a cluster serves without the database: there, its error is raised only after ``NODE_TIMEOUT_S``.
        """
        storage = app[SERVICES].storage
        storage.check_room()
        task = self._share_check(storage.database)
        await asyncio.wait({task}, timeout=STORE_TIMEOUT_S)
        error = task.result() if task.done() else StoreUnavailable("The store does not answer")
        if error is None:
            return
        if storage.node is None:
            raise error
        if self._rechecks is None or self._rechecks.done():
            self._rechecks = asyncio.ensure_future(self._repeat(storage.database))
        if self.failing_s >= NODE_TIMEOUT_S:
            raise error

    @property
    def failing_s(self) -> float:
        """For how many seconds checks have failed or not ended; 0 if the last one succeeded."""
        since_s = self._failing_since_s
        return 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s

    def _share_check(self, database: Database) -> asyncio.Task[GatewayError | None]:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._check(database))
        return self._task

    async def _repeat(self, database: Database) -> None:
        """Check every ``RECHECK_S`` until the database can be written to.

        Probes may be half a minute apart. Without these checks, two short outages would count as a long one.
        """
        while self._failing_since_s is not None:
            await asyncio.sleep(RECHECK_S)
            await asyncio.wait({self._share_check(database)})

    async def _check(self, database: Database) -> GatewayError | None:
        """Return why the database cannot be written to; None if it can."""
        if self._failing_since_s is None:
            self._failing_since_s = asyncio.get_running_loop().time()
        try:
            await database.check_writable()
        except GatewayError as error:
            return error
        self._failing_since_s = None
        return None

    async def close(self, _app: web.Application) -> None:
        tasks = [task for task in (self._rechecks, self._task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


CHECK = web.AppKey("check", StoreCheck)


def add_probes(app: web.Application) -> None:
    """Register ``/healthz`` and ``/readyz``."""
    app[CHECK] = check = StoreCheck()
    app.on_shutdown.append(check.close)
    app.router.add_get("/healthz", get_health)
    app.router.add_get("/readyz", get_readiness)


async def get_health(_request: web.Request) -> web.Response:
    """``GET /healthz`` (liveness): always 200 while the event loop runs."""
    return web.json_response({"status": "ok"})


async def get_readiness(request: web.Request) -> web.Response:
    """``GET /readyz`` (readiness): 503 if draining, if requests cannot be recorded or if no channel is available."""
    services = request.app[SERVICES]
    problems = []
    if services.drain.leaving or not services.drain.open:
        problems.append("shutting down")
    try:
        await request.app[CHECK].run(request.app)
    except GatewayError as error:
        problems.append(error.message)
    if not services.routing.catalog.serves_anything:
        problems.append("no channel offers a model")
    elif not services.routing.load_balancer.any_open:
        problems.append("every channel is cooling down after failures")
    limits = services.billing.shared_limits
    warnings = {}
    if limits is not None and not limits.sender.reached:  # still ready: it applies its share
        warnings["warnings"] = [f"{limits.sender.server_name} is away: rate limits are not shared"]
    if problems:
        return web.json_response({"status": "not ready", "problems": problems, **warnings}, status=503)
    return web.json_response({"status": "ready", **warnings})
