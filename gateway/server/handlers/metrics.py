"""``GET /metrics``: the gateway's metrics for Prometheus, with access control."""

import asyncio
import hmac
from importlib import import_module

from aiohttp import web

from gateway.domain.ip_address import is_inside, parse_networks
from gateway.domain.member import Forbidden
from gateway.errors import InvalidApiKey, NotFound
from gateway.server.client_ip import find_client_ip, find_peer
from gateway.server.context import SERVICES
from gateway.server.middlewares import delay_unknown_key

_LOOPBACK = parse_networks(("127.0.0.0/8", "::1"))
_FORWARDED_HEADERS = ("X-Forwarded-For", "Forwarded", "X-Real-IP")
METRICS_LOCK = web.AppKey("reading", asyncio.Lock)
"""Lock that serializes scrapes."""


def add_metrics(app: web.Application) -> None:
    """Register ``/metrics``."""
    app[METRICS_LOCK] = asyncio.Lock()
    app.router.add_get("/metrics", get_metrics)


async def get_metrics(request: web.Request) -> web.Response:
    """``GET /metrics``: all metrics, in Prometheus' text format or the OpenMetrics format."""
    await _check_access(request)
    async with request.app[METRICS_LOCK]:
        # The first scrape imports prometheus_client, in a thread because the import takes 0.1 s.
        await asyncio.to_thread(import_module, "gateway.server.metrics_page")
        from gateway.server.metrics_page import build_page  # noqa: PLC0415

        body, media_type = await build_page(request.app[SERVICES], request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": media_type, "Cache-Control": "no-store"})


async def _check_access(request: web.Request) -> None:
    """Raise an error unless the client may read the metrics.

    Raises ``NotFound``, ``Forbidden``, ``InvalidApiKey`` or, after many wrong tokens, ``RateLimited``.
    """
    settings = request.app[SERVICES].live_config.config.metrics
    if settings.token and _has_token(request, settings.token):
        return
    address = find_client_ip(request)
    if is_inside(address, parse_networks(settings.allow)) or _is_local(request, address):
        return
    if settings.token:
        if "Authorization" in request.headers:
            await delay_unknown_key(request)
        raise InvalidApiKey("The metrics need the bearer token of the setting metrics.token", should_retry=False)
    if settings.allow:
        raise Forbidden("The metrics may not be read from this address (setting metrics.allow)", should_retry=False)
    raise NotFound(f"There is nothing at {request.path}", should_retry=False)


def _has_token(request: web.Request, expected: str) -> bool:
    authorizations = request.headers.getall("Authorization", ("",))
    scheme, _, token = authorizations[0].partition(" ")
    given_token = token.strip().encode("utf-8", "replace")
    return (
        len(authorizations) == 1 and scheme.lower() == "bearer" and hmac.compare_digest(given_token, expected.encode())
    )


def _is_local(request: web.Request, address: str | None) -> bool:
    """Return whether the client runs on this machine, even if its requests come through a proxy here."""
    peer = find_peer(request)
    if not is_inside(peer, _LOOPBACK) or not any(name in request.headers for name in _FORWARDED_HEADERS):
        return is_inside(peer, _LOOPBACK)
    is_trusted = (
        is_inside(peer, request.app[SERVICES].http.trusted_proxies) and _FORWARDED_HEADERS[0] in request.headers
    )
    return is_trusted and is_inside(address, _LOOPBACK)
