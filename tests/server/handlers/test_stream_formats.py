"""Streams of every text operation are taken up again as they are."""

from typing import Any

import pytest

from tests.support.gateway import KEY
from tests.support.resumed_streams import CutStream, list_events, take_up
from tests.support.started_gateways import StartGateway

MODEL = "demo-chat"
MESSAGES = [{"role": "user", "content": "Hello"}]
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"model": MODEL, "messages": MESSAGES, "stream": True}),
    "messages": ("/v1/messages", {"model": MODEL, "messages": MESSAGES, "stream": True, "max_tokens": 99}),
    "responses": ("/v1/responses", {"model": MODEL, "input": "Hello", "stream": True}),
    "completions": ("/v1/completions", {"model": MODEL, "prompt": "Hello", "stream": True}),
    "gemini": (f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse", {"contents": [{"parts": [{"text": "Hello"}]}]}),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_stream_is_the_same_when_it_is_taken_up(name: str, gateway_with: StartGateway) -> None:
    keys = [{"name": "test", "account": "acme", "secret": KEY}]
    gateway = await gateway_with({"account": [{"name": "acme"}], "key": keys})
    path, body = REQUESTS[name]
    stream = await CutStream.open(gateway.url, body, path)
    while await stream.read_chunk():
        pass
    events = list_events(stream.received)
    assert len(events) > 2
    for after in (0, 1, len(events) - 1, len(events)):
        numbers, rest = await take_up(gateway, stream.id, after)
        assert (numbers, rest) == (list(range(after + 1, len(events) + 1)), events[after:])
    stream.cut()


async def test_a_stream_in_an_array_is_taken_up_as_events(gateway_with: StartGateway) -> None:
    keys = [{"name": "test", "account": "acme", "secret": KEY}]
    gateway = await gateway_with({"account": [{"name": "acme"}], "key": keys})
    path, body = REQUESTS["gemini"]
    stream = await CutStream.open(gateway.url, body, path.partition("?")[0])
    while await stream.read_chunk():
        pass
    assert stream.received.strip().startswith(b"[")
    _, events = await take_up(gateway, stream.id)
    assert all(event.startswith(b"data: {") for event in events)
    stream.cut()
