"""The interface of this process as a node for the other parts of a cluster; ``ClusterNode`` implements it."""

from typing import Protocol

from gateway.cluster.membership.store_clock import StoreClock


class RegisteredNode(Protocol):
    """A node as the credit needs it. ``process`` changes when it registers again; ``leads`` is true for one node."""

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
