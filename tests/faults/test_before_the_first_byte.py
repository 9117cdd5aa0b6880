"""A provider fails before the caller has heard anything: another channel does better, or the caller gets the error.

Each scene is played alone, and with a healthy second channel; streamed and whole.
"""

import asyncio
import gzip
from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from tests.conftest import StartGateway
from tests.fakes.gateway import channel
from tests.fakes.upstream import (
    FIN,
    LAST_CHUNK,
    RST,
    SSE_HEAD,
    SSE_HEAD_UNTIL_CLOSE,
    STALL,
    Act,
    Script,
    ScriptedUpstream,
    answer,
    chunk,
    delta,
    event,
)
from tests.faults.scene import (
    QUICK,
    audit,
    call,
    check_error,
    check_row_of_failure,
    check_row_of_success,
    good_script,
    healthy,
    site,
)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
HTML = b"<!DOCTYPE html><html><body>Sign in to the portal</body></html>"
COMMENT = chunk(b": ping\n\n")
SOON = {**QUICK, "total_timeout_s": 0.15}
ERROR = b'data: {"error": {"message": "no GPU is free", "code": 503}}\n\n'
PAGE_HEAD = SSE_HEAD.replace(b"event-stream", b"html")
NAMED_PING = chunk(b"event: ping\n\n")
NO_GZIP = answer(b"not gzip", Content_Encoding="gzip", content_type="text/event-stream")
CUT_GZIP = answer(gzip.compress(b'{"choices": []}')[:-14], Content_Encoding="gzip", content_type="text/event-stream")
BOTH, STREAM, WHOLE = (False, True), (True,), (False,)


@attrs.frozen
class Scene:
    """A fault; ``streams`` says for which calls it is one."""

    name: str
    script: Script
    code: str = "upstream_error"
    streams: tuple[bool, ...] = BOTH
    timers: Mapping[str, float] = {}


def drip(piece: bytes, times: int = 40) -> list[Any]:
    return [step for _ in range(times) for step in (piece, 0.02)]


