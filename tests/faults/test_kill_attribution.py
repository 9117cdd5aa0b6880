"""B1: ``kill -9`` while costs are summed by user, session and tag: the sums are those of the rows, exactly.

More users come than have sums of their own. The gateway compares users and unattributed requests with the charges of
each key and day each time it comes back (``check_books``). Beside that, the test adds up the rows itself.

``make soak ARGS=tests/faults/test_kill_attribution.py`` kills it 300 times; ``GATEWAY_TEST_KILLS=20`` makes that
shorter.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from gateway.domain.attribution import split_tags
from gateway.domain.request_log import RequestRecord
from tests.support import kill_runs
from tests.support.gateway import HELLO
from tests.support.gateway_process import GatewayProcess, open_caller

CALLERS = 12
USERS, MAX_VALUES = 7, 4
SECRET = "sk-free-of-any-cap"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(100)]


async def keep_calling(url: str, name: str, memory: kill_runs.Memory, rng: random.Random) -> None:
    """Call after call of changing users, sessions and tags, some without any, until the gateway is gone."""
    async with open_caller(SECRET, 10 * kill_runs.PATIENCE) as caller:
        for number in range(10_000):
            mark, user, stream = f"{name}-{number}", rng.randrange(USERS + 1), rng.random() < 0.5
            body = {**HELLO, "model": "s" if stream else "m", "stream": stream, "user": mark, "max_tokens": 10}
            headers = {"X-Request-Id": mark, "x-gateway-user": f"u{user}"}
            if user % 3:
                headers |= {"x-gateway-session": f"s{rng.randrange(USERS)}", "x-gateway-tags": f"team=t{user % 2}"}
            try:
                async with caller.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
                    await kill_runs.hear(response, mark, memory, stream=stream)
            except (aiohttp.ClientError, TimeoutError):
                return


async def check_sums(gateway: GatewayProcess, rows: list[RequestRecord]) -> None:
    """The usage by user, session and tag is that of ``rows``; values beyond the bound are in ``other``."""
    costs: dict[str, Counter[str]] = {"user": Counter(), "session": Counter(), "tag:team": Counter()}
    for row in rows:
        costs["user"][row.end_user] += row.cost_nanos
        costs["session"][row.session] += row.cost_nanos
        costs["tag:team"][dict(split_tags(row.tags)).get("team", "")] += row.cost_nanos
    for by, expected in costs.items():
        report = await gateway.ask(f"usage?by={by}")
        lines = {line[by.partition(":")[0]]: line["cost_nanos"] for line in report["data"]}
        assert report["unattributed"]["cost_nanos"] == expected.pop("", 0), by
        days = {row.settled_ms // 86_400_000 for row in rows}
        if len(days) == 1:  # at midnight, a value may have sums of its own on one day only
            assert len(lines) == min(MAX_VALUES, len(expected)), by
            assert all(expected[name] == nanos for name, nanos in lines.items()), by
        assert sum(lines.values()) + report["other"]["cost_nanos"] == expected.total(), by


@pytest.mark.parametrize("kills", kill_runs.KILL_COUNTS)
async def test_kills_under_load_leave_exact_sums(tmp_path: Path, kills: int) -> None:
    seed, rng = kill_runs.roll()
    memory = kill_runs.Memory()
    with kill_runs.telling(seed):
        async with (
            kill_runs.open_up(memory, rng, stream=False) as up,
            kill_runs.open_up(memory, rng, stream=True) as streaming,
        ):
            config = {**kill_runs.site(up, streaming, "charge"), "attribution": {"max_values": MAX_VALUES}}
            async with GatewayProcess(tmp_path / "data", config, patience=kill_runs.PATIENCE) as gateway:
                rows: list[RequestRecord] = []
                for number in range(kills):
                    reached = len(memory.reached)
                    crowd = [
                        asyncio.create_task(keep_calling(gateway.url, f"r{number}.{index}", memory, rng))
                        for index in range(CALLERS)
                    ]
                    await kill_runs.wait_until(lambda: len(memory.reached) >= reached + 4 * CALLERS)  # noqa: B023
                    await gateway.kill()
                    await asyncio.gather(*crowd)
                    await gateway.start()
                    await gateway.check_books()
                    more, memory.last = await gateway.read_rows(memory.last)
                    rows += more
                    await check_sums(gateway, rows)
                await gateway.kill()
                kill_runs.check_offline(gateway)
    marks = Counter(row.client_request_id for row in rows)
    assert max(marks.values()) == 1
    assert not memory.reached.keys() - marks.keys()
    print(f"{kills} kills: {dict(Counter(row.outcome for row in rows))}")  # noqa: T201
    assert {row.end_user for row in rows} == {f"u{number}" for number in range(USERS + 1)}
