"""A gateway as a node of a cluster: the state it shares with other nodes, and the division of work."""

import hmac
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.auth.login_throttle import COUNTER_TTL_S
from gateway.auth.short_lived import ShortLived
from gateway.cluster.declared import NodeFiles
from gateway.cluster.membership.job_events import connect_events
from gateway.cluster.membership.node import ClusterNode
from gateway.cluster.state.failed_sign_ins import FailedSignIns
from gateway.cluster.state.sign_in_throttle import SharedThrottle
from gateway.cluster.state.values import SharedValues
from gateway.events import Events
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox

Job = Callable[[], Awaitable[None]]
_PROBING_NODES = 4
"""How many nodes probe the failed channels, on average."""


class Cluster:
    """The ``Deployment`` of a node.

    Attributes:
        pauses_s: the waits before a response is looked up again, because another node may be storing it.
    """

    pauses_s: tuple[float, ...] = (0.1, 0.4)

    def __init__(self, node: ClusterNode) -> None:
        self.node = node

    @property
    def clock(self) -> Callable[[], float]:
        return self.node.clock.now

    @property
    def process(self) -> str:
        return self.node.process

    def leads(self) -> bool:
        return self.node.leads

    def run_once(self, job: Job) -> Job:
        return partial(self.node.leadership.run, job)

    def find_share(self) -> float:
        return min(1.0, _PROBING_NODES / self.node.live_count)

    def make_owner_check(self, kind: str) -> Callable[[object], bool]:
        return lambda name: self.node.owns(f"{kind} {name}")

    def find_job_clock(self) -> Callable[[], float]:
        """Return the store's clock, which continues while the machine is suspended."""
        return self.clock

    def open_events(self) -> Events:
        return connect_events(self.node.notifications)

    def open_values(self, database: Database, secret_box: SecretBox) -> ShortLived:
        return SharedValues(database, secret_box, self.clock)

    def open_throttle(self, database: Database, values: ShortLived, space: str = "") -> SharedThrottle:
        return SharedThrottle(FailedSignIns(database, int(COUNTER_TTL_S * 1000)), values, self.clock, space=space)

    def derive_key(self, secret: bytes, purpose: str) -> bytes:
        return hmac.digest(secret, f"sign-in, {purpose}".encode(), "sha256")

    def open_files(self, database: Database, pepper: bytes) -> NodeFiles:
        return NodeFiles(self.node, database, pepper)
