"""What the parts of a cluster ask of this process as a node; ``ClusterNode`` answers it."""

from typing import Protocol

from gateway.cluster.membership.store_clock import StoreClock


class RegisteredNode(Protocol):
    """A node: its id, its registration, how many nodes live, whether it leads them, and the clock that they share.

    ``owner`` changes when the node registers anew, and ``leads`` is true for one node of the cluster.
    """

    @property
    def id(self) -> str: ...

    @property
    def owner(self) -> str: ...

    @property
    def live(self) -> int: ...

    @property
    def leads(self) -> bool: ...

    @property
    def clock(self) -> StoreClock: ...
