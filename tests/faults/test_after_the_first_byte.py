"""A provider fails after the caller has heard from it: one error event, the end, and never another attempt."""

import zlib
from collections.abc import Mapping

import attrs
import pytest

from gateway.domain.usage import estimate_tokens
from tests.conftest import StartGateway
from tests.fakes.gateway import channel
from tests.fakes.upstream import (
    FIN,
    LAST_CHUNK,
    RST,
    SSE_HEAD,
    SSE_HEAD_UNTIL_CLOSE,
    STALL,
    Script,
    ScriptedUpstream,
    chunk,
    delta,
    event,
    usage_frame,
)
from tests.faults.scene import QUICK, audit, call, check_broken_stream, good_script, healthy, site
from tests.faults.test_before_the_first_byte import COMMENT, ERROR, drip

ONE, TWO = event(delta("Once upon a time")), event(delta(" there was a king"))
TEXT = "Once upon a time there was a king"
TOLD = [SSE_HEAD, chunk(ONE), 0.01, chunk(TWO), 0.01]
"""What every scene begins with: two events, each of which has reached the caller."""
SPACED_ERROR = b'data: { "error" : { "message" : "no GPU is free" } }\r\n\r\n'
LONG_HEAD = SSE_HEAD_UNTIL_CLOSE.replace(b"Connection: close", b"Content-Length: 9999")
_packer = zlib.compressobj(wbits=31)
PACKED = _packer.compress(ONE + TWO) + _packer.flush(zlib.Z_SYNC_FLUSH)
GZIP_HEAD = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")


@attrs.frozen
class Scene:
    """A fault after two events; ``told`` is the whole script where they are framed differently."""

    name: str
    then: Script = ()
    code: str = "upstream_error"
    timers: Mapping[str, float] = {}
    told: Script = TOLD


SCENES = [
    Scene("U4 bad chunk size", [b"zz\r\nwhat\r\n", STALL]),
    Scene("U5 FIN between chunks", [FIN]),
    Scene("U5 RST", [RST]),
    Scene("U5 cut chunk", [b"ff\r\ndata: {", FIN]),
    Scene("U5 short length, FIN", [FIN], told=[LONG_HEAD, ONE, 0.01, TWO, 0.01]),
    Scene("U5 short length, RST", [RST], told=[LONG_HEAD, ONE, 0.01, TWO, 0.01]),
    Scene("U6 chunked", [LAST_CHUNK]),
    Scene("U6 until close", [FIN], told=[SSE_HEAD_UNTIL_CLOSE, ONE, 0.01, TWO, 0.01]),
    Scene("U6 half an event", [chunk(event(delta("never"))[:-1]), LAST_CHUNK]),
    Scene("U6 half an end mark", [chunk(b"data: [DON"), LAST_CHUNK]),
    Scene("U8 silence", [STALL], "upstream_timeout", QUICK),
    Scene("U8 total time", [STALL], "upstream_timeout", {"total_timeout_s": 0.2}),
    Scene("U8 total time under steady comments", drip(COMMENT), "upstream_timeout", {"total_timeout_s": 0.2}),
    Scene("U9 trickle", drip(chunk(b"d")), "upstream_timeout", QUICK),
    Scene("U9 comments for ever", drip(COMMENT), "upstream_timeout", QUICK),
    Scene("U9 named pings without data", drip(chunk(b"event: ping\n\n")), "upstream_timeout", QUICK),
    Scene("U11 not encoded as it says", [chunk(b"\x00" * 64), STALL], told=[GZIP_HEAD, chunk(PACKED), 0.01]),
    Scene("U15 an error event", [chunk(ERROR), STALL]),
    Scene("U15 a named error event", [chunk(b"event: error\n" + ERROR), STALL]),
    Scene("U15 an error event, other spacing", [chunk(SPACED_ERROR), STALL]),
    Scene("U15 an error word", [chunk(b'data: {"error": "no GPU is free"}\n\n'), STALL]),
    Scene("U15 an error event and then the end mark", [chunk(ERROR + b"data: [DONE]\n\n"), LAST_CHUNK]),
    Scene("U15 an error event in pieces", [chunk(ERROR[:9]), 0.01, chunk(ERROR[9:-1]), 0.01, chunk(b"\n"), STALL]),
]  # fmt: skip


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_a_broken_stream_ends_in_one_error_event_and_is_charged_for_what_came(
    gateway_with: StartGateway,
    scene: Scene,
) -> None:
    async with ScriptedUpstream([*scene.told, *scene.then]) as bad, ScriptedUpstream(good_script(stream=True)) as good:
        gateway = await gateway_with(site(channel(bad.base_url, "bad", **scene.timers), healthy(good)))
        heard = await call(gateway, stream=True)
        before = check_broken_stream(heard, scene.code)
        assert before[:2] == [ONE, TWO]
        assert b"never" not in heard.body
        assert (len(bad.received), len(good.received)) == (1, 0)
        broken = [] if LAST_CHUNK in scene.then else [bad]
        row = await audit(gateway, *broken, ending="upstream_failed", error_code=scene.code, attempts=1, channel="bad")
        assert (row.status, row.usage_source, row.prompt_tokens) == (200, "estimate", 1)
        assert row.completion_tokens == estimate_tokens(len(TEXT))
        assert row.first_byte_ms is not None


async def test_a_broken_stream_whose_usage_was_told_is_charged_by_it(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([*TOLD, chunk(event(usage_frame(11, 13))), FIN]) as bad:
        gateway = await gateway_with(site(channel(bad.base_url)))
        assert check_broken_stream(await call(gateway, stream=True), "upstream_error") == [ONE, TWO]
        row = await audit(gateway, bad, ending="upstream_failed", usage_source="upstream")
        assert (row.prompt_tokens, row.completion_tokens, row.cost_nanos) == (11, 13, 37_000)


async def test_an_end_mark_in_lower_case_is_none(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([*TOLD, chunk(b"data: [done]\n\n"), LAST_CHUNK]) as bad:
        gateway = await gateway_with(site(channel(bad.base_url)))
        check_broken_stream(await call(gateway, stream=True), "upstream_error")
        await audit(gateway, ending="upstream_failed", usage_source="estimate")


async def test_the_key_of_a_channel_is_masked_wherever_a_provider_repeats_it(gateway_with: StartGateway) -> None:
    # It does not look like a key, so only the channel's own knowledge of it can mask it.
    told = b'data: {"error": {"message": "refused: provider-key"}}\n\n'
    async with ScriptedUpstream([*TOLD, chunk(told), STALL]) as bad:
        gateway = await gateway_with(site(channel(bad.base_url)))
        check_broken_stream(await call(gateway, stream=True), "upstream_error")
        await audit(gateway, bad, ending="upstream_failed")


async def test_a_fault_of_one_stream_leaves_the_others_alone(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([*TOLD, RST], good_script(stream=True)) as up:
        gateway = await gateway_with(site(channel(up.base_url)))
        check_broken_stream(await call(gateway, stream=True), "upstream_error")
        heard = await call(gateway, stream=True)
        assert heard.body.endswith(b"data: [DONE]\n\n")
        rows = await gateway.rows(2)
        assert [row.ending for row in rows] == ["upstream_failed", "completed"]
