"""Streams of a cluster: taken up at any node; lost with theirs, and told so."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.formats.wire.sse import parse_data
from tests.support.cluster import make_node
from tests.support.fault_scene import until
from tests.support.gateway import HELLO, KEY, channel
from tests.support.gateway_process import open_caller
from tests.support.postgres import SharedPostgres
from tests.support.resumed_streams import CutStream, list_events, strip_ids
from tests.support.scripted_upstream import LAST_CHUNK, SSE_HEAD, Received, ScriptedUpstream, Step, chat_events, chunk
from tests.support.sockets import find_free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
OTHER_KEY = "sk-other-" + "x" * 40
EVENTS_ONLY = {"Accept": "text/event-stream"}
"""A browser's page may send this with every request; a token and a deletion are answered as JSON all the same."""
WORDS = [f"w{number} " for number in range(12)]


def gated(gate: asyncio.Event) -> list[Step]:
    async def wait(_: Received) -> None:
        await gate.wait()

    events = [chunk(event) for event in chat_events(*WORDS)]
    return [SSE_HEAD, *events[:3], wait, *events[3:], LAST_CHUNK]


async def read(caller: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    async with caller.get(url) as response:
        return response.status, await response.read()


async def make_token(caller: aiohttp.ClientSession, url: str) -> str:
    async with caller.post(f"{url}/token", headers=EVENTS_ONLY) as response:
        return str((await response.json())["token"])


async def check_deletion(caller: aiohttp.ClientSession, url: str) -> None:
    async with caller.delete(f"{url}?after=-", headers=EVENTS_ONLY) as response:
        assert (response.status, (await response.json())["deleted"]) == (200, True)
    assert (await read(caller, url))[0] == 404


def parse(raw: bytes) -> list[dict[str, Any]]:
    """The events of a stream of the Responses API."""
    return [orjson.loads(parse_data(event) or b"{}") for event in list_events(raw)]


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
            token = await make_token(caller, path)
            gate.set()
            status, raw = await reading
            numbers, events = strip_ids(list_events(raw))
            assert (status, numbers) == (200, list(range(2, len(WORDS) + 3)))
            assert [*list_events(stream.received)[:1], *events] == chat_events(*WORDS, usage=False)
            async with open_caller(token) as page:
                assert (await read(page, f"{path}?after=13"))[1].endswith(b"data: [DONE]\n\n")
            async with caller.get(f"{path}?after=99") as response:
                assert response.status == 400
            await check_deletion(caller, path)

            body = {**HELLO, "max_tokens": 10, "stream": True}
            stream = await CutStream.open(own.url, body, "/v1/messages")
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
            numbers = strip_ids(events)[0]
            assert numbers == list(range(2, len(events) + 2))
            assert f"after event {numbers[-1]};".encode() in error
            assert error.startswith(b"event: error\n")  # in the format of the stream
            assert stream.id[3:27].encode() in error
            while (answer := await read(caller, f"{path}?after=2"))[0] == 503:  # until the node is declared dead
                assert b"does not answer" in answer[1]
                await asyncio.sleep(0.1)
            (error,) = list_events(answer[1])
            assert (answer[0], b"after event 2;" in error, b"stream_interrupted" in error) == (200, True, True)
            never.set()


async def read_to_the_end(caller: aiohttp.ClientSession, url: str, after: int) -> list[bytes]:
    """The events after number ``after``, as soon as the node answers."""
    while (answer := await read(caller, f"{url}?after={after}"))[0] == 503:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)
    assert answer[0] == 200, answer
    return strip_ids(list_events(answer[1]))[1]


async def test_a_node_that_stops_goes_on_with_its_streams_and_the_others_pass_readers_on(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    gate, whole = asyncio.Event(), chat_events(*WORDS, usage=False)
    async with ScriptedUpstream(gated(gate)) as up:
        key: dict[str, Any] = {"name": "test", "account": "acme", "secret": KEY}
        tables = {
            "channel": [channel(up.base_url, idle_timeout_s=100, total_timeout_s=100)],
            "account": [{"name": "acme"}],
            "key": [key],
        }
        url = await shared_postgres.empty()
        own, other = (make_node(tmp_path / f"node{number}", url, tables, port=find_free_port()) for number in range(2))
        async with own, other, open_caller() as caller:
            streams = [await CutStream.open(own.url) for _ in range(2)]
            for stream in streams:
                await stream.read_events(3)
                stream.cut()
            first, second = (f"{other.url}/v1/streams/{stream.id}" for stream in streams)
            ending = asyncio.create_task(own.end())
            await until(lambda: own.read_log("drain_started"))
            with pytest.raises(aiohttp.ClientConnectorError):  # load balancers leave it at once
                await read(caller, f"{own.url}/healthz")
            received = b""
            while (await read(caller, first))[0] == 503:  # noqa: ASYNC110 - the node is busy with its end
                await asyncio.sleep(0.1)
            async with caller.get(f"{first}?after=1") as response:
                assert response.status == 200, await response.text()
                while len(list_events(received)) < 2:
                    received += await response.content.readany()
                gate.set()
                received += await response.content.read()
            assert strip_ids(list_events(received))[1] == whole[1:]
            assert await ending == 0
            reading = asyncio.create_task(read_to_the_end(caller, second, 3))
            await own.start()
            assert await reading == whole[3:]
            assert await read_to_the_end(caller, first, 0) == whole
            assert len(up.received) == 2
            rows, _ = await own.read_rows()
            assert [row.outcome for row in rows] == ["completed"] * 2


async def test_a_background_response_is_taken_up_and_forgotten_at_another_node(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream(gated(gate)) as up:
        key: dict[str, Any] = {"name": "test", "account": "acme", "secret": KEY}
        tables = {
            "channel": [channel(up.base_url, provider="mistral", idle_timeout_s=100, total_timeout_s=100)],
            "account": [{"name": "acme"}, {"name": "strange"}],
            "key": [key, {**key, "name": "other", "account": "strange", "secret": OTHER_KEY}],
        }
        url = await shared_postgres.empty()
        own, other = (make_node(tmp_path / f"node{number}", url, tables, port=find_free_port()) for number in range(2))
        async with own, other, open_caller() as caller, open_caller(OTHER_KEY) as stranger:
            body = {"model": "m", "input": "hello", "background": True, "stream": True}
            stream = await CutStream.open(own.url, body, "/v1/responses", {"x-gateway-user": "ann"})
            await stream.read_events(3)
            stream.cut()
            events = parse(stream.received)
            path = f"{other.url}/v1/responses/{events[0]['response']['id']}"
            assert (await read(stranger, f"{path}?stream=true"))[0] == 404
            assert (await read(caller, f"{path}?stream=true&starting_after=999"))[0] == 400
            reading = asyncio.create_task(read(caller, f"{path}?stream=true&starting_after=0"))
            gate.set()
            status, raw = await reading
            rest = parse(raw)
            assert (status, [event["sequence_number"] for event in rest]) == (200, list(range(1, len(rest) + 1)))
            assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "".join(WORDS)
            assert b"\nid:" not in raw

            await other.ask("users/forget", {"user": "ann"})
            while (answer := await read(caller, f"{path}?stream=true&starting_after=0"))[0] == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # until the other node has heard of it
            assert (answer[0], orjson.loads(answer[1])["error"]["code"]) == (409, "stream_interrupted")
