"""What is revoked at one node is refused at every node: how soon, while they serve it, with and without NOTIFY."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import HELLO, channel
from tests.support.gateway_process import GatewayProcess, ask_chat, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WITHIN_S = 30
CALLERS = 4
_SILENT = """
CREATE OR REPLACE FUNCTION log_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(7130003);
  INSERT INTO changes (kind, id, at_ms) SELECT TG_ARGV[0], changed ->> TG_ARGV[1], 0
    FROM (SELECT CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END AS changed) each;
  RETURN NULL;
END $$
"""
"""Logs changes and notifies nobody, as behind a pooler that loses notifications."""


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    return await shared_postgres.empty()


@pytest.fixture
async def tables() -> AsyncIterator[dict[str, Any]]:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        yield {"channel": [channel(up.base_url)], "account": [{"name": "acme"}]}


def answers(nodes: Sequence[GatewayProcess], secret: str, status: int) -> Callable[[], Awaitable[bool]]:
    """Whether every node answers a request with ``status``."""

    async def look() -> bool:
        async with open_caller(secret) as caller:
            for node in nodes:
                async with ask_chat(caller, node.url, HELLO) as response:
                    await response.read()
                if response.status != status:
                    return False
        return True

    return look


class Load:
    """Callers of one key at some nodes, until it is stopped.

    Attributes:
        served: for each node, when the last request that was served had been sent (monotonic seconds).
        calls: the number of answers.
    """

    def __init__(self, nodes: Sequence[GatewayProcess], secret: str) -> None:
        self._nodes = nodes
        self._secret = secret
        self._tasks: list[asyncio.Task[None]] = []
        self.served = [0.0] * len(nodes)
        self.calls = 0

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._call(number)) for number in range(len(self._nodes)) for _ in range(CALLERS)
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _call(self, number: int) -> None:
        async with open_caller(self._secret) as caller:
            while True:
                sent_s = time.monotonic()
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with ask_chat(caller, self._nodes[number].url, HELLO) as response:
                        await response.read()
                    self.calls += 1
                    if response.status == 200:
                        self.served[number] = max(self.served[number], sent_s)


async def measure(nodes: Sequence[GatewayProcess], load: Load, key: dict[str, Any], settle_s: float) -> float:
    """Disable a key at the first node; return for how long others took requests with it after the answer (s)."""
    await nodes[0].ask(f"keys/{key['id']}", {"status": "active"}, "PATCH")
    await eventually(answers(nodes, key["secret"], 200), WITHIN_S)
    await nodes[0].ask(f"keys/{key['id']}", {"status": "disabled"}, "PATCH")
    answered_s = time.monotonic()
    await eventually(answers(nodes, key["secret"], 401), WITHIN_S)
    await asyncio.sleep(settle_s)
    return max(load.served) - answered_s


@pytest.mark.soak
@pytest.mark.parametrize("silent", [False, True])
async def test_a_disabled_key_is_refused_everywhere_in_time(
    tmp_path: Path, url: str, tables: dict[str, Any], *, silent: bool
) -> None:
    tries, within_s = (20, 2.5) if silent else (100, 0.25)
    async with start_nodes(tmp_path, [url] * 4, tables) as nodes:
        if silent:
            connection = await asyncpg.connect(url)
            await connection.execute(_SILENT)
            await connection.close()
        key = await nodes[0].ask("keys", {"name": "k", "account": "acme"})
        load = Load(nodes[1:], key["secret"])
        load.start()
        began_s = time.monotonic()
        try:
            took = sorted([await measure(nodes, load, key, 0.1) for _ in range(tries)])
        finally:
            await load.stop()
    rate = load.calls / (time.monotonic() - began_s)
    figures = [round(took[int(part * (tries - 1))] * 1000, 1) for part in (0.5, 0.99, 1)]
    print(f"silent={silent} {rate:.0f} calls/s, taken after the answer: p50, p99, max {figures} ms")  # noqa: T201
    assert took[-1] <= within_s, took
