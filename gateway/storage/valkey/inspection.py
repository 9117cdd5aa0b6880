"""The check of a Valkey or Redis server by ``gateway doctor``."""

import time
from statistics import median

from valkey.asyncio import Valkey
from valkey.asyncio.retry import Retry
from valkey.backoff import NoBackoff
from valkey.exceptions import ValkeyError

from gateway.domain.limit_server import LimitServerState
from gateway.errors import StoreUnavailable
from gateway.storage.valkey.address import ValkeyAddress

_TIMEOUT_S = 3.0
_PING_COUNT = 5


async def inspect_server(url: str) -> LimitServerState:
    """Return the state of the server at ``url``; see ``ValkeyAddress``. Raises ``StoreUnavailable`` if that fails."""
    address = ValkeyAddress(url)
    try:
        async with Valkey.from_url(
            await address.find_url(),
            socket_connect_timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            server_info = await client.info()
            durations_ms = []
            for _ in range(_PING_COUNT):
                started_s = time.perf_counter()
                await client.ping()
                durations_ms.append((time.perf_counter() - started_s) * 1000)
    except (OSError, ValueError, ValkeyError) as error:
        raise StoreUnavailable(f"{address.name} cannot be used: {error}") from error
    name = "Valkey" if "valkey_version" in server_info else "Redis"
    version = server_info.get("valkey_version") or server_info.get("redis_version", "of unknown version")
    policy = str(server_info.get("maxmemory_policy", "noeviction"))
    evicts = bool(server_info.get("maxmemory")) and policy != "noeviction"
    return LimitServerState(address.name, f"{name} {version}", median(durations_ms), policy if evicts else "")
