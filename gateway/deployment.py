"""The differences between a single gateway and a node of a cluster."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from gateway.auth.short_lived import MemoryValues, ShortLived
from gateway.config.schema import Config
from gateway.events import Events
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox

if TYPE_CHECKING:  # most gateways never need these, or not at startup
    from gateway.auth.login_throttle import Throttle
    from gateway.cluster.membership.node import ClusterNode

Job = Callable[[], Awaitable[None]]


class DeclaredFiles(Protocol):
    """Decides whether the accounts and keys of the configuration file are applied, given the files of other nodes."""

    async def is_new(self, config: Config) -> bool:
        """Return whether the file has to be applied."""
        ...

    async def record(self, config: Config) -> None: ...

    async def warn_if_different(self) -> None:
        """Log a warning if other nodes have a different file."""
        ...

    def declare_alone(self, config: Config) -> AbstractAsyncContextManager[None]:
        """Keep other nodes from applying a file while the block runs; afterwards record that ``config`` was applied."""
        ...


class Deployment(Protocol):
    """How a gateway shares its work and state with others. Implemented by ``SingleProcess`` and ``gateway.cluster``."""

    @property
    def node(self) -> "ClusterNode | None":
        """This gateway as a node of a cluster; None for a single gateway."""
        ...

    @property
    def clock(self) -> Callable[[], float]:
        """The clock that all processes of this deployment share: a function that returns Unix seconds."""
        ...

    @property
    def process(self) -> str | None:
        """The name of this process in claims; None if any process may continue a job."""
        ...

    @property
    def pauses_s(self) -> tuple[float, ...]:
        """The waits before each new look-up of a response that another node may still be storing."""
        ...

    def leads(self) -> bool:
        """Return whether this process currently does the work of a single process, such as deleting old rows."""
        ...

    def run_once(self, job: Job) -> Job:
        """Return a job that runs ``job`` in one process of the cluster only."""
        ...

    def find_share(self) -> float:
        """Return the probability that this process probes channels in a given second: not every node needs to."""
        ...

    def make_owner_check(self, kind: str) -> Callable[[object], bool] | None:
        """Return a function that says whether this process does the work of that kind for an object.

        The function gets the object's name or id. None: this process does all work of that kind.
        """
        ...

    def find_job_clock(self) -> Callable[[], float]:
        """Return the clock of the jobs' deadlines, in Unix seconds.

        Changes of the system clock do not affect this clock: they would end jobs early.
        """
        ...

    def open_events(self) -> Events:
        """Return the publisher of video job events."""
        ...

    def open_values(self, database: Database, secret_box: SecretBox) -> ShortLived: ...

    def open_throttle(self, database: Database, values: ShortLived, space: str = "") -> "Throttle":
        """Return the throttle that slows down guessing. ``space`` separates its counters from other throttles'."""
        ...

    def derive_key(self, secret: bytes, purpose: str) -> bytes | None:
        """Return a key for ``purpose`` that every node derives from ``secret``; None if a random key is enough."""
        ...

    def open_files(self, database: Database, pepper: bytes) -> DeclaredFiles:
        """Return the object that decides whether the file's accounts and keys are applied."""
        ...


class OwnFile:
    """The configuration file of a single gateway: always applied."""

    async def is_new(self, config: Config) -> bool:  # noqa: ARG002 - whatever it says
        return True

    async def record(self, config: Config) -> None: ...

    async def warn_if_different(self) -> None: ...

    def declare_alone(self, config: Config) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        return nullcontext()


class SingleProcess:
    """A single gateway: no other process uses its database."""

    node, process = None, None
    pauses_s: tuple[float, ...] = ()

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock

    def leads(self) -> bool:
        return True

    def run_once(self, job: Job) -> Job:
        return job

    def find_share(self) -> float:
        return 1.0

    def make_owner_check(self, kind: str) -> None: ...

    def find_job_clock(self) -> Callable[[], float]:
        started_s, since_s = self.clock(), time.monotonic()
        return lambda: started_s + time.monotonic() - since_s

    def open_events(self) -> Events:
        return Events()

    def open_values(self, database: Database, secret_box: SecretBox) -> ShortLived:  # noqa: ARG002 - memory is enough
        return MemoryValues(self.clock)

    def open_throttle(
        self,
        database: Database,  # noqa: ARG002 - memory is enough
        values: ShortLived,  # noqa: ARG002
        space: str = "",  # noqa: ARG002
    ) -> "Throttle":
        from gateway.auth.login_throttle import LoginThrottle  # noqa: PLC0415 - when the first member signs in

        return LoginThrottle(time.monotonic)

    def derive_key(self, secret: bytes, purpose: str) -> None: ...

    def open_files(self, database: Database, pepper: bytes) -> DeclaredFiles:  # noqa: ARG002 - there is only one file
        return OwnFile()
