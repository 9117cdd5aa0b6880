"""Nodes: the gateways that use one database together."""

from typing import Literal

from gateway.frozen import quick_frozen

NodeState = Literal["live", "dead", "gone"]
"""``dead``: its heartbeats have ended, and its data folder may have records that are not stored yet. ``gone``: it has
shut down cleanly, or has left only credit that is settled later."""


@quick_frozen
class Node:
    """A gateway process of a cluster, by the ``id`` in its data folder.

    Attributes:
        epoch: the number of its registrations. Claims of an earlier epoch no longer count.
        url: the address at which other nodes reach it; empty if unknown.
        config_digest: a digest of its configuration, without the sections that may differ between nodes.
        beat_age_ms: the time since its last heartbeat, by the store's clock.
        clock_offset_ms: by how much the store's clock was ahead of the node's at the last heartbeat.
        outstanding_nanos: the credit that it holds and that no other node can spend.
    """

    id: str
    epoch: int = 0
    state: NodeState = "live"
    url: str = ""
    version: str = ""
    schema: str = ""
    config_digest: str = ""
    started_ms: int = 0
    beat_age_ms: int = 0
    clock_offset_ms: int = 0
    waiting_rows: int = 0
    active_requests: int = 0
    leads: bool = False
    outstanding_nanos: int = 0

    @property
    def process(self) -> str:
        """The name under which the store records this process's claims."""
        return f"{self.id}:{self.epoch}"


def parse_process(process: str) -> tuple[str, int] | None:
    """Parse a ``Node.process`` into the node's id and epoch. Return None if it is invalid."""
    node, _, epoch = process.rpartition(":")
    return (node, int(epoch)) if node and epoch.isascii() and epoch.isdecimal() else None


@quick_frozen
class NodeFigures:
    """A node's view of itself and its cluster, for its metrics.

    Attributes:
        beat_age_s: the time since the last heartbeat that the store accepted.
        fenced: whether the node accepts no requests, for instance because it has lost contact with the store.
    """

    live: int
    dead: int
    beat_age_s: float
    fenced: bool
    leads: bool
    config_digest: str


@quick_frozen
class Change:
    """The creation, change or deletion of a row that nodes keep in memory, such as an account, a key or a session.

    ``kind`` says what the row is (``key``, ``session``). ``sequence`` is the order of the commits.
    """

    sequence: int
    kind: str
    id: str


@quick_frozen
class Heartbeat:
    """The store's answer to a heartbeat.

    Attributes:
        now_ms: the time of the heartbeat by the store's clock, in Unix milliseconds.
        live: the ``Node.process`` of each live node.
        dead: the number of dead nodes.
        late: the ids of nodes that have not served for ``ClusterTimes.late_s``: they get no share of the work.
        oldest: the oldest schema version that a node must know to use the database.
    """

    now_ms: int
    live: tuple[str, ...]
    dead: int = 0
    late: frozenset[str] = frozenset()
    oldest: str = ""


@quick_frozen
class InForce:
    """How far a change has spread: to ``nodes`` of ``total`` live nodes, ``ms`` after its commit."""

    nodes: int
    total: int
    ms: int
