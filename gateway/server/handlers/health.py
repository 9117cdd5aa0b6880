"""Health probes: liveness and readiness."""

import asyncio

from aiohttp import web

from gateway.errors import GatewayError, StoreUnavailable
from gateway.server.context import SERVICES

STORE_TIMEOUT_S = 1.5
"""Time limit for the database's answer; it leaves time to answer a probe within two seconds."""


class StoreCheck:
    """Checks that the database is writable. Concurrent probes share one check, even one that hangs."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def run(self, app: web.Application) -> None:
        task = self._task
        if task is None or task.done():
            task = self._task = asyncio.ensure_future(app[SERVICES].storage.check_writable())
        await asyncio.wait({task}, timeout=STORE_TIMEOUT_S)
        if not task.done():
            raise StoreUnavailable("The store does not answer")
        task.result()

    async def close(self, _app: web.Application) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


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
    """``GET /readyz`` (readiness): 503 if draining, if the store is not writable or if no channel is available."""
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
