"""What a supervisor asks: alive? ready?"""

import asyncio

from aiohttp import web

from gateway.errors import GatewayError, StoreUnavailable
from gateway.server.context import SERVICES

STORE_TIMEOUT_S = 1.5
"""How long the store may take to answer; a supervisor hears within two seconds whatever it does."""


class StoreCheck:
    """One look at the store at a time, which everybody who asks meanwhile shares: one that hangs is not made twice."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def run(self, app: web.Application) -> None:
        """Raise ``StoreUnavailable`` if nothing can be written, or nobody knows in time."""
        task = self._task
        if task is None or task.done():
            task = self._task = asyncio.ensure_future(app[SERVICES].storage.check_writable())
        await asyncio.wait({task}, timeout=STORE_TIMEOUT_S)
        if not task.done():
            raise StoreUnavailable("The store does not answer")
        task.result()

    async def close(self, _app: web.Application) -> None:
        """Look no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


CHECK = web.AppKey("check", StoreCheck)


def add_probes(app: web.Application) -> None:
    """``/healthz`` and ``/readyz``."""
    app[CHECK] = check = StoreCheck()
    app.on_shutdown.append(check.close)
    app.router.add_get("/healthz", get_health)
    app.router.add_get("/readyz", get_readiness)


async def get_health(_request: web.Request) -> web.Response:
    """Alive: the event loop answers."""
    return web.json_response({"status": "ok"})


async def get_readiness(request: web.Request) -> web.Response:
    """Ready: not draining, the store can be written to, and a channel can be asked. 503 says what is missing."""
    services = request.app[SERVICES]
    problems = []
    if not services.drain.open:
        problems.append("shutting down")
    try:
        await request.app[CHECK].run(request.app)
    except GatewayError as error:
        problems.append(error.message)
    if not services.routing.catalog.serves_anything:
        problems.append("no channel offers a model")
    elif not services.routing.load_balancer.any_open:
        problems.append("every channel is cooling down after failures")
    if problems:
        return web.json_response({"status": "not ready", "problems": problems}, status=503)
    return web.json_response({"status": "ready"})
