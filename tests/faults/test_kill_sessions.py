"""B1: ``kill -9`` with budgets of sessions: each holds at the same amount after every restart, to the nano.

Only the first request of a session brings its budget along. Some sessions are ended before a kill.

``make soak ARGS=tests/faults/test_kill_sessions.py`` kills it 300 times; ``GATEWAY_TEST_KILLS=20`` makes that shorter.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.domain.ledger import OnCrash
from gateway.domain.limit import parse_charges
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_budget import SESSION_BUDGET
from gateway.domain.request_log import RequestRecord
from tests.support import kill_runs
from tests.support.fault_scene import until
from tests.support.gateway import HELLO
from tests.support.gateway_process import GatewayProcess, open_caller

CALLERS = 12
BUDGETS = (800_000, 5_000_000_000, 800_000)
"""Of the sessions that begin in each round, in nano-USD: for some 40 answers, and for more than there are. The first
session is ended before the kill."""
SECRET = "sk-free-of-any-cap"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(100)]


async def ask(
    caller: aiohttp.ClientSession, url: str, mark: str, session: str, memory: kill_runs.Memory, **more: Any
) -> aiohttp.ClientResponse | None:
    """One call of a session. Return the answer; None if the gateway is gone."""
    stream = bool(more.pop("stream", False))
    body = {**HELLO, "model": "s" if stream else "m", "stream": stream, "user": mark, "max_tokens": 10}
    headers = {"X-Request-Id": mark, "x-gateway-session": session, **more}
    try:
        async with caller.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
            if response.status == 200:
                await kill_runs.hear(response, mark, memory, stream=stream)
            else:
                memory.refused.add(mark)
                await response.read()
            return response
    except aiohttp.ClientError:
        return None


async def keep_calling(url: str, name: str, sessions: list[str], memory: kill_runs.Memory, rng: random.Random) -> None:
    """Call after call of all sessions so far, until the gateway is gone."""
    async with open_caller(SECRET, 10 * kill_runs.PATIENCE) as caller:
        for number in range(10_000):
            stream = rng.random() < 0.5
            response = await ask(caller, url, f"{name}-{number}", rng.choice(sessions), memory, stream=stream)
            if response is None:
                return
            if response.status != 200:
                await asyncio.sleep(0.02)


def check_rows(rows: list[RequestRecord]) -> dict[str, int]:
    """No session has spent more than its budget but by overruns. Return what each has spent."""
    spent, overruns = Counter[str](), Counter[str]()
    for row in rows:
        spent[row.session] += row.cost_nanos
        overruns[row.session] += row.overrun_nanos
        if row.cost_nanos:
            assert parse_charges(row.limit_charges) == [(SESSION_BUDGET.counter, f"1:{row.session}", 0)], row
    for session, nanos in spent.items():
        assert nanos <= BUDGETS[int(session[-1])] + overruns[session], session
    return spent


@pytest.mark.parametrize("on_crash", ["release", "charge"])
@pytest.mark.parametrize("kills", kill_runs.KILL_COUNTS)
async def test_kills_under_load_leave_every_budget_as_it_was(tmp_path: Path, on_crash: OnCrash, kills: int) -> None:
    seed, rng = kill_runs.roll()
    memory, sessions, ended = kill_runs.Memory(), list[str](), list[str]()
    with kill_runs.telling(seed):
        async with (
            kill_runs.open_up(memory, rng, stream=False) as up,
            kill_runs.open_up(memory, rng, stream=True) as streaming,
            GatewayProcess(
                tmp_path / "data", kill_runs.site(up, streaming, on_crash), patience=kill_runs.PATIENCE
            ) as gateway,
        ):
            rows: list[RequestRecord] = []
            for number in range(kills):
                async with open_caller(SECRET, 10 * kill_runs.PATIENCE) as caller:
                    for index, budget_nanos in enumerate(BUDGETS):
                        session = f"r{number}.{index}"
                        budget = {"x-gateway-budget": f"{budget_nanos / NANOS_PER_USD:.9f}"}
                        response = await ask(caller, gateway.url, f"open-{session}", session, memory, **budget)
                        assert response is not None
                        assert response.status == 200
                        sessions.append(session)
                reached = len(memory.reached)
                crowd = [
                    asyncio.create_task(keep_calling(gateway.url, f"r{number}.{index}", sessions, memory, rng))
                    for index in range(CALLERS)
                ]
                await until(lambda: len(memory.reached) >= reached + CALLERS)  # noqa: B023
                await asyncio.sleep(rng.uniform(0.1, 0.6))
                ended.append(sessions[len(BUDGETS) * number])
                await gateway.ask(f"request-sessions/1:{ended[-1]}/end", method="POST")
                await gateway.kill()
                await asyncio.gather(*crowd)
                await gateway.start()
                await gateway.check_books()
                more, memory.last = await gateway.read_rows(memory.last)
                rows += more
                check_rows(rows)
                await check_refusals(gateway, sessions, ended, rows, memory)
                more, memory.last = await gateway.read_rows(memory.last)
                rows += more
        marks = Counter(row.client_request_id for row in rows)
        assert max(marks.values()) == 1
        assert not memory.reached.keys() - marks.keys()
        outcomes = Counter(row.outcome for row in rows)
        print(f"{on_crash}: {dict(outcomes)}, {len(sessions)} sessions")  # noqa: T201
        assert outcomes["interrupted"] >= kills


async def check_refusals(
    gateway: GatewayProcess, sessions: list[str], ended: list[str], rows: list[RequestRecord], memory: kill_runs.Memory
) -> None:
    """A session refuses at its budget, without being told again, and knows what it has spent."""
    spent, session = check_rows(rows), sessions[-1]
    async with open_caller(SECRET, 10 * kill_runs.PATIENCE) as caller:
        for name in ended[-5:]:
            response = await ask(caller, gateway.url, f"ended-{name}-{len(rows)}", name, memory)
            assert response is not None
            assert (response.status, await read_code(response)) == (403, "session_ended")
        headers = {"x-gateway-session": session, "X-Request-Id": f"refused-{len(rows)}"}
        body = {**HELLO, "max_tokens": 1_000, "user": "refused"}  # it may cost more than the whole budget
        async with caller.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers) as refusal:
            assert (refusal.status, await read_code(refusal)) == (403, "budget_exceeded")
            amounts = [refusal.headers[f"x-gateway-budget{part}-usd"] for part in ("", "-spent")]
            assert [round(float(amount) * NANOS_PER_USD) for amount in amounts] == [BUDGETS[-1], spent[session]]


async def read_code(response: aiohttp.ClientResponse) -> str:
    return str((await response.json())["error"]["code"])
