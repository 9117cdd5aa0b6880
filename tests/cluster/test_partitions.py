"""The network between one node and the store fails: that node stops serving in time, and the others notice nothing."""

import asyncio
import time
from pathlib import Path

import pytest

from gateway.cluster.membership.times import TIMES
from tests.support.cluster import find_leader, start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import SERVE, eventually
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.steady_callers import SteadyCallers
from tests.support.stoppable_proxy import StoppableProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FENCE_S, BACK_S = TIMES.fence_s, 3.0
AWAY_S = 30.0
PRICE = {"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 1}


@pytest.mark.soak
@pytest.mark.parametrize("way", ["both", "there", "back"])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
async def test_a_node_that_is_cut_off_stops_in_time_and_is_back_at_once(
    tmp_path: Path, shared_postgres: SharedPostgres, way: str, *, leads: bool
) -> None:
    url = await shared_postgres.empty()
    port = int(url.rpartition(":")[2].partition("/")[0])
    async with ScriptedUpstream([answer(COMPLETION)]) as up, StoppableProxy(port) as one, StoppableProxy(port) as two:
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        proxies = [one, two]
        urls = [url.replace(f":{port}/", f":{proxy.port}/") for proxy in proxies]
        async with start_nodes(tmp_path, urls, tables, command=SERVE) as nodes:
            leader = await find_leader(url, nodes)
            cut = leader if leads else 1 - leader
            whole = 1 - cut
            keys = [
                await nodes[whole].ask("keys", {"name": f"k{number}", "account": "acme", **quota})
                for number, quota in enumerate(({}, {"quota_usd": 1000.0}, {}))
            ]
            await asyncio.sleep(0.5)  # the other node hears of them
            callers = SteadyCallers(nodes, [key["secret"] for key in keys])
            async with callers.run(40):
                await callers.wait(80)
                cut_s = time.monotonic()
                proxies[cut].stop(there=way != "back", back=way != "there")
                await asyncio.sleep(1)
                await nodes[whole].ask(f"keys/{keys[2]['id']}", {"status": "disabled"}, "PATCH")
                disabled_s = time.monotonic()
                await asyncio.sleep(AWAY_S - 1)
                proxies[cut].go_on()
                healed_s = time.monotonic()
                await callers.wait(20, node=cut)
                await callers.wait(20)
            report(callers, cut, cut_s, healed_s)
            last_s = max(
                each.at_s
                for each in callers.answers
                if each.node == cut and each.at_s < healed_s and each.status == 200
            )
            assert last_s - cut_s <= FENCE_S + 0.5
            refused = [each for each in callers.answers if each.node == cut and last_s < each.at_s < healed_s]
            assert {each.status for each in refused} == {503}
            assert all(each.retry_after for each in refused)
            back_s = min(
                each.at_s
                for each in callers.answers
                if each.node == cut and each.at_s >= healed_s and each.status == 200
            )
            assert back_s - healed_s <= BACK_S
            after = [each for each in callers.answers if each.node == cut and each.key == 2 and each.at_s > healed_s]
            assert {each.status for each in after} <= {401, 503}
            others = callers.count(whole, until_s=disabled_s) + callers.count(whole, since_s=disabled_s)
            assert set(others) <= {200, 401}
            assert {each.status for each in callers.answers if each.node == whole and each.key != 2} == {200}

            async def is_at_rest() -> bool:
                reports = [await node.ask("audit") for node in nodes]
                return all(report["open_holds"] == report["waiting_rows"] == 0 for report in reports)

            await eventually(is_at_rest, 30)
            for node in nodes:
                await node.check_books()
            assert [await node.end() for node in nodes] == [0, 0]


def report(callers: SteadyCallers, cut: int, cut_s: float, healed_s: float) -> None:
    served = [each.at_s for each in callers.answers if each.node == cut and each.status == 200]
    last_s = max(at_s for at_s in served if at_s < healed_s) - cut_s
    back_s = min(at_s for at_s in served if at_s >= healed_s) - healed_s
    others = callers.count(1 - cut)
    times = f"last 200 after {last_s:.1f} s, back after {back_s:.1f} s"
    print(f"{times}; others {dict(others)}, it {dict(callers.count(cut))}")  # noqa: T201 - the figures
