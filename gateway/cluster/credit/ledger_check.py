"""Reconciles the ledger of a cluster every day, because each node alone sees only its own spending."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from gateway.errors import StoreUnavailable

FIRST_AFTER_S = 600.0
CHECK_EVERY_S = 86_400.0
SHOWN = 5
"""How many differences a line of the log has; ``gateway verify`` lists all of them."""

log = structlog.stdlib.get_logger(__name__)


class LedgerCheck:
    """Reconciles regularly and reports differences. They change nothing by themselves.

    ``problems``: how many differences the last run has found; 0 while this node does not run it.
    """

    def __init__(self, reconcile: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._reconcile = reconcile
        self.problems = 0

    async def run(self) -> None:
        """Check soon after the start, and then every day, forever."""
        try:
            await asyncio.sleep(FIRST_AFTER_S)
            while True:
                await self.check()
                await asyncio.sleep(CHECK_EVERY_S)
        finally:
            self.problems = 0  # another node leads, and reports what it finds

    async def check(self) -> None:
        """Check once. If the database fails, the next run tries again."""
        try:
            problems = (await self._reconcile())["problems"]
        except StoreUnavailable as error:
            log.warning("ledger_not_checked", error=error.message)
            return
        self.problems = len(problems)
        if problems:
            log.error("ledger_incorrect", failures=len(problems), reason="; ".join(problems[:SHOWN]))
