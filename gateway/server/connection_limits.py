"""Limits on open connections, in total and per address, and the choice of connections to close at a limit.

A connection takes one file descriptor, and its request takes a second one for the provider. Near the limit the gateway
closes idle connections, and those that have waited for some seconds without a valid key. It refuses a new connection
only if there are none of these. Some connections are reserved for probes, the console and the admin API.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

import structlog

from gateway.domain.ip_address import Networks, find_subnet, is_inside
from gateway.frozen import frozen

MAX_TOTAL = 10_000
"""Default limit of connections, given enough file descriptors. A connection takes about 20 KB of memory."""
OTHER_DESCRIPTORS = 128
"""File descriptors kept for the database, the log, uploads and the listening sockets."""
Admission = Literal["free", "reserved", "none"]
"""Whether a new connection is accepted; ``reserved``: only for probes, the console and the admin API."""
CROWDED_SHARE, EASED_SHARE = 0.75, 0.5
"""Shares of the total limit at which the "crowded" state begins and ends."""
CROWDED_FIRST_REQUEST_TIMEOUT_S = 5.0
"""Time for the first request of a connection while the gateway is crowded."""
HANDSHAKE_TIMEOUT_S = 5.0
CROWDED_HANDSHAKE_TIMEOUT_S = 2.0
CLOSED_SHARE = 0.05
"""Share of the closable connections that one pass closes; each pass visits all connections."""
FUTILE_WINDOW_S = 0.25
"""Pause after a pass that found no connection to close: a flood must not cause a pass per connection."""
MAX_FUTILE_NETWORKS = 64
LOG_EVERY_S = 60.0
"""Minimum time between two log lines about the limit."""

log = structlog.stdlib.get_logger(__name__)


class LimitedConnection(Protocol):
    """The interface of a connection for ``ConnectionLimiter``."""

    @property
    def served(self) -> bool: ...

    @property
    def idle_since(self) -> float | None:
        """When the connection became idle (loop time); None while a request is in progress."""

    @property
    def unauthenticated_since(self) -> float | None:
        """Start of the wait for the current request (loop time) if that request has no valid key; None otherwise."""

    def force_close(self) -> None: ...


@frozen
class ConnectionLimits:
    """The maximum numbers of open connections, and the timeouts of their TLS handshakes.

    Attributes:
        per_address: the limit for one IPv4 address or one IPv6 /64; trusted proxies are exempt.
        reserve: the part of ``total`` that serves only probes, the console and the admin API.
        handshake_s: the timeout of a TLS handshake, in seconds.
        crowded_handshake_s: the timeout of a TLS handshake while the gateway is near its limit, in seconds.
    """

    total: int
    per_address: int
    reserve: int
    handshake_s: float = HANDSHAKE_TIMEOUT_S
    crowded_handshake_s: float = CROWDED_HANDSHAKE_TIMEOUT_S


def compute_limits(descriptors: int, total: int = 0, per_address: int = 0) -> ConnectionLimits:
    """Compute the limits for ``descriptors`` file descriptors.

    0 means the default: a ``total`` of ``MAX_TOTAL``, and half of the total for each address.
    """
    max_by_descriptors = max((descriptors - OTHER_DESCRIPTORS) // 2, 16)
    total = min(total or MAX_TOTAL, max_by_descriptors)
    return ConnectionLimits(total, min(per_address or total // 2, total), max(total // 16, 4))


class ConnectionLimiter:
    """Admits connections, and closes idle or long unauthenticated ones to make room.

    ``trusted`` are the networks of trusted proxies: the limit for one address does not apply to them.
    """

    def __init__(self, limits: ConnectionLimits, trusted: Networks, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._trusted_networks = trusted
        self._clock = clock
        self._open_connections: dict[LimitedConnection, str | None] = {}
        self._by_network: Counter[str] = Counter()
        self._futile_until: dict[str | None, float] = {}
        self._logged_at = float("-inf")
        self._crowded_event = asyncio.Event()
        self.closed_count = 0
        self.refused_count = 0

    def __len__(self) -> int:
        return len(self._open_connections)

    @property
    def crowded(self) -> bool:
        """Whether the gateway is near its limit and ``sweep`` must run regularly."""
        return self._crowded_event.is_set()

    async def wait_until_crowded(self) -> None:
        await self._crowded_event.wait()

    def admit(self, connection: LimitedConnection, address: str | None) -> Admission:
        network = None if address is None or is_inside(address, self._trusted_networks) else find_subnet(address)
        limits = self.limits
        is_scarce = len(self._open_connections) >= limits.total - limits.reserve and not self._make_room(None)
        is_full = is_scarce and len(self._open_connections) >= limits.total
        if not is_full and network is not None and self._by_network[network] >= limits.per_address:
            is_full = not self._make_room(network)
        if is_full:
            self.refused_count += 1
            self._log_limit()
            return "none"
        self._open_connections[connection] = network
        if network is not None:
            self._by_network[network] += 1
        if len(self._open_connections) >= limits.total * CROWDED_SHARE:
            self._crowded_event.set()
        return "reserved" if is_scarce else "free"

    def release(self, connection: LimitedConnection) -> None:
        network = self._open_connections.pop(connection, None)
        if network is not None:
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]

    def sweep(self) -> None:
        deadline = self._clock() - CROWDED_FIRST_REQUEST_TIMEOUT_S
        overdue_connections = [
            connection
            for connection in self._open_connections
            if not connection.served and (since := connection.idle_since) is not None and since <= deadline
        ]
        self._close(overdue_connections)
        if len(self._open_connections) < self.limits.total * EASED_SHARE:
            self._crowded_event.clear()

    def _make_room(self, network: str | None) -> bool:
        """Close some of a network's connections that ``_rank`` does not keep; return whether there were any.

        ``network`` None stands for all networks. If there were none, return False for the next ``FUTILE_WINDOW_S``
        seconds, too, without looking for one.
        """
        now_s = self._clock()
        if now_s < self._futile_until.get(network, now_s):
            return False
        candidates = [
            connection
            for connection, connection_network in self._open_connections.items()
            if network is None or connection_network == network
        ]
        ranked_connections = [
            (rank, connection) for connection in candidates if (rank := _rank(connection, now_s)) is not None
        ]
        max_closed = max(1, int(len(ranked_connections) * CLOSED_SHARE))
        idlest_connections = heapq.nsmallest(max_closed, ranked_connections, key=lambda pair: pair[0])
        self._close(connection for _, connection in idlest_connections)
        if not idlest_connections:
            if len(self._futile_until) >= MAX_FUTILE_NETWORKS:
                self._futile_until.clear()
            self._futile_until[network] = now_s + FUTILE_WINDOW_S
        return bool(idlest_connections)

    def _close(self, connections: Iterable[LimitedConnection]) -> None:
        for connection in connections:
            self.closed_count += 1
            self.release(connection)
            connection.force_close()
            self._log_limit()

    def _log_limit(self) -> None:
        now_s = self._clock()
        if now_s >= self._logged_at + LOG_EVERY_S:
            self._logged_at = now_s
            log.warning(
                "connection_limit_reached",
                running=len(self._open_connections),
                reason=(
                    f"at most {self.limits.total}, and {self.limits.per_address} from one address; since the start "
                    f"{self.closed_count} were closed for others, and {self.refused_count} refused"
                ),
            )


def _rank(connection: LimitedConnection, now_s: float) -> tuple[int, float] | None:
    """Return a connection's rank: those with the lowest are closed first. None to keep the connection."""
    since = connection.idle_since
    if since is None:
        since = connection.unauthenticated_since
        return None if since is None or now_s - since < CROWDED_FIRST_REQUEST_TIMEOUT_S else (4, since)
    if not connection.served:
        return (0 if now_s - since >= CROWDED_FIRST_REQUEST_TIMEOUT_S else 2), since
    return (1 if now_s - since >= CROWDED_FIRST_REQUEST_TIMEOUT_S else 3), since
