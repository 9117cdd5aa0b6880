"""B1: ``kill -9`` with limits of users, sessions, tags and keys open: every cost counts once, exactly.

The gateway compares the counters with the rows each time it comes back (``check_books``). Beside that, the test adds
up the rows itself.

``make soak ARGS=tests/faults/test_kill_limits.py`` kills it 300 times; ``GATEWAY_TEST_KILLS=20`` makes that shorter.
"""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.domain.ledger import OnCrash
from gateway.domain.limit import parse_charges
from gateway.domain.request_log import RequestRecord
from tests.support import kill_runs
from tests.support.gateway import HELLO
from tests.support.gateway_process import GatewayProcess, open_caller

CALLERS = 24
USERS, ROUNDS_OF_A_CROWD = 5, 4
SECRET = "sk-free-of-any-cap"
CAP_NANOS = 1_000_000
LIMITS: list[dict[str, Any]] = [
    {"name": "users", "of": "user", "usd": 0.001, "window": "lifetime", "status": 429},
    {"name": "sessions", "of": "session", "usd": 0.004, "window": "rolling:24h"},
    {"name": "teams", "of": "tag:team", "usd": 5, "window": "month", "timezone": "Asia/Kolkata"},
    {"name": "keys", "of": "key", "usd": 50, "window": "lifetime", "max_subjects": 1},
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(100)]


async def keep_calling(url: str, round_number: int, name: str, memory: kill_runs.Memory, rng: random.Random) -> None:
    """Call after call of changing users, sessions and teams, until the gateway is gone.

    Each of some calls has a user of its own. Every few rounds other people come, whose limits are not used up.
    """
    crowd = round_number // ROUNDS_OF_A_CROWD
    async with open_caller(SECRET, 10 * kill_runs.PATIENCE) as caller:
        for number in range(10_000):
            mark, user = f"{name}-{number}", rng.randrange(USERS + 1)
            stream = rng.random() < 0.5
            body = {**HELLO, "model": "s" if stream else "m", "stream": stream, "user": mark, "max_tokens": 10}
            headers = {"X-Request-Id": mark, "x-gateway-tags": f"team=t{user % 2}"}
            headers["x-gateway-session"] = f"s{crowd}.{user % 3}"
            if user:
                headers["x-gateway-user"] = f"u{crowd}.{user}"
            try:
                async with caller.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
                    if response.status != 200:
                        memory.refused.add(mark)
                        await asyncio.sleep(0.02)
                    elif rng.random() < 0.9:
                        await kill_runs.hear(response, mark, memory, stream=stream)
            except (aiohttp.ClientError, TimeoutError):
                return


def check_rows(rows: list[RequestRecord]) -> None:
    """The sums of users are the key's; no user has more than the limit but by overruns."""
    spent, overruns = Counter[str](), Counter[str]()
    counted: Counter[tuple[str, str, int]] = Counter()
    for row in rows:
        spent[row.end_user] += row.cost_nanos
        overruns[row.end_user] += row.overrun_nanos
        charges = parse_charges(row.limit_charges)
        names = {counter.partition("|")[0] for counter, _, _ in charges}
        if row.cost_nanos:
            assert names == {"users", "sessions", "teams", "keys"}, row
        for charge in charges:
            counted[charge] += row.cost_nanos
    for user, nanos in spent.items():
        assert counted["users|user|lifetime|UTC", f"1:{user}", 0] == nanos
        assert nanos <= CAP_NANOS + overruns[user]
    (of_key,) = [nanos for (counter, _, _), nanos in counted.items() if counter.startswith("keys|")]
    assert of_key == spent.total()


@pytest.mark.parametrize("on_crash", ["release", "charge"])
@pytest.mark.parametrize("kills", kill_runs.KILL_COUNTS)
async def test_kills_under_load_leave_exact_limits(tmp_path: Path, on_crash: OnCrash, kills: int) -> None:
    seed, rng = kill_runs.roll()
    memory = kill_runs.Memory()
    with kill_runs.telling(seed):
        async with (
            kill_runs.open_up(memory, rng, stream=False) as up,
            kill_runs.open_up(memory, rng, stream=True) as streaming,
            AsyncExitStack() as stack,
        ):
            config = {**kill_runs.site(up, streaming, on_crash), "limit": LIMITS}
            gateway = await stack.enter_async_context(
                GatewayProcess(tmp_path / "data", config, patience=kill_runs.PATIENCE)
            )
            rows: list[RequestRecord] = []
            for number in range(kills):
                reached, refused = len(memory.reached), len(memory.refused)
                crowd = [
                    asyncio.create_task(keep_calling(gateway.url, number, f"r{number}.{index}", memory, rng))
                    for index in range(CALLERS)
                ]
                is_last = number == kills - 1
                await kill_runs.wait_until(
                    lambda: len(memory.reached) >= reached + CALLERS or len(memory.refused) > refused  # noqa: B023
                )
                if is_last:
                    await kill_runs.wait_until(lambda: bool(memory.refused))
                await asyncio.sleep(rng.uniform(0.1, 0.6))
                await gateway.kill()
                await asyncio.gather(*crowd)
                await gateway.start()
                await gateway.check_books()
                more, memory.last = await gateway.read_rows(memory.last)
                rows += more
                check_rows(rows)
            await gateway.kill()
            kill_runs.check_offline(gateway)
        marks = Counter(row.client_request_id for row in rows)
        assert max(marks.values()) == 1
        assert not memory.reached.keys() - marks.keys()
        outcomes = Counter(row.outcome for row in rows)
        print(f"{kills} kills, {on_crash}: {dict(outcomes)}, {len(memory.refused)} refused")  # noqa: T201
        assert outcomes["interrupted"] >= kills
        assert memory.refused
