"""The interface of this process as a node for the other parts of a cluster; ``ClusterNode`` implements it."""

from typing import Protocol

from gateway.cluster.membership.store_clock import StoreClock


class RegisteredNode(Protocol):
    """The properties of a node that credit leases and shared rate limits need.

    ``process`` changes when the node registers again.
    """

    @property
    def id(self) -> str: ...

    @property
    def process(self) -> str: ...

    @property
    def live_count(self) -> int: ...

    @property
    def leads(self) -> bool: ...

    @property
    def clock(self) -> StoreClock: ...
