"""Streams of a cluster: taken up at any node; lost with theirs, and told so."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import make_node
from tests.support.gateway import KEY, channel
from tests.support.gateway_process import open_caller
from tests.support.postgres import SharedPostgres
from tests.support.resumed_streams import CutStream, list_events, strip_ids
from tests.support.scripted_upstream import LAST_CHUNK, SSE_HEAD, Received, ScriptedUpstream, Step, chat_events, chunk
from tests.support.sockets import find_free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
OTHER_KEY = "sk-other-" + "x" * 40
WORDS = [f"w{number} " for number in range(12)]


def gated(gate: asyncio.Event) -> list[Step]:
    async def wait(_: Received) -> None:
        await gate.wait()

    events = [chunk(event) for event in chat_events(*WORDS)]
    return [SSE_HEAD, *events[:3], wait, *events[3:], LAST_CHUNK]


async def read(caller: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    async with caller.get(url) as response:
        return response.status, await response.read()


async def test_a_stream_is_taken_up_at_another_node_and_lost_with_its_own(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    gate, never = asyncio.Event(), asyncio.Event()
    async with ScriptedUpstream(gated(gate), gated(never)) as up:
        key: dict[str, Any] = {"name": "test", "account": "acme", "secret": KEY}
        tables = {
            "channel": [channel(up.base_url, idle_timeout_s=100, total_timeout_s=100)],
            "account": [{"name": "acme"}],
            "key": [key, {**key, "name": "other", "secret": OTHER_KEY}],
        }
        url = await shared_postgres.empty()
        own, other = (make_node(tmp_path / f"node{number}", url, tables, port=find_free_port()) for number in range(2))
        async with (
            own,  # other nodes know the address of a node whose port is set
            other,
            open_caller() as caller,
            open_caller(OTHER_KEY) as stranger,
        ):
            stream = await CutStream.open(own.url)
            await stream.read_events(3)
            stream.cut()
            path = f"{other.url}/v1/streams/{stream.id}"
            async with caller.get(path) as response:
                assert (await response.json())["status"] == "in_progress"
            assert (await read(stranger, path))[0] == 404
            assert (await read(stranger, f"{path}?after=0"))[0] == 404
            reading = asyncio.create_task(read(caller, f"{path}?after=1"))
            async with caller.post(f"{path}/token") as response:
                token = (await response.json())["token"]
            gate.set()
            status, raw = await reading
            numbers, events = strip_ids(list_events(raw))
            assert (status, numbers) == (200, list(range(2, len(WORDS) + 3)))
            assert [*list_events(stream.received)[:1], *events] == chat_events(*WORDS, usage=False)
            async with open_caller(token) as page:
                assert (await read(page, f"{path}?after=13"))[1].endswith(b"data: [DONE]\n\n")
            async with caller.get(f"{path}?after=99") as response:
                assert response.status == 400

            stream = await CutStream.open(own.url)
            await stream.read_events(3)
            stream.cut()
            path = f"{other.url}/v1/streams/{stream.id}"
            received = b""
            async with caller.get(f"{path}?after=1") as response:
                while len(list_events(received)) < 2:
                    received += await response.content.readany()
                await own.kill()
                received += await response.content.read()
            *events, error = list_events(received)
            assert strip_ids(events)[0] == [2, 3]
            assert b"after event 3;" in error
            assert b"stream_interrupted" in error
            status, raw = await read(caller, f"{path}?after=2")
            (error,) = list_events(raw)
            assert (status, b"after event 2;" in error) == (200, True)
            never.set()
