"""Who leaves early pays for what was bought from the provider; and nobody pays for what was not.

What every phase of leaving costs is in ``test_caller_leaves.py`` and ``test_disconnect_everywhere.py``, what a
provider's fault costs in ``test_matrix.py``.
"""

import asyncio
from typing import Any

import pytest

from gateway.domain.tokens import estimate_text
from tests.conftest import StartGateway
from tests.fakes.gateway import CHAT, HELLO, RunningGateway, channel
from tests.fakes.upstream import COMPLETION, LAST_CHUNK, SSE_HEAD, STALL, ScriptedUpstream, answer, chunk, delta, event
from tests.faults.scene import PRICE, audit, check_charged_once, good_script, healthy, hear, until
from tests.faults.studio import IMAGES, leave

LONG = "Sixty thousand tokens, more or less. " * 6_000
CHINESE = "我是一种新型的语言模型。" * 500
IMAGE = {"model": "m", "prompt": "a cat", "n": 4, "response_format": "b64_json"}
SPEECH = {"model": "m", "input": "Words that are spoken. " * 40, "voice": "alloy"}
PRICES = {**PRICE, "usd_per_image": 0.25, "usd_per_million_characters": 15}


def serve(*ups: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {"channel": list(ups), "price": [PRICES], **sections}


async def ask_and_leave(gateway: RunningGateway, up: ScriptedUpstream, body: dict[str, Any], path: str = CHAT) -> Any:
    """Hang up when the provider has been sent all of it; the row of the call."""

    async def ask() -> None:
        async with gateway.post(body, path) as response:
            await hear(response)

    calling = asyncio.create_task(ask())
    await until(lambda: up.received)
    await asyncio.sleep(0.02)
    await leave(calling)
    await asyncio.wait_for(up.hung_up.wait(), 15)
    (row,) = await gateway.rows(1)
    await gateway.check_books()
    check_charged_once(gateway, row.cost_nanos)
    assert (row.ending, row.status) == ("client_closed", 499)
    assert 0 <= row.cost_nanos <= row.reserved_nanos
    return row


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", [LONG, CHINESE], ids=["English", "Chinese"])
async def test_a_long_prompt_is_paid_for_though_nobody_waits_for_the_answer(
    standing_with: StartGateway, text: str, stream: bool
) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await standing_with(serve(channel(up.base_url)))
        row = await ask_and_leave(
            gateway, up, {**HELLO, "messages": [{"role": "user", "content": text}], "stream": stream}
        )
        assert row.prompt_tokens == estimate_text(text)
        assert (row.completion_tokens, row.usage_source, row.cost_nanos) == (0, "estimate", row.prompt_tokens * 1_000)


async def test_images_are_paid_for_as_they_were_reserved(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await standing_with(serve(channel(up.base_url)))
        row = await ask_and_leave(gateway, up, IMAGE, IMAGES)
        assert (row.images, row.usage_source) == (4, "estimate")
        assert row.cost_nanos == row.reserved_nanos >= 1_000_000_000


@pytest.mark.parametrize("form", ["audio", "sse"])
async def test_speech_is_paid_for_as_it_was_reserved(standing_with: StartGateway, form: str) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await standing_with(serve(channel(up.base_url)))
        row = await ask_and_leave(gateway, up, {**SPEECH, "stream_format": form}, "/v1/audio/speech")
        assert row.characters == len(SPEECH["input"])
        assert row.cost_nanos == row.reserved_nanos > 0


async def test_free_is_free(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await standing_with(serve(channel(up.base_url), billing={"abandoned": "free"}))
        row = await ask_and_leave(gateway, up, IMAGE, IMAGES)
        assert (row.images, row.usage_source, row.cost_nanos) == (0, "none", 0)


async def test_an_error_that_is_on_its_way_costs_nothing(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({"error": {"message": "no"}}, 400)[:-1], STALL]) as up:
        gateway = await standing_with(serve(channel(up.base_url)))
        row = await ask_and_leave(gateway, up, IMAGE, IMAGES)
        assert (row.usage_source, row.cost_nanos) == ("none", 0)


async def test_who_is_answered_by_another_channel_pays_for_that_answer_alone(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as slow, ScriptedUpstream(good_script(stream=False)) as good:
        gateway = await standing_with(serve(channel(slow.base_url, "slow", total_timeout_s=0.15), healthy(good)))
        async with gateway.post(HELLO) as response:
            assert response.status == 200
        await audit(gateway, ending="completed", channel="healthy", attempts=2, prompt_tokens=5, completion_tokens=7)


async def test_what_one_channel_bought_is_paid_for_where_no_other_answers(standing_with: StartGateway) -> None:
    """Once, whatever came of the others: the second refuses a connection, and has bought nothing."""
    async with ScriptedUpstream([STALL]) as slow:
        nobody = channel("http://127.0.0.1:9/v1", "nobody", priority=-1)
        gateway = await standing_with(serve(channel(slow.base_url, "slow", total_timeout_s=0.15), nobody))
        async with gateway.post(HELLO) as response:
            assert response.status in {502, 504}
        await audit(gateway, ending="upstream_failed", attempts=2, cost_nanos=1_000, usage_source="estimate")


async def test_two_channels_that_buy_it_in_vain_are_paid_once(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as one, ScriptedUpstream([STALL]) as two:
        ups = [channel(up.base_url, name, total_timeout_s=0.15) for name, up in (("one", one), ("two", two))]
        gateway = await standing_with(serve(*ups))
        async with gateway.post(HELLO) as response:
            assert response.status == 504
        await audit(gateway, ending="upstream_failed", attempts=2, cost_nanos=1_000)


async def test_who_leaves_before_a_connection_is_made_pays_nothing(standing_with: StartGateway) -> None:
    """A listener that never answers TLS: the request is not written."""
    accepted = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        while await reader.read(1024):
            pass
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gateway = await standing_with(serve(channel(f"https://127.0.0.1:{port}/v1")))
    calling = asyncio.create_task(_post(gateway))
    await accepted.wait()
    await leave(calling)
    await audit(gateway, ending="client_closed", attempts=1, cost_nanos=0, usage_source="none")
    server.close()


async def _post(gateway: RunningGateway) -> None:
    async with gateway.post(HELLO) as response:
        await hear(response)


async def test_what_was_thought_and_what_a_tool_is_told_is_counted_as_text_is(standing_with: StartGateway) -> None:
    thought, told = (
        {"reasoning_content": CHINESE[:200]},
        {"tool_calls": [{"index": 0, "function": {"arguments": LONG[:900]}}]},
    )
    frames = [
        event({**delta(""), "choices": [{"index": 0, "delta": said, "finish_reason": None}]})
        for said in (thought, told)
    ]
    async with ScriptedUpstream([SSE_HEAD, *map(chunk, frames), LAST_CHUNK]) as up:
        gateway = await standing_with(serve(channel(up.base_url)))
        async with gateway.post({**HELLO, "stream": True}) as response:
            assert b"error" in await response.read()
        row = await audit(gateway, ending="upstream_failed", usage_source="estimate")
        expected = estimate_text(CHINESE[:200]) + estimate_text(LONG[:900])
        assert row.completion_tokens == pytest.approx(expected, abs=2)


async def test_a_call_that_names_itself_pays_again_where_it_was_left_and_not_where_it_is_replayed(
    standing_with: StartGateway,
) -> None:
    async with ScriptedUpstream([STALL], [answer(COMPLETION)]) as up:
        gateway = await standing_with(serve(channel(up.base_url)))
        named = {"headers": {"Idempotency-Key": "one"}}

        async def ask() -> int:
            async with gateway.post(HELLO, **named) as response:
                await response.read()
                return response.status

        calling = asyncio.create_task(ask())
        await until(lambda: up.received)
        await asyncio.sleep(0.02)
        await leave(calling)
        await gateway.rows(1)
        assert [await ask(), await ask()] == [200, 200]
        assert [row.cost_nanos for row in await gateway.rows(3)] == [1_000, 19_000, 0]
        assert len(up.received) == 2


async def test_an_image_that_was_made_and_cannot_be_fetched_is_not_charged(standing_with: StartGateway) -> None:
    """The caller gets nothing of it, and has no part in that."""
    async with ScriptedUpstream([answer({"created": 1, "data": [{"url": "http://127.0.0.1:9/x.png"}]})]) as up:
        gateway = await standing_with(serve(channel(up.base_url)))
        async with gateway.post(IMAGE, IMAGES) as response:
            assert response.status == 502
        (row,) = await gateway.rows(1)
        assert (row.images, row.cost_nanos) == (0, 0)
