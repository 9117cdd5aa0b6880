"""The way the gateway ends: no new work, time for what runs, an error frame for what is left, and every row written."""

import asyncio

import structlog
from aiohttp import web

from gateway.web.keys import ROOMS

GRACE_S = 5.0
"""After the drain, how long the error frames may take to leave."""
_LOOK_EVERY_S = 0.05

log = structlog.stdlib.get_logger(__name__)


async def drain(app: web.Application, *, timeout_s: float) -> None:
    """Run when the listening socket is closed and idle connections with it. Returns when nothing runs any more."""
    rooms = app[ROOMS]
    rooms.gate.open = False
    if not rooms.relay.running:
        return
    log.info("drain_started", running=rooms.relay.running)
    if not await _await_idle(app, timeout_s):
        log.warning("drain_timed_out", running=rooms.relay.running)
        rooms.relay.break_off()
        await _await_idle(app, GRACE_S)
    log.info("drain_finished", running=rooms.relay.running)


async def _await_idle(app: web.Application, timeout_s: float) -> bool:
    relay = app[ROOMS].relay
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while relay.running and loop.time() < until:  # noqa: ASYNC110 - once a process, and no event to tend per request
        await asyncio.sleep(_LOOK_EVERY_S)
    return not relay.running