SCENES = [
    Scene("U2 FIN", [FIN]),
    Scene("U2 RST", [RST]),
    Scene("U2 half a status line, FIN", [b"HTTP/1.1 2", FIN]),
    Scene("U2 half a header, FIN", [HEAD[:30], FIN]),
    Scene("U2 half a header, RST", [HEAD[:30], 0.01, RST]),
    Scene("U4 garbage status line", [b"WHAT 200 OK\r\n\r\n", STALL]),
    Scene("U4 two lengths", [HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", STALL]),
    Scene("U4 length and chunked", [HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}", STALL]),
    Scene("U4 NUL in a header", [HEAD + b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}", STALL]),
    Scene("U4 20 KB header", [HEAD + b"X: " + b"x" * 20_000 + b"\r\n\r\n", STALL]),
    Scene("U4 5,000 headers", [HEAD + b"X: y\r\n" * 5_000 + b"\r\n", STALL]),
    Scene("U4 bad chunk size with the headers", [SSE_HEAD + b"zz\r\n{}\r\n", STALL]),
    Scene("U4 bad chunk size after the headers", [SSE_HEAD, 0.02, b"zz\r\n{}\r\n", STALL]),
    Scene("U4 endless 1xx", drip(b"HTTP/1.1 100 Continue\r\n\r\n"), "upstream_timeout", timers=SOON),
    Scene("U5 short length", [answer(b'{"choices": []}')[:-3], FIN]),
    Scene("U5 short length, RST", [answer(b'{"choices": []}')[:-3], 0.01, RST]),
    Scene("U5 cut chunk", [SSE_HEAD, b"ff\r\ndata: ", FIN]),
    Scene("U5 RST after the headers", [SSE_HEAD, 0.02, RST]),
    Scene("U6 nothing at all, chunked", [SSE_HEAD, LAST_CHUNK]),
    Scene("U6 nothing at all, until close", [SSE_HEAD_UNTIL_CLOSE, FIN]),
    Scene("U6 half an event", [SSE_HEAD, chunk(event(delta("half"))[:-1]), LAST_CHUNK]),
    Scene("U6 comments only, then the end", [SSE_HEAD, COMMENT, COMMENT, LAST_CHUNK]),
    Scene("U8 silence before the headers", [STALL], "upstream_timeout", timers=SOON),
    Scene("U8 silence after half the headers", [HEAD, STALL], "upstream_timeout", timers=SOON),
    Scene("U8 silence before the first event", [SSE_HEAD, STALL], "upstream_timeout", STREAM, QUICK),
    Scene("U8 silence in a whole body", [answer(b"{}")[:-1], STALL], "upstream_timeout", WHOLE, SOON),
    Scene("U8 total time before the first event", [SSE_HEAD, STALL], "upstream_timeout", STREAM,
          {"total_timeout_s": 0.15}),
    Scene("U8 silence in the body of an error", [answer(b"{}", 500)[:-1], STALL], "upstream_timeout", timers=SOON),
    Scene("U8 silence in a page", [PAGE_HEAD, STALL], "upstream_timeout", STREAM, SOON),
    Scene("U9 trickle", [SSE_HEAD, *drip(chunk(b"d"))], "upstream_timeout", STREAM, QUICK),
    Scene("U9 trickle of a whole body", [SSE_HEAD, *drip(chunk(b"{"))], "upstream_timeout", WHOLE, SOON),
    Scene("U9 comments for ever", [SSE_HEAD, *drip(COMMENT)], "upstream_timeout", STREAM, QUICK),
    Scene("U9 named pings without data", [SSE_HEAD, *drip(NAMED_PING)], "upstream_timeout", STREAM, QUICK),
    Scene("U9 pings with empty data", [SSE_HEAD, *drip(chunk(b"data:\n\n"))], "upstream_timeout", STREAM, QUICK),
    Scene("U11 unknown encoding", [answer(b"{}", Content_Encoding="br")]),
    Scene("U11 double encoding", [answer(gzip.compress(gzip.compress(b"{}")), Content_Encoding="gzip, gzip")]),
    Scene("U11 not encoded as it says", [NO_GZIP]),
    Scene("U11 cut inside", [CUT_GZIP]),
    Scene("U13 301", [answer(b"", 301, Location="http://127.0.0.1:9/elsewhere")]),
    Scene("U13 303", [answer(b"", 303, Location="/v1/models")]),
    Scene("U13 307", [answer(b"", 307, Location="//127.0.0.1:9/elsewhere")]),
    Scene("U13 308 without a location", [answer(b"", 308)]),
    Scene("U15 HTML", [answer(HTML, content_type="text/html")]),
    Scene("U15 HTML that says it is a stream", [answer(HTML, content_type="text/event-stream")]),
    Scene("U15 no content", [b"HTTP/1.1 204 No Content\r\n\r\n"]),
    Scene("U15 an error object", [answer({"error": {"message": "out of memory"}})]),
    Scene("U15 an error word", [answer({"error": "out of memory"})]),
    Scene("U15 an error in a list", [answer([{"error": {"message": "out of memory"}}])]),
    Scene("U15 an array", [answer([1])]),
    Scene("U15 an error event first", [SSE_HEAD, chunk(ERROR), STALL], streams=STREAM),
    Scene("U15 a named error event first", [SSE_HEAD, chunk(b"event: error\n" + ERROR), STALL], streams=STREAM),
    Scene("U15 a flat error event first", [SSE_HEAD, chunk(b'event: error\ndata: {"message": "boom"}\n\n'), STALL],
          streams=STREAM),
    Scene("U15 an error event after a comment", [SSE_HEAD, COMMENT, chunk(ERROR), STALL], streams=STREAM),
    Scene("U15 an error event in one piece with the first", [SSE_HEAD, chunk(event(delta("a")) + ERROR), STALL],
          streams=STREAM),
]  # fmt: skip

CASES = [
    pytest.param(scene, stream, id=f"{scene.name}{' stream' if stream else ''}")
    for scene in SCENES
    for stream in scene.streams
]


@pytest.mark.parametrize(("scene", "stream"), CASES)
async def test_a_fault_on_the_only_channel_is_the_callers_answer(
    gateway_with: StartGateway,
    scene: Scene,
    stream: bool,
) -> None:
    async with ScriptedUpstream(scene.script) as bad:
        gateway = await gateway_with(site(channel(bad.base_url, "bad", **scene.timers)))
        heard = await call(gateway, stream=stream)
        check_error(heard, scene.code)
        row = await audit(gateway, status=heard.status, stream=stream, id=heard.request_id)
        check_row_of_failure(row, scene.code, attempts=1)
        assert len(bad.received) == 1


REPEATED = {"error": {"message": "refused: provider-key"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [200, 400, 404, 429, 500, 503])
async def test_the_key_of_a_channel_is_masked_wherever_a_provider_repeats_it(
    gateway_with: StartGateway,
    status: int,
    stream: bool,
) -> None:
    # It does not look like a key, so only the channel's own knowledge of it can mask it.
    async with ScriptedUpstream([answer(REPEATED, status)]) as bad:
        gateway = await gateway_with(site(channel(bad.base_url)))
        heard = await call(gateway, stream=stream)
        assert heard.status == (status if status in {400, 404, 429} else 502)
        assert b"refused" in heard.body
        assert b"provider-key" not in heard.body


@pytest.mark.parametrize(("scene", "stream"), CASES)
async def test_with_a_second_channel_the_caller_never_learns_of_a_fault(
    gateway_with: StartGateway,
    scene: Scene,
    stream: bool,
) -> None:
    async with ScriptedUpstream(scene.script) as bad, ScriptedUpstream(good_script(stream=stream)) as good:
        gateway = await gateway_with(site(channel(bad.base_url, "bad", **scene.timers), healthy(good)))
        heard = await call(gateway, stream=stream)
        assert (heard.status, heard.whole) == (200, True)
        assert b"error" not in heard.body
        assert b"good" in heard.body or b"hello" in heard.body
        assert (len(bad.received), len(good.received)) == (1, 1)
        row = await audit(gateway, stream=stream)
        check_row_of_success(row, "healthy", attempts=2)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("act", [FIN, RST])
async def test_an_idle_connection_that_closed_is_replaced_without_another_attempt(
    gateway_with: StartGateway,
    act: Act,
    stream: bool,
) -> None:
    good = good_script(stream=stream)
    async with ScriptedUpstream(good, [act], good) as up:
        gateway = await gateway_with(site(channel(up.base_url, "only")))
        assert (await call(gateway, stream=stream)).status == 200
        await gateway.rows(1)
        await asyncio.sleep(0.02)
        assert (await call(gateway, stream=stream)).status == 200
        for row in await gateway.rows(2):
            check_row_of_success(row, "only", attempts=1)
        assert [seen.connection for seen in up.received] == [1, 1, 2]
