"""The primary is lost together with commits that its standby does not have: no limit and no job is lost with them."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.lost_servers import check_books, open_pair
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.spending_callers import COST_NANOS, PRICE
from tests.support.steady_callers import SteadyCallers

WITHIN_S = 60.0
"""A busy machine is slow: who gives up too soon does not know what was charged."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def wait_until_refused(callers: SteadyCallers, nodes: Sequence[GatewayProcess]) -> None:
    async def is_over() -> bool:
        last = [each.status for each in callers.answers[-3 * len(nodes) :]]
        return set(last) == {403}

    await eventually(is_over, 60)


@pytest.mark.parametrize("behind", [0, 285])
async def test_a_limit_holds_over_a_standby_that_lacks_the_last_commits(tmp_path: Path, behind: int) -> None:
    """``behind``: how many answers there are when the primary is lost, if the standby lacks most of them."""
    async with open_pair() as pair, ScriptedUpstream([answer(COMPLETION)]) as up:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        async with start_nodes(tmp_path, [pair.url] * 3, tables) as nodes:
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": 3.6})
            callers = SteadyCallers(nodes, [key["secret"]], WITHIN_S)
            async with callers.run(40):
                await callers.wait(60)
                if behind:
                    await pair.detach()
                await callers.wait(behind - callers.count()[200])
                await pair.lose()
                await wait_until_refused(callers, nodes)
            served = callers.count()[200]
            assert set(callers.count()) <= {200, 403, 503}
            assert served == sum("/chat/" in each.path for each in up.received)
            assert 3_600_000_000 - 3 * COST_NANOS * 4 <= served * COST_NANOS <= 3_600_000_000
            await check_books(nodes, pair.standby.name_url(pair.url.rpartition("/")[2]), served)
            assert sum(len(node.read_log("credit_held_back")) for node in nodes) == 1


async def test_what_a_late_node_had_spent_above_the_limit_is_on_record(tmp_path: Path) -> None:
    """One node is frozen while the others go on with the standby, which lacks what all of them had spent."""
    async with open_pair() as pair, ScriptedUpstream([answer(COMPLETION)]) as up:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        async with start_nodes(tmp_path, [pair.url] * 3, tables) as nodes:
            key = await nodes[0].ask("keys", {"name": "k", "account": "acme", "quota_usd": 3.6})
            callers = SteadyCallers(nodes, [key["secret"]], WITHIN_S)
            await pair.detach()
            async with callers.run(60):
                await callers.wait(240)
            os.kill(nodes[2].pid, signal.SIGSTOP)
            await pair.lose()
            awake = SteadyCallers(nodes[:2], [key["secret"]], WITHIN_S)
            async with awake.run(20):
                await wait_until_refused(awake, nodes[:2])
            os.kill(nodes[2].pid, signal.SIGCONT)
            served = callers.count()[200] + awake.count()[200]
            over = served * COST_NANOS - 3_600_000_000
            assert over > 0
            await check_books(nodes, pair.standby.name_url(pair.url.rpartition("/")[2]), served)
            assert over <= await pair.ask(pair.standby, "SELECT sum(overrun_nanos)::bigint FROM requests")
            for node in nodes:
                assert (await node.ask("audit"))["overruns"] == [f"key 1: ${over / 1e9:g} more is spent than its limit"]
