"""The address of a Valkey or Redis server, possibly behind sentinels."""

from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from valkey.asyncio import Valkey
from valkey.asyncio.sentinel import Sentinel
from valkey.exceptions import ValkeyError

_SCHEMES = {"redis": "valkey", "rediss": "valkeys"}
_SENTINEL_PORT = 26_379
_SENTINEL_TIMEOUT_S = 1.0
"""Seconds to wait for a sentinel before the next one is asked."""


class ValkeyAddress:
    """The address of the server; behind sentinels it can change.

    ``url`` begins with valkey:// or redis://, or for TLS with valkeys:// or rediss://. Behind sentinels the scheme ends
    in ``+sentinel``, and ``user:password@host1:port1,host2:port2/service/database`` follows it. User and password are
    for the server; sentinels are asked without them. ``name`` is the URL without user, password and query.
    """

    def __init__(self, url: str) -> None:
        self._url_parts = url_parts = urlsplit(url)
        scheme, _, sentinel = url_parts.scheme.partition("+")
        self._scheme = _SCHEMES.get(scheme, scheme)
        self._has_sentinels = sentinel == "sentinel"
        self.name = f"{url_parts.scheme}://{url_parts.netloc.rpartition('@')[2]}{url_parts.path}"

    async def find_url(self) -> str:
        url_parts = self._url_parts
        if not self._has_sentinels:
            return url_parts._replace(scheme=self._scheme).geturl()
        user, at_sign, hosts = url_parts.netloc.rpartition("@")
        service, _, database = url_parts.path.strip("/").partition("/")
        host, port = await self._ask(hosts, service)
        netloc = f"{user}{at_sign}[{host}]:{port}" if ":" in host else f"{user}{at_sign}{host}:{port}"
        return SplitResult(self._scheme, netloc, f"/{database or 0}", url_parts.query, "").geturl()

    async def _ask(self, hosts: str, service: str) -> tuple[str, int]:
        sentinels = [urlsplit(f"//{sentinel}") for sentinel in hosts.split(",")]
        sentinel_client = Sentinel(  # type: ignore[no-untyped-call]
            [(sentinel.hostname, sentinel.port or _SENTINEL_PORT) for sentinel in sentinels],
            socket_connect_timeout=_SENTINEL_TIMEOUT_S,
            socket_timeout=_SENTINEL_TIMEOUT_S,
            ssl=self._scheme == "valkeys",
        )
        try:
            host, port = await sentinel_client.discover_master(service)
            return str(host), int(port)
        finally:
            for client in sentinel_client.sentinels:
                await _close(client)


async def _close(client: Valkey) -> None:
    with suppress(OSError, ValkeyError):
        await client.aclose()
