"""Find the address at which the other nodes of a cluster reach this one."""

import asyncio
import socket
from urllib.parse import urlsplit

from gateway.config.exposure import is_loopback
from gateway.config.schema import Config
from gateway.storage.nodes import keep_on_machine

_EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_POSTGRES_PORT = 5432


async def find_own_url(config: Config) -> str:
    """Return ``cluster.url``, or else where the gateway listens; empty if that is not known.

    If it listens on every address, its own is that from which it reaches the database. A loopback address is for nodes
    of this machine. Behind HTTPS there is none without ``cluster.url``: a certificate is made out to a name.
    """
    server, host = config.server, config.server.host
    if config.cluster.url or not server.port or server.tls_certificate:
        return config.cluster.url.rstrip("/")
    if host in _EVERY_ADDRESS:
        host = await asyncio.to_thread(_find_local_address, config.store.url)
    if not host:
        return ""
    url = f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"
    return keep_on_machine(url) if is_loopback(host) else url


def _find_local_address(store_url: str) -> str:
    """Return this machine's address towards a database server; empty if it is not known."""
    try:
        parts = urlsplit(store_url)
        found = socket.getaddrinfo(parts.hostname or "", parts.port or _POSTGRES_PORT, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.connect(address)  # a datagram socket: this chooses a route, and sends nothing
            return str(sock.getsockname()[0])
    except (OSError, ValueError, IndexError):
        return ""
