"""``background: true, stream: true`` of the Responses API, over a provider that has no such API."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway.formats.wire.sse import parse_data
from gateway.server.context import SERVICES
from tests.support.fault_scene import UNHURRIED, until
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.resumed_streams import CutStream, list_events
from tests.support.scripted_upstream import LAST_CHUNK, SSE_HEAD, Received, ScriptedUpstream, Step, chat_events, chunk
from tests.support.started_gateways import StartGateway

WORDS = [f"w{number} " for number in range(12)]
BODY: dict[str, Any] = {"model": "m", "input": "hello", "background": True, "stream": True}
PATH = "/v1/responses"


def parse(raw: bytes) -> list[dict[str, Any]]:
    """The events of a stream of the Responses API."""
    return [orjson.loads(parse_data(event) or b"{}") for event in list_events(raw)]


def gated(gate: asyncio.Event, *, fails: bool = False) -> list[Step]:
    async def wait(_: Received) -> None:
        await gate.wait()

    events = [chunk(event) for event in chat_events(*WORDS)]
    rest: list[Step] = [LAST_CHUNK] if fails else [*events[3:], LAST_CHUNK]
    return [SSE_HEAD, *events[:3], wait, *rest]


async def get(gateway: RunningGateway, response_id: str, query: str = "") -> tuple[int, bytes]:
    async with gateway.client.get(f"{gateway.url}{PATH}/{response_id}{query}") as response:
        return response.status, await response.read()


async def begin(gateway: RunningGateway) -> tuple[str, int]:
    """Begin a response, read some events, and lose the connection: its id, and the last sequence number."""
    stream = await CutStream.open(gateway.url, BODY, PATH, {"x-gateway-resumable": "false"})
    await stream.read_events(3)
    events = parse(stream.received)
    assert [event.get("sequence_number") for event in events] == list(range(len(events))), stream.received
    stream.cut()
    streams = gateway.app[SERVICES].open_streams.instance
    assert streams is not None
    await until(lambda: streams.streams[stream.id].reader_count == 0)
    return events[0]["response"]["id"], len(events) - 1


async def test_a_background_stream_is_taken_up_by_its_sequence_numbers(gateway_with: StartGateway) -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream(gated(gate)) as up:
        keys = [{"name": "test", "account": "acme", "secret": KEY}]
        gateway = await gateway_with(
            {
                "channel": [channel(up.base_url, provider="mistral", **UNHURRIED)],
                "account": [{"name": "acme"}],
                "key": keys,
            }
        )
        response_id, last = await begin(gateway)
        status, raw = await get(gateway, response_id)
        assert (status, orjson.loads(raw)["status"]) == (200, "in_progress")
        reading = asyncio.create_task(get(gateway, response_id, f"?stream=true&starting_after={last - 1}"))
        gate.set()
        status, raw = await reading
        events = parse(raw)
        assert b"\nid:" not in raw
        assert not raw.startswith(b"id:")
        assert [event["sequence_number"] for event in events] == list(range(last, last + len(events)))
        final = events[-1]
        assert (final["type"], final["response"]["output"][0]["content"][0]["text"]) == (
            "response.completed",
            "".join(WORDS),
        )
        status, raw = await get(gateway, response_id)
        stored = orjson.loads(raw)
        assert (stored["status"], stored["background"], stored["output"]) == (
            "completed",
            True,
            final["response"]["output"],
        )
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.completion_tokens, len(up.received)) == ("completed", 7, 1)
        assert (await get(gateway, response_id, "?stream=true&starting_after=x"))[0] == 400
        assert (await get(gateway, response_id, "?stream=true&starting_after=9999"))[0] == 400
        streams = gateway.app[SERVICES].open_streams.instance
        assert streams is not None
        streams.close()
        status, raw = await get(gateway, response_id, "?stream=true&starting_after=3")
        assert (status, orjson.loads(raw)["error"]["code"]) == (409, "stream_interrupted")
        assert parse((await get(gateway, response_id, "?stream=true"))[1])[-1]["type"] == "response.completed"


async def test_a_background_stream_that_fails_or_is_cancelled_is_stored_as_that(gateway_with: StartGateway) -> None:
    gate, never = asyncio.Event(), asyncio.Event()
    async with ScriptedUpstream(gated(gate, fails=True), gated(never)) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url, provider="mistral", **UNHURRIED)]})
        response_id, _ = await begin(gateway)
        gate.set()
        await gateway.rows(1)
        stored = orjson.loads((await get(gateway, response_id))[1])
        assert (stored["status"], stored["error"]["code"]) == ("failed", "server_error")
        response_id, _ = await begin(gateway)
        async with gateway.client.post(f"{gateway.url}{PATH}/{response_id}/cancel") as response:
            assert (await response.json())["status"] == "cancelled"
        assert [row.outcome for row in await gateway.rows(2)] == ["failed", "cancelled"]
        assert orjson.loads((await get(gateway, response_id))[1])["status"] == "cancelled"
        never.set()


def native(gate: asyncio.Event, numbers: list[int | None]) -> list[Step]:
    """A stream of a provider with the Responses API, which numbers its events in a way of its own."""

    async def wait(_: Received) -> None:
        await gate.wait()

    response = {"id": "resp_native", "object": "response", "status": "in_progress", "output": []}
    usage = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": response}]
    events += ({"type": "response.output_text.delta", "delta": f"w{index}"} for index in range(len(numbers) - 2))
    events += [{"type": "response.completed", "response": {**response, "status": "completed", "usage": usage}}]
    steps: list[Step] = [SSE_HEAD]
    for event, number in zip(events, numbers, strict=True):
        body = event if number is None else {**event, "sequence_number": number}
        steps.append(chunk(f"event: {event['type']}\ndata: {orjson.dumps(body).decode()}\n\n".encode()))
    return [*steps[:4], wait, *steps[4:], LAST_CHUNK]


@pytest.mark.parametrize(
    ("numbers", "last", "rest"),
    [
        ([0, 1, 2, 3, 4, 5], 2, [3, 4, 5]),
        ([1, 2, 3, 4, 5, 6], 2, [3, 4, 5, 6]),
        ([1, 3, 7, 9, 10, 20], 3, [7, 9, 10, 20]),
        ([1, 3, 7, 9, 10, 20], 5, [7, 9, 10, 20]),
        ([5, None, 6, None, 7, 8], 5, [None, 6, None, 7, 8]),
        ([None] * 6, 1, [None] * 4),
    ],
    ids=["from 0", "from 1", "with holes", "into a hole", "partly", "without numbers"],
)
async def test_a_provider_may_number_its_events_as_it_likes(
    gateway_with: StartGateway, numbers: list[int | None], last: int, rest: list[int | None]
) -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream(native(gate, numbers)) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url, provider="openai", **UNHURRIED)]})
        stream = await CutStream.open(gateway.url, BODY, PATH)
        await stream.read_events(3)
        response_id = parse(stream.received)[0]["response"]["id"]
        stream.cut()
        reading = asyncio.create_task(get(gateway, response_id, f"?stream=true&starting_after={last}"))
        gate.set()
        status, raw = await reading
        assert status == 200, raw
        assert [event.get("sequence_number") for event in parse(raw)] == rest
        assert parse(raw)[-1]["type"] == "response.completed"
        status, raw = await get(gateway, response_id, "?stream=true&starting_after=999")
        assert (status, orjson.loads(raw)["error"]["param"]) == (400, "starting_after")


async def test_a_deleted_response_has_no_events_left(gateway_with: StartGateway) -> None:
    gate = asyncio.Event()
    gate.set()
    async with ScriptedUpstream(gated(gate)) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url, provider="mistral", **UNHURRIED)]})
        response_id, _ = await begin(gateway)
        await gateway.rows(1)
        async with gateway.client.delete(f"{gateway.url}{PATH}/{response_id}") as response:
            assert (await response.json())["deleted"]
        assert (await get(gateway, response_id, "?stream=true"))[0] == 404
