"""What differs between a gateway that is alone and a node of a cluster."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from gateway.auth.short_lived import MemoryValues, ShortLived
from gateway.config.schema import Config
from gateway.events import Events
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox

if TYPE_CHECKING:  # few gateways need these, or not at their start
    from gateway.auth.login_throttle import Throttle
    from gateway.cluster.membership.node import ClusterNode

Job = Callable[[], Awaitable[None]]


class DeclaredFiles(Protocol):
    """The accounts and keys of the configuration file, beside those of other nodes."""

    async def is_new(self, config: Config) -> bool:
        """Return whether the file has to be brought in. Raises ``StoreUnavailable``."""
        ...

    async def note(self, config: Config) -> None:
        """Record that it is in force. Raises ``StoreUnavailable``."""
        ...

    async def warn_if_different(self) -> None:
        """Log a warning if other nodes have another file. Raises ``StoreUnavailable``."""
        ...

    def declare_alone(self, config: Config) -> AbstractAsyncContextManager[None]:
        """Let no other node bring in a file while the block does. Raises ``StoreUnavailable``."""
        ...


class Deployment(Protocol):
    """How a gateway shares its work and its state with others; ``Alone`` and ``gateway.cluster`` answer it."""

    @property
    def node(self) -> "ClusterNode | None":
        """This gateway as one of several on the database; None: it is the only one."""
        ...

    @property
    def owner(self) -> str | None:
        """The name of this process in the leases of jobs; None: any."""
        ...

    @property
    def pauses_s(self) -> tuple[float, ...]:
        """How long to wait before each further look for a response that another node may be storing."""
        ...

    def leads(self) -> bool:
        """Return whether this process does now what only one should."""
        ...

    def run_once(self, job: Job) -> Job:
        """Return a job that runs ``job`` at one process only."""
        ...

    def find_share(self) -> float:
        """Return how likely this process probes channels in a second: not every node needs to."""
        ...

    def divide(self, kind: str) -> Callable[[object], bool] | None:
        """Return what says whether this process does the work of that kind for a name; None: it does all."""
        ...

    def find_job_clock(self, clock: Callable[[], float]) -> Callable[[], float]:
        """Return a clock of Unix seconds that is not affected when the system clock is set.

        A clock that is set must neither end jobs too early nor make leases look old.
        """
        ...

    def open_events(self) -> Events:
        """Return the events of video jobs."""
        ...

    def open_values(self, database: Database, secret_box: SecretBox, clock: Callable[[], float]) -> ShortLived:
        """Return what keeps short-lived values."""
        ...

    def open_throttle(
        self, database: Database, values: ShortLived, clock: Callable[[], float], space: str = ""
    ) -> "Throttle":
        """Return what slows down guessing; ``space`` keeps apart what else is counted there."""
        ...

    def derive_key(self, secret: bytes, purpose: str) -> bytes | None:
        """Return a key that every node derives from ``secret``; None: a random one will do."""
        ...

    def open_files(self, database: Database, pepper: bytes) -> DeclaredFiles:
        """Return what decides whether the accounts and keys of the file are brought in."""
        ...


class OwnFile:
    """The file of a gateway that is alone: it is always brought in."""

    async def is_new(self, config: Config) -> bool:  # noqa: ARG002 - whatever it says
        return True

    async def note(self, config: Config) -> None: ...

    async def warn_if_different(self) -> None: ...

    def declare_alone(self, config: Config) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        return nullcontext()


class Alone:
    """A gateway that shares its database with none."""

    node, owner = None, None
    pauses_s: tuple[float, ...] = ()

    def leads(self) -> bool:
        return True

    def run_once(self, job: Job) -> Job:
        return job

    def find_share(self) -> float:
        return 1.0

    def divide(self, kind: str) -> None: ...

    def find_job_clock(self, clock: Callable[[], float]) -> Callable[[], float]:
        started_s, since_s = clock(), time.monotonic()
        return lambda: started_s + time.monotonic() - since_s

    def open_events(self) -> Events:
        return Events()

    def open_values(
        self,
        database: Database,  # noqa: ARG002 - memory is enough
        secret_box: SecretBox,  # noqa: ARG002
        clock: Callable[[], float],
    ) -> ShortLived:
        return MemoryValues(clock)

    def open_throttle(
        self,
        database: Database,  # noqa: ARG002 - memory is enough
        values: ShortLived,  # noqa: ARG002
        clock: Callable[[], float],  # noqa: ARG002
        space: str = "",  # noqa: ARG002
    ) -> "Throttle":
        from gateway.auth.login_throttle import LoginThrottle  # noqa: PLC0415 - when the first member signs in

        return LoginThrottle(time.monotonic)

    def derive_key(self, secret: bytes, purpose: str) -> None: ...

    def open_files(self, database: Database, pepper: bytes) -> DeclaredFiles:  # noqa: ARG002 - it has the only one
        return OwnFile()
