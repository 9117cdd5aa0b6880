"""The interface of this process as a node for the other parts of a cluster; ``ClusterNode`` implements it."""

from typing import Protocol

from gateway.cluster.membership.store_clock import StoreClock


class RegisteredNode(Protocol):
    """A node: its id, its registration, the number of live nodes, whether it leads them, and the shared clock.

    ``process`` changes when the node registers again; ``leads`` is true for one node of the cluster.
    """

    @property
    def id(self) -> str: ...

    @property
    def process(self) -> str: ...

    @property
    def live(self) -> int: ...

    @property
    def leads(self) -> bool: ...

    @property
    def clock(self) -> StoreClock: ...
