"""Finds the address at which other nodes of the cluster reach this node."""

import asyncio
import socket
from urllib.parse import urlsplit

from gateway.config.exposure import is_loopback
from gateway.config.schema import Config
from gateway.storage.nodes import bind_to_machine
from gateway.storage.postgres.hosts import split_port

_ALL_ADDRESSES = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_POSTGRES_PORT = 5432


async def find_own_url(config: Config) -> str:
    """Return ``cluster.url``, or else the address on which the gateway listens; empty if unknown.

    If it listens on every address, the result is the address from which it reaches the database. A loopback address
    works for nodes of this machine only. With HTTPS the result is empty unless ``cluster.url`` is set, because a
    certificate is issued for a name.
    """
    server, host = config.server, config.server.host
    if config.cluster.url or not server.port or server.tls_certificate:
        return config.cluster.url.rstrip("/")
    if host in _ALL_ADDRESSES:
        host = await asyncio.to_thread(_find_local_address, config.store.url)
    if not host:
        return ""
    url = f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"
    return bind_to_machine(url) if is_loopback(host) else url


def _find_local_address(store_url: str) -> str:
    """Return this machine's address towards a database server; empty if unknown."""
    try:
        server = split_port(urlsplit(store_url).netloc.rpartition("@")[2].split(",")[0])  # the first of several
        addresses = socket.getaddrinfo(server[0], server[1] or _POSTGRES_PORT, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = addresses[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.connect(address)  # for a datagram socket this only chooses a route, and sends nothing
            return str(sock.getsockname()[0])
    except (OSError, ValueError, IndexError):
        return ""
