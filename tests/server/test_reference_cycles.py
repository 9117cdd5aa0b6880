"""A request is freed once it has been answered, with its body, its answer and its errors: it is in no reference cycle.

A cycle waits for the garbage collector, which counts objects and not their bytes: a few of them can be many megabytes.
"""

import gc
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

import gateway
from tests.support.gateway import CHAT, RunningGateway, channel
from tests.support.scripted_upstream import (
    COMPLETION,
    FIN,
    RST,
    SSE_HEAD,
    STALL,
    Script,
    ScriptedUpstream,
    answer,
    chat_script,
    chunk,
    delta,
    event,
)
from tests.support.started_gateways import StartGateway
from tests.support.video_gateway import open_video_gateway

SOURCE = str(Path(gateway.__file__).parent)
HALF = [SSE_HEAD, chunk(event(delta("half")))]
SCRIPTS: dict[str, Script] = {
    "an answer": [answer(COMPLETION)],
    "a stream": chat_script("a", "b"),
    "an error": [answer({"error": {"message": "on fire"}}, 500)],
    "an error that is not JSON": [answer(b"<html>" + b"x" * 100_000, 502)],
    "a refusal": [answer({"error": {"message": "no"}}, 400)],
    "a rate limit": [answer({"error": {"message": "later"}}, 429)],
    "invalid JSON": [answer(b'{"choices": [1,]}')],
    "deep JSON": [answer(b"[" * 5_000)],
    "no HTTP": [b"nonsense\r\n\r\n", FIN],
    "a bad chunk": [SSE_HEAD, b"zz\r\n", FIN],
    "no answer": [RST],
    "a stream of nonsense": [SSE_HEAD, chunk(b"data: {1\n\n"), FIN],
    "half a stream": [*HALF, FIN],
    "a stream that stalls": [*HALF, STALL],
}
CALLS = (
    (CHAT, {"messages": [{"role": "user", "content": "hi"}]}),
    (CHAT, {"messages": [{"role": "user", "content": "long " * 300_000}]}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
    ("/v1/responses", {"input": "hi"}),
)


@contextmanager
def watch_cycles() -> Iterator[list[str]]:
    """Yield a list that afterwards has what the block left in reference cycles: requests, and frames of the gateway."""
    found: list[str] = []
    gc.collect(1)
    gc.freeze()  # what the block leaves is new: to look at everything twice takes a quarter of a second
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += _describe(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def _describe(garbage: Sequence[object]) -> list[str]:
    frames = [each.f_code for each in garbage if isinstance(each, FrameType)]
    ours = {f"{code.co_qualname} in {code.co_filename}" for code in frames if code.co_filename.startswith(SOURCE)}
    return sorted(ours | {str(each) for each in garbage if isinstance(each, web.BaseRequest)})


async def call(gateway: RunningGateway, path: str, body: Any, *, leaves: bool = False) -> None:
    try:
        data, headers = io.BytesIO(orjson.dumps(body)), {"Content-Type": "application/json"}
        async with gateway.client.post(gateway.url + path, data=data, headers=headers) as response:
            if leaves:
                await response.content.readany()
                response.close()
            await response.read()
    except aiohttp.ClientError:
        pass


@pytest.mark.parametrize("name", SCRIPTS)
async def test_no_request_is_in_a_reference_cycle(standing_with: StartGateway, name: str) -> None:
    async with ScriptedUpstream(SCRIPTS[name]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url, provider="vllm", total_timeout_s=0.5)]})
        with watch_cycles() as found:
            for path, body in CALLS:
                for stream in (False, True):
                    await call(gateway, path, {"model": "m", "stream": stream, **body}, leaves=stream)
            await gateway.rows(2 * len(CALLS))
        assert not found


async def test_no_request_for_a_video_is_in_a_reference_cycle(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with) as video_gateway:
        with watch_cycles() as found:
            video_id = await video_gateway.begin()
            await video_gateway.submit(seconds="many")
            await video_gateway.finish(video_id)
        assert not found
