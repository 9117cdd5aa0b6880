"""Callers that spend one limit at several gateway processes, whatever happens to those, and what the database has."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp
import asyncpg

from tests.support.gateway import CHAT, HELLO
from tests.support.gateway_process import GatewayProcess, eventually, open_caller

PRICE = {"model": "m", "input_usd_per_million": 1000, "output_usd_per_million": 1000}
COST_NANOS, RESERVED_NANOS = 12_000_000, 28_000_000
"""Of a request: 12 tokens are used, of 18 tokens of prompt and 10 of the answer."""
RESERVED_USD = 0.028


class Callers:
    """Callers of one key, at all nodes in turn, until a node answers that nothing is left."""

    def __init__(self, nodes: list[GatewayProcess], secret: str) -> None:
        self._nodes, self._secret = nodes, secret
        self.answers: Counter[int] = Counter()
        self.going_on = True

    async def run(self, number: int) -> None:
        async with open_caller(self._secret) as caller:
            while self.going_on:
                number += 1
                try:
                    await self._call(caller, self._nodes[number % len(self._nodes)].url)
                except (aiohttp.ClientError, OSError, TimeoutError):
                    await asyncio.sleep(0.05)  # it has been killed

    async def wait(self, status: int, more: int, *, within_s: float) -> None:
        """Wait for more answers of ``status``."""
        until = self.answers[status] + more

        async def is_reached() -> bool:
            return self.answers[status] >= until

        try:
            await eventually(is_reached, within_s)
        except TimeoutError:
            raise AssertionError(self.answers) from None

    async def _call(self, caller: aiohttp.ClientSession, url: str) -> None:
        async with caller.post(url + CHAT, json={**HELLO, "max_tokens": 10}) as response:
            await response.read()
            self.answers[response.status] += 1
            if response.status != 200:
                await asyncio.sleep(0.05)


async def sum_up(url: str) -> dict[str, Any]:
    """What the database has of all requests, in numbers."""
    connection = await asyncpg.connect(url)
    try:
        return dict(
            await connection.fetchrow(
                "SELECT (SELECT coalesce(sum(amount_nanos), 0)::bigint FROM entries) AS charged,"
                " (SELECT count(*) FROM requests WHERE outcome = 'completed') AS completed,"
                " (SELECT count(*) FROM requests WHERE outcome = 'interrupted') AS interrupted,"
                " (SELECT count(*) FROM requests WHERE outcome = 'client_closed') AS left_early,"
                " (SELECT count(*) FROM request_notes) AS notes,"
                " (SELECT coalesce(sum(leased), 0)::bigint FROM credit_balances) AS leased,"
                " (SELECT count(*) FROM credit_leases) AS leases"
            )
        )
    finally:
        await connection.close()


async def is_at_rest(nodes: Sequence[GatewayProcess]) -> bool:
    reports = [await node.ask("audit") for node in nodes]
    return all(report["open_holds"] == report["waiting_rows"] == 0 for report in reports)


async def call(node: GatewayProcess, secret: str) -> int:
    """Return the status of one request."""
    async with (
        open_caller(secret) as caller,
        caller.post(node.url + CHAT, json={**HELLO, "max_tokens": 10}, timeout=60) as response,  # type: ignore[arg-type]
    ):
        await response.read()
        return response.status
