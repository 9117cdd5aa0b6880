"""``kill -9`` while a batch runs: every line is sent once at most, has one result, and what was sent is on record.

``make soak ARGS=tests/faults/test_kill_batch.py`` runs it with ten thousand lines.
"""

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from tests.support.fast_provider import SwiftUpstream, slow
from tests.support.fault_scene import PRICE
from tests.support.gateway import KEY, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller

LINES = int(os.environ.get("GATEWAY_TEST_LINES") or 10_000)
CHAT = "/v1/chat/completions"
ACTIVE = 8


def write_input(count: int) -> bytes:
    bodies = (
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "user": f"c{number}"}
        for number in range(count)
    )
    lines = ({"custom_id": str(body["user"]), "method": "POST", "url": CHAT, "body": body} for body in bodies)
    return b"\n".join(map(orjson.dumps, lines))


async def post(caller: aiohttp.ClientSession, url: str, **body: Any) -> Any:
    async with caller.post(url, **body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer


async def get(gateway: GatewayProcess, path: str) -> bytes:
    async with open_caller() as caller, caller.get(f"{gateway.url}/v1/{path}") as response:
        assert response.status == 200
        return await response.read()


async def begin(gateway: GatewayProcess, count: int) -> str:
    """Start a batch; return its id."""
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", write_input(count), filename="lines.jsonl")
    async with open_caller() as caller:
        file = await post(caller, f"{gateway.url}/v1/files", data=form)
        new = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
        return str((await post(caller, f"{gateway.url}/v1/batches", json=new))["id"])


async def read_results(gateway: GatewayProcess, batch: Any) -> dict[str, Any]:
    found: list[Any] = []
    for file_id in (batch["output_file_id"], batch["error_file_id"]):
        if file_id is not None:
            found += map(orjson.loads, (await get(gateway, f"files/{file_id}/content")).splitlines())
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one for one in found}


async def kill_often(tmp_path: Path, count: int, kills: int, within_s: float) -> None:
    async with SwiftUpstream(slow(0.01)) as up:
        site = {
            "channel": [channel(up.base_url)],
            "price": [PRICE],
            "account": [{"name": "ours"}],
            "key": [{"name": "ours", "account": "ours", "secret": KEY}],
            "batches": {"max_active": ACTIVE},
        }
        async with GatewayProcess(tmp_path / "data", site) as gateway:
            batch_id = await begin(gateway, count)
            for number in range(1, kills + 1):
                while len(up.seen) < count * number // (kills + 1):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.001)
                await gateway.kill()
                await gateway.start()

            async def ended() -> bool:
                return bool(orjson.loads(await get(gateway, f"batches/{batch_id}"))["status"] == "completed")

            await eventually(ended, within_s)
            batch = orjson.loads(await get(gateway, f"batches/{batch_id}"))
            results = await read_results(gateway, batch)
            sent = Counter(orjson.loads(seen.body)["user"] for seen in up.seen)
            assert max(sent.values()) == 1
            assert len(results) == batch["request_counts"]["total"] == count
            answered = {name for name, one in results.items() if one["response"] is not None}
            lost = {name: one["error"]["code"] for name, one in results.items() if one["response"] is None}
            assert set(lost.values()) <= {"interrupted"}
            assert answered <= sent.keys()
            assert sent.keys() - answered <= lost.keys()
            assert len(lost) <= ACTIVE * kills
            assert batch["request_counts"]["completed"] == len(answered)

            async def settled() -> bool:
                return not (await gateway.ask("audit"))["open_holds"]

            await eventually(settled, 10)
            asked = {results[name]["response"]["request_id"] for name in answered}

            async def stored() -> bool:
                rows, _ = await gateway.read_rows()
                return asked <= {row.id for row in rows if row.outcome == "completed"}

            await eventually(stored, 10)  # the ledger writes in groups
            rows, _ = await gateway.read_rows()
            assert {row.client_request_id for row in rows} == {batch_id}
            assert len(answered) <= len(rows) <= len(results)
            await gateway.check_books()


async def test_no_line_is_sent_twice(tmp_path: Path) -> None:
    await kill_often(tmp_path, 300, 3, 30)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_no_line_of_a_large_batch_is_sent_twice(tmp_path: Path) -> None:
    await kill_often(tmp_path, LINES, 10, 600)
