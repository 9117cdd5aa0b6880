"""What most services are built on: the options, the store, the configuration, and the requests in progress."""

from typing import TYPE_CHECKING

from gateway.background import TaskSet
from gateway.frozen import frozen
from gateway.memory_budget import MemoryBudget
from gateway.options import AppOptions
from gateway.proxy.active_requests import ActiveRequests
from gateway.server.context import DrainState, StorageServices

if TYPE_CHECKING:
    from gateway.config.reload import LiveConfig


@frozen
class BaseServices:
    """What every other service is built on.

    ``options`` are those of the process, with the stored settings merged into their configuration and the clock of
    the deployment.
    """

    options: AppOptions
    storage: StorageServices
    live_config: "LiveConfig"


@frozen
class RequestTracking:
    """The requests in progress, tasks that outlive them, and the memory that is lent to them."""

    drain: DrainState
    active: ActiveRequests
    background: TaskSet
    memory: MemoryBudget
