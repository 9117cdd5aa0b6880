"""Settles the credit of nodes that do not come back, and reverses the charges if they do."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from gateway.cluster.membership.registered_node import RegisteredNode
from gateway.domain.ledger import OnCrash
from gateway.errors import Conflict, NotFound, StoreUnavailable

MAX_PAUSE_S = 15.0
MIN_PAUSE_S = 0.25

log = structlog.stdlib.get_logger(__name__)


class OrphanStore(Protocol):
    """The leases of all nodes."""

    async def list_orphaned_nodes(self, after_s: float) -> Sequence[str]:
        """Return the nodes that ended at least ``after_s`` seconds ago and have leases."""
        ...

    async def end_leases(self, node: str, verdict: OnCrash) -> int:
        """End the leases of a node; return their outstanding nano-USD. Raises ``Conflict``, ``NotFound``."""
        ...

    async def reverse_charges(self) -> int:
        """Reverse the charges made for this node while it was lost; return the number of new entries."""
        ...


class OrphanWorker:
    """Ends the leases of nodes that do not come back, while its own node leads.

    If its own node was declared dead and has come back, reverses the charges made for that node meanwhile.

    Args:
        after_s: how many seconds after the end of a node its leases end; 0: never.
        verdict: whether the outstanding credit is charged or released.
        has_posted: returns whether this node has stored everything that it settled.
    """

    def __init__(
        self, store: OrphanStore, node: RegisteredNode, after_s: float, verdict: OnCrash, has_posted: Callable[[], bool]
    ) -> None:
        self._store = store
        self._node = node
        self._after_s = after_s
        self._verdict = verdict
        self._has_posted = has_posted
        self._process = node.process

    async def run(self) -> None:
        pause_s = min(MAX_PAUSE_S, max(MIN_PAUSE_S, self._after_s / 8)) if self._after_s else MAX_PAUSE_S
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.step()
            except StoreUnavailable as error:
                log.warning("orphans_not_settled", error=error.message)

    async def step(self) -> None:
        process = self._node.process
        if process != self._process and self._has_posted():  # this node was declared dead
            await self._store.reverse_charges()
            self._process = process
        if self._after_s and self._node.leads:
            await self.end_due_leases()

    async def end_due_leases(self) -> None:
        for node in await self._store.list_orphaned_nodes(self._after_s):
            try:
                nanos = await self._store.end_leases(node, self._verdict)
            except (Conflict, NotFound):  # the node has come back
                continue
            log.warning("orphans_settled", node=node, cost_nanos=nanos if self._verdict == "charge" else 0)
