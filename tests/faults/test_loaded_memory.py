"""Small requests that name large kept responses and files: the process stays small, and says why it refuses."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
import pytest

from gateway.domain.kept_response import KeptResponse
from gateway.memory_budget import estimate_memory
from gateway.storage.encryption import SecretBox
from gateway.storage.identity import MASTER_KEY_NAME
from gateway.storage.kept_responses import KeptResponseRepository
from gateway.storage.open import open_database
from tests.support.gateway import KEY, channel
from tests.support.gateway_process import GatewayProcess, open_caller
from tests.support.multipart_bodies import watch_memory
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        not Path("/proc/self/clear_refs").exists(), reason="only Linux says what memory was at its most"
    ),
]
MB = 1024 * 1024
MANY = 20
FIT = 5
"""Of them, if each needs 12 MB of the 64 MB that all may need."""
MOST_MB = 400
FOREVER_MS = 10**15
IMAGE = {"type": "image_generation_call", "status": "completed", "result": "A" * MB}
TINY = {"type": "message", "role": "user", "content": ""}


def name(number: int) -> str:
    return f"resp_{number:024x}"


def keep(number: int, output: Sequence[Any], items: Sequence[Any] = (), before: int | None = None) -> KeptResponse:
    """A kept response whose outputs have ids as the gateway makes them."""
    outputs = [{**item, "id": f"ig_{number:024x}_{at}"} for at, item in enumerate(output)]
    body, inputs = orjson.dumps({"id": name(number), "output": outputs}), orjson.dumps(list(items))
    sizes = estimate_memory(body), estimate_memory(inputs)
    before_id = None if before is None else name(before)
    return KeptResponse(name(number), 1, 1, FOREVER_MS, body, inputs, before_id, *sizes)


def list_kept() -> list[KeptResponse]:
    return [
        *(keep(number, [IMAGE]) for number in range(150)),
        *(keep(1000 + at, [IMAGE], before=1000 + at - 1 if at else None) for at in range(60)),
        keep(2001, [], [TINY] * 100_000),
        keep(2002, [], [{**TINY, "content": "\N{GRINNING FACE}" + "a" * (9 * MB)}]),
        keep(2003, [IMAGE] * 12),
    ]


def refer(*numbers: int, times: int = 1) -> list[Any]:
    return [{"type": "item_reference", "id": f"ig_{number:024x}_0"} for number in numbers] * times


ASK = {"type": "message", "role": "user", "content": "more"}
HUGE = {
    "many responses": {"input": refer(*range(150))},
    "one response many times": {"input": refer(0, times=150)},
    "a chain": {"input": [ASK], "previous_response_id": name(1059)},
    "small objects": {"input": [ASK], "previous_response_id": name(2001)},
    "wide characters": {"input": [ASK], "previous_response_id": name(2002)},
}
ALLOWED = {"input": [ASK], "previous_response_id": name(2003)}


async def prepare(data: Path, responses: Sequence[KeptResponse]) -> None:
    database = await open_database(f"sqlite:///{data / 'gateway.db'}")
    try:
        store = KeptResponseRepository(database, SecretBox((data / MASTER_KEY_NAME).read_bytes()))
        for response in responses:
            await store.put_response(response)
    finally:
        await database.close()


async def ask(caller: aiohttp.ClientSession, gateway: GatewayProcess, body: Any) -> tuple[int, Any, str | None]:
    async with caller.post(f"{gateway.url}/v1/responses", json={"model": "m", **body}) as response:
        return response.status, await response.json(), response.headers.get("Retry-After")


async def test_requests_that_name_large_responses_are_refused_and_cost_little_memory(tmp_path: Path) -> None:
    may_answer = asyncio.Event()

    async def hold(_: Received) -> None:
        await may_answer.wait()

    async with ScriptedUpstream([hold, answer(COMPLETION)]) as up:
        tables = {
            "channel": [channel(up.base_url, provider="mistral", first_byte_timeout_s=90, total_timeout_s=90)],
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
            "billing": {"unpriced": "free"},
        }
        async with GatewayProcess(tmp_path / "data", tables) as gateway, open_caller() as caller:
            await gateway.end()
            await prepare(gateway.data, list_kept())
            await gateway.start()
            process = psutil.Process(gateway.pid)
            began_mb = process.memory_info().rss / MB
            with watch_memory(process) as risen:
                for kind, body in HUGE.items():
                    assert len(orjson.dumps(body)) < 12_000
                    for status, reported, _ in await asyncio.gather(*[ask(caller, gateway, body) for _ in range(MANY)]):
                        assert status == 413, (kind, reported)
                        assert "one request may need 32 MB" in reported["error"]["message"], kind
                        assert reported["error"]["param"] in body  # type: ignore[operator]
                assert not up.received
                asked = asyncio.as_completed([ask(caller, gateway, ALLOWED) for _ in range(MANY)])
                for refused in [next(asked) for _ in range(MANY - FIT)]:
                    status, reported, retry_after = await refused
                    assert (status, retry_after) == (503, "2"), reported
                    assert "of other requests use the memory" in reported["error"]["message"]
                may_answer.set()
                assert [(await served)[0] for served in asked] == [200] * FIT
            assert began_mb + risen[0] < MOST_MB
            assert (await ask(caller, gateway, ALLOWED))[0] == 200  # all was given back
