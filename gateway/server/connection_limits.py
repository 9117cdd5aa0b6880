"""How many connections there may be: in all, and from one address; and which of them are closed when there are more.

A connection costs a descriptor, and a call costs a second one, towards its provider. Whoever opens connections and says
nothing must not shut out those that have something to say: when connections are many, those that wait for a request are
closed, and a new one is refused only if none waits. A part is kept for probes and for the console.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

import attrs
import structlog

from gateway.domain.ip_address import Networks, find_subnet, is_inside

MAX_TOTAL = 10_000
"""Connections, if nobody says how many and descriptors abound: each takes some 20 KB."""
OTHER_DESCRIPTORS = 128
"""What the store, the log, uploads and the listening sockets take of the descriptors."""
Room = Literal["free", "reserved", "none"]
"""What there is for a new connection; ``reserved``: for probes, the console and the admin API alone."""
CROWDED, EASED = 0.75, 0.5
"""Parts of all connections: from the first on they are many, until they are fewer than the second."""
PATIENCE_S = 5.0
"""How long a connection may be open without its first request, while connections are many."""
BATCH = 0.05
"""The part of the waiting connections that is closed at once: looking for them costs a look at all."""
FUTILE_S = 0.25
"""After a look that found none of them, how long nobody looks again: a flood must not cost a look for each."""
MAX_FUTILE = 64
TOLD_S = 60.0
"""Between two lines of the log that say that connections are many."""

log = structlog.stdlib.get_logger(__name__)


class Connection(Protocol):
    """A connection as ``ConnectionLimiter`` sees it."""

    @property
    def served(self) -> bool:
        """Whether a request has come over it."""

    @property
    def waits_since(self) -> float | None:
        """Since when, on the loop's clock, no request is under way; None while one is."""

    @property
    def strange_since(self) -> float | None:
        """The same of a connection whose request is under way, and shows no key; None otherwise."""

    def force_close(self) -> None:
        """Close it at once."""


@attrs.frozen
class ConnectionLimits:
    """How many connections there may be.

    Attributes:
        total: in all.
        per_address: from one IPv4 address, or one /64 of IPv6; addresses of trusted proxies have no limit.
        reserve: of ``total``, those that serve nothing but probes, the console and the admin API.
    """

    total: int
    per_address: int
    reserve: int


def find_limits(descriptors: int, total: int = 0, per_address: int = 0) -> ConnectionLimits:
    """The limits of a process that may have so many descriptors; 0: whatever fits."""
    fits = max((descriptors - OTHER_DESCRIPTORS) // 2, 16)
    total = min(total or MAX_TOTAL, fits)
    return ConnectionLimits(total, min(per_address or total // 2, total), max(total // 16, 4))


class ConnectionLimiter:
    """Lets connections in, and closes others for them.

    Args:
        limits: how many there may be.
        trusted: the networks of proxies, which speak for many.
        clock: the loop's.
    """

    def __init__(self, limits: ConnectionLimits, trusted: Networks, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._trusted = trusted
        self._clock = clock
        self._open: dict[Connection, str | None] = {}
        self._by_network: Counter[str] = Counter()
        self._futile_until: dict[str | None, float] = {}
        self._told_s = float("-inf")
        self._crowded = False
        self.closed = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def crowded(self) -> bool:
        """Whether connections are many. Then somebody calls ``sweep`` every second."""
        return self._crowded

    def admit(self, connection: Connection, address: str | None) -> Room:
        """Count ``connection`` in, unless there is no room for it."""
        network = None if address is None or is_inside(address, self._trusted) else find_subnet(address)
        limits = self.limits
        scarce = len(self._open) >= limits.total - limits.reserve and not self._make_room(None)
        full = scarce and len(self._open) >= limits.total
        if not full and network is not None and self._by_network[network] >= limits.per_address:
            full = not self._make_room(network)
        if full:
            self.refused += 1
            self._tell()
            return "none"
        self._open[connection] = network
        if network is not None:
            self._by_network[network] += 1
        if len(self._open) >= limits.total * CROWDED:
            self._crowded = True
        return "reserved" if scarce else "free"

    def release(self, connection: Connection) -> None:
        """``connection`` has been closed."""
        network = self._open.pop(connection, None)
        if network is not None:
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]

    def sweep(self) -> None:
        """Close what has been open for long without a request, while connections are many."""
        until = self._clock() - PATIENCE_S
        overdue = [
            each
            for each in self._open
            if not each.served and (since := each.waits_since) is not None and since <= until
        ]
        self._close(overdue)
        if len(self._open) < self.limits.total * EASED:
            self._crowded = False

    def _make_room(self, network: str | None) -> bool:
        """Close some of those that wait, of ``network`` or of all; False if none does, or none did a moment ago."""
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

    def _close(self, connections: Iterable[Connection]) -> None:
        for each in connections:
            self.closed += 1
            self.release(each)
            each.force_close()
            self._tell()

    def _tell(self) -> None:
        """One line, not one for each connection."""
        now = self._clock()
        if now >= self._told_s + TOLD_S:
            self._told_s = now
            log.warning(
                "connection_limit_reached",
                running=len(self._open),
                reason=(
                    f"at most {self.limits.total}, and {self.limits.per_address} from one address; since the start "
                    f"{self.closed} were closed for others, and {self.refused} refused"
                ),
            )


def _rank(connection: Connection, now: float) -> tuple[int, float] | None:
    """The lowest is closed first; None: it is not closed. Whoever has been served lately goes before a stranger."""
    since = connection.waits_since
    if since is None:
        since = connection.strange_since
        return None if since is None or now - since < PATIENCE_S else (4, since)
    if not connection.served:
        return (0 if now - since >= PATIENCE_S else 2), since
    return (1 if now - since >= PATIENCE_S else 3), since
