"""The caller's end of a stream, on the wire."""

import asyncio

from tests.conftest import StartGateway
from tests.fakes.gateway import channels
from tests.fakes.upstream import (
    FIN,
    SSE_HEAD,
    ScriptedUpstream,
    Step,
    chat_events,
    chat_script,
    chunk,
    delta,
    event,
)
from tests.web.wire import connect, hello, post, split, talk

EVENTS = chat_events("a", "b", "c")
SENT = b"".join(EVENTS[:-2] + EVENTS[-1:])


async def test_a_stream_to_http_1_1_is_chunked_and_ends_with_the_last_chunk(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script("a", "b", "c")) as up:
        gateway = await gateway_with(channels([up]))
        found = split(await talk(gateway.url, post(hello(stream=True), "Connection: close")))
        assert found.version == "HTTP/1.1"
        assert found.headers["transfer-encoding"] == "chunked"
        assert "content-length" not in found.headers
        assert found.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert found.headers["cache-control"] == "no-cache"
        assert found.headers["x-accel-buffering"] == "no"
        assert _unchunk(found.body) == SENT


async def test_a_stream_to_http_1_0_is_plain_and_ends_with_the_connection(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script("a", "b", "c")) as up:
        gateway = await gateway_with(channels([up]))
        raw = post(hello(stream=True)).replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n")
        found = split(await talk(gateway.url, raw))
        assert found.status == 200
        assert "transfer-encoding" not in found.headers
        assert "content-length" not in found.headers
        assert found.body == SENT


async def test_a_broken_stream_to_http_1_0_ends_in_the_error_event_alone(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(event(delta("a"))), FIN]) as up:
        gateway = await gateway_with(channels([up]))
        raw = post(hello(stream=True)).replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n")
        body = split(await talk(gateway.url, raw)).body
        assert body.startswith(event(delta("a")) + b'data: {"error":')
        assert body.endswith(b"}}\n\n")
        assert b"[DONE]" not in body


async def test_a_broken_chunked_stream_is_still_complete_as_http(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(event(delta("a"))), FIN]) as up:
        gateway = await gateway_with(channels([up]))
        body = _unchunk(split(await talk(gateway.url, post(hello(stream=True), "Connection: close"))).body)
        assert body.startswith(event(delta("a")) + b'data: {"error":')


async def test_a_connection_is_used_again_after_a_stream(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script("a", "b", "c")) as up:
        gateway = await gateway_with(channels([up]))
        again = post(hello(stream=True)) + post(hello(stream=True), "Connection: close")
        reply = await talk(gateway.url, again)
        assert reply.count(b"HTTP/1.1 200 OK\r\n") == 2
        assert reply.count(b"[DONE]") == 2
        assert up.connections == 1


async def test_each_event_leaves_when_it_comes(gateway_with: StartGateway) -> None:
    arrived = [asyncio.Event() for _ in EVENTS]
    steps: list[Step] = [SSE_HEAD]
    for item, gate in zip(EVENTS, arrived, strict=True):

        async def wait(_received: object, gate: asyncio.Event = gate) -> None:
            await gate.wait()

        steps += [chunk(item), wait]
    async with ScriptedUpstream(steps) as up:
        gateway = await gateway_with(channels([up]))
        reader, writer = await connect(gateway.url)
        writer.write(post(hello(stream=True)))
        async with asyncio.timeout(3):
            await reader.readuntil(b"\r\n\r\n")
            # The next event is let go only when the one before has arrived: a lag of one would never end.
            for item, gate in list(zip(EVENTS, arrived, strict=True))[:-2]:
                assert item in await reader.readuntil(item)
                gate.set()
        for gate in arrived:
            gate.set()
        writer.close()
        await gateway.rows(1)


def _unchunk(raw: bytes) -> bytes:
    """The content of a chunked body that is complete and holds nothing after its end."""
    body = b""
    while True:
        size, _, rest = raw.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        assert rest[length : length + 2] == b"\r\n"
        raw = rest[length + 2 :]
        if not length:
            assert raw == b""
            return body
