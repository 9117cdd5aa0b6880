"""Ends the requests of dead nodes without a disk of their own: each becomes an interrupted row."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import structlog

from gateway.billing.recovery import interrupt, log_interrupted
from gateway.domain.ledger import OnCrash
from gateway.domain.request_log import RequestRecord
from gateway.errors import StoreUnavailable

log = structlog.stdlib.get_logger(__name__)


class EndedNodes(Protocol):
    """The stored records of ended nodes."""

    async def find_nodes(self) -> Sequence[str]:
        """Return the dead nodes without a disk of their own, and all ended nodes with notes."""
        ...

    async def interrupt_requests(
        self, node: str, interrupt: Callable[[RequestRecord], RequestRecord]
    ) -> Sequence[RequestRecord]:
        """Store the row that ``interrupt`` makes of each open request of ``node``, and mark the node as gone.

        A node that has registered again keeps everything. Return the new rows.
        """
        ...


class NoteCollector:
    """Interrupts the requests of dead nodes, while its own node leads.

    If two nodes lead for a moment, one of them finds nothing to do. ``pause_s``: seconds between two searches.
    """

    def __init__(
        self,
        ended_nodes: EndedNodes,
        leads: Callable[[], bool],
        on_crash: OnCrash,
        clock: Callable[[], float],
        pause_s: float,
    ) -> None:
        self._pause_s = pause_s
        self._ended_nodes = ended_nodes
        self._leads = leads
        self._on_crash = on_crash
        self._clock = clock

    async def run(self) -> None:
        """Look for dead nodes every ``pause_s`` seconds, forever."""
        while True:
            await asyncio.sleep(self._pause_s)
            if self._leads():
                try:
                    await self.step()
                except StoreUnavailable as error:
                    log.warning("notes_not_collected", error=error.message)

    async def step(self) -> None:
        for node in await self._ended_nodes.find_nodes():
            interrupt_request = partial(
                interrupt, now_ms=int(self._clock() * 1000), is_charged=self._on_crash == "charge"
            )
            rows = await self._ended_nodes.interrupt_requests(node, interrupt_request)
            log_interrupted(rows)
            log.warning("node_settled", node=node, interrupted=len(rows))
