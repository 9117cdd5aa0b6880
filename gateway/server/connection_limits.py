"""Limits on open connections, in total and per address, and which connections are closed when a limit is reached.

A connection takes a file descriptor, and a request takes a second one for its provider. Idle connections must not shut
out clients that send requests: near the limit the gateway closes connections that wait for a request, and refuses a new
one only if none waits. Some connections are reserved for probes and the console.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

import structlog

from gateway.domain.ip_address import Networks, find_subnet, is_inside
from gateway.frozen import frozen

MAX_TOTAL = 10_000
"""Connections, if the configuration sets no limit and there are descriptors enough: each takes about 20 KB."""
OTHER_DESCRIPTORS = 128
"""Descriptors for the database, the log, uploads and the listening sockets."""
Room = Literal["free", "reserved", "none"]
"""Whether a new connection is accepted; ``reserved``: for probes, the console and the admin API only."""
CROWDED, EASED = 0.75, 0.5
"""Shares of the total limit: crowded from the first on, until the count falls below the second."""
FIRST_REQUEST_TIMEOUT_S = 5.0
"""How long a connection may be open without its first request, while the gateway is crowded."""
HANDSHAKE_TIMEOUT_S = 5.0
CROWDED_HANDSHAKE_TIMEOUT_S = 2.0
BATCH = 0.05
"""The share of the waiting connections that is closed at once: finding them takes a pass over all connections."""
FUTILE_S = 0.25
"""How long no further pass is made after one that found none: a flood must not cause a pass per connection."""
MAX_FUTILE = 64
LOG_EVERY_S = 60.0
"""At least between two log lines about the limit."""

log = structlog.stdlib.get_logger(__name__)


class LimitedConnection(Protocol):
    """A connection as ``ConnectionLimiter`` sees it."""

    @property
    def served(self) -> bool:
        """Whether it has carried a request."""

    @property
    def waits_since(self) -> float | None:
        """Since when no request is under way, in loop time; None while one is."""

    @property
    def strange_since(self) -> float | None:
        """Since when a request without a valid key is under way, in loop time; None otherwise."""

    def force_close(self) -> None: ...


@frozen
class ConnectionLimits:
    """The most connections that may be open.

    Attributes:
        total: in all.
        per_address: from one IPv4 address, or one /64 of IPv6; addresses of trusted proxies have no limit.
        reserve: of ``total``, those that serve only probes, the console and the admin API.
        handshake_s: how long a TLS handshake may take.
        crowded_handshake_s: the same while there are many connections.
    """

    total: int
    per_address: int
    reserve: int
    handshake_s: float = HANDSHAKE_TIMEOUT_S
    crowded_handshake_s: float = CROWDED_HANDSHAKE_TIMEOUT_S


def find_limits(descriptors: int, total: int = 0, per_address: int = 0) -> ConnectionLimits:
    """Compute the limits of a process with ``descriptors`` file descriptors; 0: as many as fit."""
    fits = max((descriptors - OTHER_DESCRIPTORS) // 2, 16)
    total = min(total or MAX_TOTAL, fits)
    return ConnectionLimits(total, min(per_address or total // 2, total), max(total // 16, 4))


class ConnectionLimiter:
    """Accepts connections, and closes idle ones to make room.

    ``trusted``: the networks of proxies, which carry the connections of many clients. ``clock``: the event loop's time.
    """

    def __init__(self, limits: ConnectionLimits, trusted: Networks, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._trusted = trusted
        self._clock = clock
        self._open: dict[LimitedConnection, str | None] = {}
        self._by_network: Counter[str] = Counter()
        self._futile_until: dict[str | None, float] = {}
        self._logged_at = float("-inf")
        self._crowded = False
        self.closed = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def crowded(self) -> bool:
        """Whether there are so many connections that ``sweep`` must run every second."""
        return self._crowded

    def admit(self, connection: LimitedConnection, address: str | None) -> Room:
        """Count ``connection``, unless there is no room for it."""
        network = None if address is None or is_inside(address, self._trusted) else find_subnet(address)
        limits = self.limits
        scarce = len(self._open) >= limits.total - limits.reserve and not self._make_room(None)
        full = scarce and len(self._open) >= limits.total
        if not full and network is not None and self._by_network[network] >= limits.per_address:
            full = not self._make_room(network)
        if full:
            self.refused += 1
            self._log_limit()
            return "none"
        self._open[connection] = network
        if network is not None:
            self._by_network[network] += 1
        if len(self._open) >= limits.total * CROWDED:
            self._crowded = True
        return "reserved" if scarce else "free"

    def release(self, connection: LimitedConnection) -> None:
        """Note that ``connection`` is closed."""
        network = self._open.pop(connection, None)
        if network is not None:
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]

    def sweep(self) -> None:
        """Close connections that have been open for ``FIRST_REQUEST_TIMEOUT_S`` without a request."""
        until = self._clock() - FIRST_REQUEST_TIMEOUT_S
        overdue = [
            each
            for each in self._open
            if not each.served and (since := each.waits_since) is not None and since <= until
        ]
        self._close(overdue)
        if len(self._open) < self.limits.total * EASED:
            self._crowded = False

    def _make_room(self, network: str | None) -> bool:
        """Close some waiting connections, of ``network`` or of all; False if none waits, or none did a moment ago."""
        now = self._clock()
        if now < self._futile_until.get(network, now):
            return False
        among = [each for each, its in self._open.items() if network is None or its == network]
        ranked = [(rank, each) for each in among if (rank := _rank(each, now)) is not None]
        chosen = heapq.nsmallest(max(1, int(len(ranked) * BATCH)), ranked, key=lambda one: one[0])
        self._close(each for _, each in chosen)
        if not chosen:
            if len(self._futile_until) >= MAX_FUTILE:
                self._futile_until.clear()
            self._futile_until[network] = now + FUTILE_S
        return bool(chosen)

    def _close(self, connections: Iterable[LimitedConnection]) -> None:
        for each in connections:
            self.closed += 1
            self.release(each)
            each.force_close()
            self._log_limit()

    def _log_limit(self) -> None:
        """Log the limit, at most once in ``LOG_EVERY_S``."""
        now = self._clock()
        if now >= self._logged_at + LOG_EVERY_S:
            self._logged_at = now
            log.warning(
                "connection_limit_reached",
                running=len(self._open),
                reason=(
                    f"at most {self.limits.total}, and {self.limits.per_address} from one address; since the start "
                    f"{self.closed} were closed for others, and {self.refused} refused"
                ),
            )


def _rank(connection: LimitedConnection, now: float) -> tuple[int, float] | None:
    """Rank a connection for closing, the lowest first; None: keep it. One that was served recently is kept longer."""
    since = connection.waits_since
    if since is None:
        since = connection.strange_since
        return None if since is None or now - since < FIRST_REQUEST_TIMEOUT_S else (4, since)
    if not connection.served:
        return (0 if now - since >= FIRST_REQUEST_TIMEOUT_S else 2), since
    return (1 if now - since >= FIRST_REQUEST_TIMEOUT_S else 3), since
