"""What a supervisor asks: alive? ready?"""

from aiohttp import web

from gateway.domain.fault import Fault
from gateway.web.keys import PROBE, ROOMS


def add_probes(app: web.Application) -> None:
    """``/healthz`` and ``/readyz``."""
    app.router.add_get("/healthz", get_health)
    app.router.add_get("/readyz", get_readiness)


async def get_health(_request: web.Request) -> web.Response:
    """Alive: the event loop answers."""
    return web.json_response({"status": "ok"})


async def get_readiness(request: web.Request) -> web.Response:
    """Ready: not draining, the store can be written to, and a channel can be asked. 503 says what is missing."""
    rooms = request.app[ROOMS]
    problems = []
    if not rooms.gate.open:
        problems.append("shutting down")
    try:
        await request.app[PROBE]()
    except Fault as fault:
        problems.append(fault.message)
    if not rooms.catalog.serves_anything:
        problems.append("no channel offers a model")
    elif not rooms.switchboard.any_open:
        problems.append("every channel is cooling down after failures")
    if problems:
        return web.json_response({"status": "not ready", "problems": problems}, status=503)
    return web.json_response({"status": "ready"})
