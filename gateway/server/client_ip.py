"""The addresses of a request: the client's, the proxy's, and the gateway's as seen by the client."""

import asyncio
import re
from urllib.parse import urlsplit

from aiohttp import web

from gateway.domain.account import Caller
from gateway.domain.ip_address import find_address, is_inside
from gateway.server.context import SERVICES

_HOST_PATTERN = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z", re.ASCII)


def find_client_ip(request: web.Request) -> str | None:
    """Return the address of the client, from ``X-Forwarded-For`` if a trusted proxy sent it; None if unknown."""
    trusted_networks = request.app[SERVICES].http.trusted_proxies
    return find_address(find_peer(request), request.headers.getall("X-Forwarded-For", ()), trusted_networks)


def check_client_ip(request: web.Request, caller: Caller) -> None:
    """Raise ``IpNotAllowed`` if the caller's key may not be used from the address of the client."""
    if caller.networks:
        caller.check_address(find_client_ip(request))


def find_peer(request: web.Request) -> str | None:
    """Return the address of the other end of the connection, a client or a proxy; None if it is closed or has none."""
    return None if request.transport is None else find_peer_address(request.transport)


def find_peer_address(transport: asyncio.BaseTransport) -> str | None:
    """Return the address of the other end of ``transport``; None if it has none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else None


def find_origin(request: web.Request) -> str:
    """Return the gateway's origin as the client addressed it; empty if ``Host`` is not a valid host."""
    return f"{request.scheme}://{request.host.lower()}" if _HOST_PATTERN.match(request.host) else ""


def is_secure(request: web.Request) -> bool:
    """Return whether the browser uses TLS: to the gateway, to a trusted proxy, or according to ``base_url``."""
    if request.secure:
        return True
    services = request.app[SERVICES]
    base_url = urlsplit(services.http.base_url)
    if base_url.scheme == "https" and base_url.netloc.lower() == request.host.lower():
        return True
    is_forwarded_https = request.headers.get("X-Forwarded-Proto", "").lower() == "https"
    return is_forwarded_https and is_inside(find_peer(request), services.http.trusted_proxies)


def find_configured_url(base_url: str) -> str:
    """Return the gateway's address without ``/v1`` from the setting ``base_url``; empty if it is not set."""
    return base_url.removesuffix("/v1").rstrip("/")


def find_public_url(request: web.Request) -> str:
    """Return the gateway's address without ``/v1``: from the settings, else as the client addressed it, else empty."""
    if address := find_configured_url(request.app[SERVICES].http.base_url):
        return address
    origin = find_origin(request)
    return origin.replace("http://", "https://", 1) if is_secure(request) else origin
