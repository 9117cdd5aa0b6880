"""Nodes share sessions: one that is ended at any node is cancelled and refused at all, and all spend one budget."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.domain.price import NANOS_PER_USD
from tests.support.cluster import start_nodes
from tests.support.fault_scene import until
from tests.support.gateway import CHAT, HELLO, KEY, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, STALL, ScriptedUpstream, answer
from tests.support.spending_callers import COST_NANOS, PRICE, RESERVED_NANOS, is_at_rest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def ask(node: GatewayProcess, session: str, budget: str = "") -> tuple[int, str]:
    """Return the status of one request of a session, and the code of its error."""
    headers = {"x-gateway-session": session} | ({"x-gateway-budget": budget} if budget else {})
    body = {**HELLO, "max_tokens": 10}
    async with open_caller(within_s=60) as caller, caller.post(node.url + CHAT, json=body, headers=headers) as response:
        return response.status, (await response.json()).get("error", {}).get("code", "")


async def test_a_session_ends_at_every_node(tmp_path: Path, shared_postgres: SharedPostgres) -> None:
    async with ScriptedUpstream([STALL]) as up:
        key = {"name": "test", "account": "acme", "secret": KEY}
        patient: dict[str, Any] = {"first_byte_timeout_s": 100, "total_timeout_s": 100}
        tables = {"channel": [channel(up.base_url, **patient)], "account": [{"name": "acme"}], "key": [key]}
        async with start_nodes(tmp_path, [await shared_postgres.empty()] * 2, tables) as (first, second):
            account_id = (await first.ask("accounts/acme"))["id"]
            running = [asyncio.create_task(ask(node, "run1")) for node in (first, second)]
            await until(lambda: len(up.received) == 2)
            ended = await first.ask(f"request-sessions/{account_id}:run1/end", method="POST")
            assert ended["cancelled"] == 1
            assert [await one for one in running] == [(409, "request_cancelled")] * 2
            for node in (first, second):
                assert await ask(node, "run1") == (403, "session_ended")
            await second.end()
            await second.start()
            assert await ask(second, "run1") == (403, "session_ended")
            assert len(up.received) == 2


class Agents:
    """Six agents of one session, at four nodes in turn, until a node refuses them."""

    def __init__(self, nodes: Sequence[GatewayProcess], headers: dict[str, str]) -> None:
        self._nodes, self._headers = nodes, headers
        self.answers: Counter[int] = Counter()
        self.refusals: list[tuple[str, float, float]] = []

    async def run(self, number: int) -> None:
        async with open_caller(within_s=120) as caller:
            while not self.refusals:
                number += 1
                node = self._nodes[number % len(self._nodes)]
                try:
                    await self._call(caller, node)
                except (aiohttp.ClientError, OSError):
                    self.answers[0] += 1  # the node was killed
                    await asyncio.sleep(0.05)

    async def _call(self, caller: aiohttp.ClientSession, node: GatewayProcess) -> None:
        body = {**HELLO, "max_tokens": 10}
        async with caller.post(node.url + CHAT, json=body, headers=self._headers) as response:
            found = await response.json()
            self.answers[response.status] += 1
            if response.status != 200:
                amounts = [float(response.headers[f"x-gateway-budget{part}-usd"]) for part in ("", "-spent")]
                self.refusals.append((found["error"]["code"], *amounts))


@pytest.mark.parametrize("kills", [0, 3])
async def test_agents_at_every_node_share_the_budget_of_their_session(
    tmp_path: Path, shared_postgres: SharedPostgres, kills: int
) -> None:
    """Spent is at most the budget, the refusal tells both, and no provider is asked after it, whoever is killed."""
    budget_nanos, url = COST_NANOS * 40 + RESERVED_NANOS, await shared_postgres.empty()
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        key = {"name": "test", "account": "acme", "secret": KEY, "max_session_usd": 1.0}
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "key": [key], "price": [PRICE]}
        async with start_nodes(tmp_path, [url] * 4, tables) as nodes:
            account_id = (await nodes[0].ask("accounts/acme"))["id"]
            session = f"request-sessions/{account_id}:run1"
            budget = f"{budget_nanos / NANOS_PER_USD:.9f}; session=run1"
            agents = Agents(nodes, {"x-gateway-budget": budget})
            tasks = [asyncio.create_task(agents.run(number)) for number in range(6)]
            for number in range(kills):
                expected = agents.answers[200] + 8
                await until(lambda: agents.answers[200] >= expected or agents.refusals)  # noqa: B023
                await nodes[number].kill()
                await nodes[number].start()
            await asyncio.gather(*tasks)
            for node in nodes:  # a killed node has freed what was set aside for it, perhaps after the first refusal
                await eventually(partial(is_refused, node), 60)
            received = len(up.received)
            for node in nodes:
                assert (await ask(node, "run1"))[1] == "budget_exceeded", "without the header, too"
                assert await ask(node, "run1", "1.5") == (403, "budget_exceeded"), "beyond max_session_usd"
            assert len(up.received) == received
            assert {code for code, _, _ in agents.refusals} == {"budget_exceeded"}
            assert {round(limit * NANOS_PER_USD) for _, limit, _ in agents.refusals} == {budget_nanos}
            await eventually(lambda: is_at_rest(nodes), 60)
            shown = [await node.ask(session) for node in nodes]
            spent = round(shown[0]["spent_usd"] * NANOS_PER_USD)
            assert agents.answers[200] * COST_NANOS <= spent <= min(budget_nanos, received * COST_NANOS)
            assert [one["budget_usd"] for one in shown] == [budget_nanos / NANOS_PER_USD] * 4
            assert {round(one["spent_usd"] * NANOS_PER_USD) for one in shown} == {spent}
            await eventually(lambda: has_left(nodes, session, budget_nanos - spent), 60)
            assert (await ask(nodes[1], "run1", "0.9"))[0] == 200, "raised"
            assert (await ask(nodes[2], "run1", "0.9"))[0] == 200
            for node in nodes:
                await node.check_books()


async def is_refused(node: GatewayProcess) -> bool:
    return (await ask(node, "run1"))[0] == 403


async def has_left(nodes: Sequence[GatewayProcess], session: str, nanos: int) -> bool:
    """Whether every node shows the rest of the budget: idle credit has gone back."""
    shown = [(await node.ask(session))["budget_left_usd"] for node in nodes]
    return [round(usd * NANOS_PER_USD) for usd in shown] == [nanos] * len(nodes)
