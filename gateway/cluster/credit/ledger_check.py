"""Reconciles the ledger of a cluster every day, because each node sees only its own spending."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from gateway.errors import StoreUnavailable

FIRST_DELAY_S = 600.0
CHECK_INTERVAL_S = 86_400.0
MAX_SHOWN_PROBLEMS = 5
"""How many differences a log line shows; ``gateway verify`` lists all of them."""

log = structlog.stdlib.get_logger(__name__)


class LedgerCheck:
    """Reconciles the ledger regularly and counts the problems, without correcting them.

    ``problem_count`` is 0 while another node runs the check.
    """

    def __init__(self, reconcile: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._reconcile = reconcile
        self.problem_count = 0

    async def run(self) -> None:
        try:
            await asyncio.sleep(FIRST_DELAY_S)
            while True:
                await self.check()
                await asyncio.sleep(CHECK_INTERVAL_S)
        finally:
            self.problem_count = 0  # the new leader reports the differences

    async def check(self) -> None:
        try:
            problems = (await self._reconcile())["problems"]
        except StoreUnavailable as error:
            log.warning("ledger_not_checked", error=error.message)
            return
        self.problem_count = len(problems)
        if problems:
            log.error("ledger_incorrect", failures=len(problems), reason="; ".join(problems[:MAX_SHOWN_PROBLEMS]))
