"""Graceful shutdown: refuse new requests, wait for active ones, then end the remaining streams with an error event."""

import asyncio
from collections.abc import Callable

import structlog
from aiohttp import web

from gateway.server.context import SERVICES

GRACE_S = 5.0
"""Time for sending the error events of the remaining streams after the drain."""
_POLL_INTERVAL_S = 0.05

log = structlog.stdlib.get_logger(__name__)


async def drain(app: web.Application, *, timeout_s: float) -> None:
    """Refuse new requests and wait until none is active.

    After ``timeout_s``, or when a second signal hurries the drain, abort the streams and wait up to ``GRACE_S`` for
    their error events. aiohttp then cancels the remaining uploads.
    """
    services = app[SERVICES]
    state = services.drain
    state.open = False
    if not state.active_count:
        return
    if state.ends_at is not None:  # the drain began with the wait for resumable streams
        timeout_s = max(0.0, state.ends_at - asyncio.get_running_loop().time())
    log.info("drain_started", running=state.active_count)
    if not await _await_zero(lambda: 0 if state.hurried else state.active_count, timeout_s) or state.active_count:
        log.warning("drain_timed_out", running=state.active_count)
        services.proxy.abort()
        await _await_zero(lambda: services.proxy.running, GRACE_S)
    log.info("drain_finished", running=state.active_count)


async def _await_zero(count: Callable[[], int], timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while count() and loop.time() < deadline:  # noqa: ASYNC110 - once a process, and no event to tend per request
        await asyncio.sleep(_POLL_INTERVAL_S)
    return not count()
