"""A provider closes a kept connection under a request: what may be sent again, and that it is said each time."""

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.upstream.interface import RESEND_WITHIN_S
from tests.support.fault_scene import (
    Heard,
    call,
    check_error,
    check_row_of_failure,
    check_row_of_success,
    check_trail,
    good_script,
    healthy,
    hear,
    site,
)
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.image_providers import draw
from tests.support.scripted_upstream import FIN, RST, STALL, Act, Script, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

SOUND = answer(b"RIFF", content_type="audio/wav")
BOTH_ENDS = pytest.mark.parametrize("act", [FIN, RST])


async def post(gateway: RunningGateway, path: str, body: Mapping[str, Any]) -> Heard:
    async with gateway.post(body, path=path) as response:
        return await hear(response)


@pytest.mark.parametrize("stream", [False, True])
@BOTH_ENDS
async def test_a_call_on_a_stale_connection_is_sent_again_as_an_attempt_of_its_own(
    standing_with: StartGateway, act: Act, stream: bool
) -> None:
    good = good_script(stream=stream)
    async with ScriptedUpstream(good, [act], good) as up, ScriptedUpstream(good) as other:
        gateway = await standing_with(site(channel(up.base_url, "first"), healthy(other)))
        await call(gateway, stream=stream)
        await gateway.rows(1)
        await asyncio.sleep(0.02)
        with capture_logs() as logs:
            heard = await call(gateway, stream=stream)
        row = (await gateway.rows(2))[-1]
        check_row_of_success(row, "first", attempts=2)
        check_trail(heard, row, ("first", "upstream_error"), ("first", "ok"))
        assert [(line["channel"], line["error"]) for line in logs if line["event"] == "attempt_failed"] == [
            ("first", "The provider broke the connection")
        ]
        assert [seen.connection for seen in up.received] == [1, 1, 2]
        assert not other.received


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_the_provider_had_for_a_while_is_not_sent_to_it_again(
    standing_with: StartGateway, stream: bool
) -> None:
    good = good_script(stream=stream)
    async with ScriptedUpstream(good, [RESEND_WITHIN_S + 0.02, FIN]) as up, ScriptedUpstream(good) as other:
        gateway = await standing_with(site(channel(up.base_url, "first"), healthy(other)))
        await call(gateway, stream=stream)
        await gateway.rows(1)
        heard = await call(gateway, stream=stream)
        row = (await gateway.rows(2))[-1]
        check_row_of_success(row, "healthy", attempts=2)
        check_trail(heard, row, ("first", "upstream_error"), ("healthy", "ok"))
        assert len(up.received) == 2


async def test_where_one_attempt_is_all_a_stale_connection_is_the_answer(standing_with: StartGateway) -> None:
    good = good_script(stream=False)
    async with ScriptedUpstream(good, [FIN], good) as up:
        gateway = await standing_with(site(channel(up.base_url, "only"), routing={"max_attempts": 1}))
        await call(gateway, stream=False)
        await gateway.rows(1)
        check_error(await call(gateway, stream=False), "upstream_error")
        check_row_of_failure((await gateway.rows(2))[-1], "upstream_error", attempts=1)
        assert len(up.received) == 2


async def test_stale_connections_are_not_held_against_the_channel(standing_with: StartGateway) -> None:
    good = good_script(stream=False)
    scripts: list[Script] = [good, *([FIN], good) * 5]
    async with ScriptedUpstream(*scripts) as up:
        gateway = await standing_with(site(channel(up.base_url, "only")))
        heard = [await call(gateway, stream=False) for _ in range(6)]
        assert [one.status for one in heard] == [200] * 6
        assert [one.headers["x-gateway-attempts"] for one in heard] == ["1", *["2"] * 5]


@BOTH_ENDS
@pytest.mark.parametrize(
    ("path", "body", "good"),
    [
        ("/v1/audio/speech", {"input": "hi", "voice": "alloy"}, SOUND),
        ("/v1/images/generations", {"prompt": "a cat", "response_format": "b64_json"}, None),
    ],
    ids=["speech", "images"],
)
async def test_what_makes_a_product_is_sent_on_a_fresh_connection_and_once(
    standing_with: StartGateway, act: Act, path: str, body: dict[str, Any], good: bytes | None
) -> None:
    made = good or answer({"created": 1, "data": [{"b64_json": b64encode(draw()).decode()}]})
    async with ScriptedUpstream([made], [made], [act], [STALL]) as up:
        gateway = await standing_with(site(channel(up.base_url, "only")))
        asked = {"model": "m", **body}
        assert [(await post(gateway, path, asked)).status for _ in range(2)] == [200, 200]
        assert (await post(gateway, path, asked)).status == 502
        assert [seen.connection for seen in up.received] == [1, 2, 3]


@pytest.mark.parametrize(
    "more",
    [
        {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
        {"tools": [{"type": "image_generation"}]},
    ],
    ids=["audio", "image tool"],
)
async def test_a_chat_that_makes_more_than_text_is_not_sent_again(
    standing_with: StartGateway, more: dict[str, Any]
) -> None:
    good = good_script(stream=False)
    async with ScriptedUpstream(good, [FIN], good) as up:
        only = channel(up.base_url, "only", allow_fields=["tools.image_generation"])
        gateway = await standing_with(site(only))
        await call(gateway, stream=False)
        heard = await post(gateway, "/v1/chat/completions", {**HELLO, **more})
        assert heard.status == 502
        assert len(up.received) == 2
