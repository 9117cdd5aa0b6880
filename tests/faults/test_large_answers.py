"""Twenty large or endless answers at once: the process stays small, whatever the client asked for."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.support.gateway import KEY, channel
from tests.support.gateway_process import GatewayProcess
from tests.support.multipart_bodies import watch_memory
from tests.support.scripted_upstream import FIN, LAST_CHUNK, SSE_HEAD, Flood, Script, ScriptedUpstream, chunk, event

MB = 1024 * 1024
MANY = 20
MOST_MB = 400
TIMEOUT_S = 90
JSON_HEAD = SSE_HEAD.replace(b"text/event-stream", b"application/json")
OBJECTS = [chunk(b'{"data":['), Flood(chunk(b"{}," * (MB // 3)), 25), chunk(b"1]}"), LAST_CHUNK, FIN]
TEXT = [chunk(b'{"choices":[{"message":{"content":"'), Flood(chunk(b"x" * MB), 25), FIN]
LARGE_EVENT = chunk(event({"id": "a", "model": "m", "choices": [{"index": 0, "delta": {"content": "x" * (12 * MB)}}]}))
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
MESSAGES = {**CHAT, "max_tokens": 10, "stream": True}
STREAMED = {**CHAT, "stream": True}
IMAGE = {"model": "gpt-image-1", "prompt": "A cat"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(
        not Path("/proc/self/clear_refs").exists(), reason="only Linux says what memory was at its most"
    ),
]


@pytest.mark.parametrize(
    ("path", "body", "script", "status"),
    [
        pytest.param("chat/completions", CHAT, [JSON_HEAD, *TEXT], 502, id="a whole answer"),
        pytest.param("images/generations", IMAGE, [JSON_HEAD, *OBJECTS], 502, id="objects instead of an image"),
        pytest.param("chat/completions", STREAMED, [SSE_HEAD, *TEXT], 502, id="JSON instead of a stream"),
        pytest.param("messages", MESSAGES, [SSE_HEAD, *[LARGE_EVENT] * 2, FIN], 200, id="translated large events"),
    ],
)
async def test_large_answers_wait_for_each_other(
    tmp_path: Path, path: str, body: dict[str, Any], script: Script, status: int
) -> None:
    times: dict[str, Any] = dict.fromkeys(("first_byte_timeout_s", "idle_timeout_s", "total_timeout_s"), TIMEOUT_S)
    async with ScriptedUpstream(script) as up:
        tables = {
            "channel": [channel(up.base_url, models=["m", "gpt-image-1"], **times)],
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
            "billing": {"unpriced": "free"},
            "routing": {"trip_failures": 1000, "trip_ratio": 1.0, "max_attempts": 1},
        }
        async with (
            GatewayProcess(tmp_path / "data", tables) as gateway,
            aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {KEY}"},
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=2 * TIMEOUT_S),
            ) as caller,
        ):

            async def ask() -> int:
                async with caller.post(f"{gateway.url}/v1/{path}", json=body) as response:
                    async for _ in response.content.iter_any():
                        pass
                    return response.status

            process = psutil.Process(gateway.pid)
            began_mb = process.memory_info().rss / MB
            with watch_memory(process) as risen:
                assert Counter(await asyncio.gather(*[ask() for _ in range(MANY)])) == {status: MANY}
            assert began_mb + risen[0] < MOST_MB
            assert len(up.received) == MANY
