"""Start what one process should do: the only one, or the leader of a cluster."""

from collections.abc import Awaitable, Callable
from functools import partial

from gateway.server.context import Services

Job = Callable[[], Awaitable[None]]


def run_once(services: Services, job: Job) -> Job:
    """Return ``job``; in a cluster, a job that runs it while this node leads."""
    node = services.storage.node
    return job if node is None else partial(node.leadership.run, job)


def leads(services: Services) -> bool:
    """Return whether this process does now what only one should: it is the only one, or leads its cluster."""
    return services.storage.node is None or services.storage.node.leads
