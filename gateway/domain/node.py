"""Nodes: the gateways that use one database together."""

from typing import Literal

from gateway.frozen import quick_frozen

NodeState = Literal["live", "dead", "gone"]
"""``dead``: its beats have ended, and its data folder may have records; ``gone``: it has stopped in order, or has left
nothing but credit that is settled later."""


@quick_frozen
class Node:
    """A gateway process of a cluster, by the ``id`` in its data folder.

    Attributes:
        epoch: how often it has registered: what it wrote as an earlier one no longer counts.
        url: where the other nodes reach it; empty if that is not known, or if those of this machine do not.
        schema: the newest schema that it knows.
        config_digest: of its configuration, without the sections that may differ between nodes.
        beat_age_ms: time since its last beat, by the clock of the store.
        clock_offset_ms: how far the clock of the store was ahead of its own at the last beat.
        waiting_rows: its finished requests that were not stored at the last beat.
        active_requests: its requests under way at the last beat.
        leads: it does what only one node should do.
        outstanding_nanos: credit that it holds, and that no other node can spend.
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
    def owner(self) -> str:
        """What the store calls this process where it has claimed something."""
        return f"{self.id}:{self.epoch}"


def parse_owner(owner: str) -> tuple[str, int] | None:
    """Parse a ``Node.owner`` to the node's id and epoch; None if it is none."""
    node, _, epoch = owner.rpartition(":")
    return (node, int(epoch)) if node and epoch.isascii() and epoch.isdecimal() else None


@quick_frozen
class NodeFigures:
    """What a node knows of itself and of its cluster, for its metrics.

    Attributes:
        live: live nodes.
        dead: nodes that were declared dead and have not come back.
        beat_age_s: time since the last beat that the store has taken.
        fenced: it takes no requests, because it is out of touch.
    """

    live: int
    dead: int
    beat_age_s: float
    fenced: bool
    leads: bool
    config_digest: str


@quick_frozen
class Change:
    """That an account, key, channel or setting was created, changed or deleted; ``sequence`` grows with the commits."""

    sequence: int
    kind: str
    id: str


@quick_frozen
class Heartbeat:
    """What the store answers to a beat.

    Attributes:
        now_ms: its time, in Unix milliseconds.
        live: the ``Node.owner`` of each live node.
        dead: the number of dead ones.
        late: the ids of nodes that have not beaten for some seconds; the leader may declare them dead.
        oldest: nodes that know only an older schema cannot use the database any longer.
    """

    now_ms: int
    live: tuple[str, ...]
    dead: int = 0
    late: frozenset[str] = frozenset()
    oldest: str = ""


@quick_frozen
class InForce:
    """At how many nodes a change is in force: at ``nodes`` of the ``total`` that live, ``ms`` after its commit."""

    nodes: int
    total: int
    ms: int
