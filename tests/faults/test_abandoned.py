"""Who leaves early pays for what was bought from the provider; and nobody pays for what was not.

What every phase of leaving costs is in ``test_caller_leaves.py`` and ``test_disconnect_everywhere.py``, what a
provider's fault costs in ``test_matrix.py``.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import attrs
import orjson
import pytest

from gateway.domain.request_log import RequestRecord
from gateway.domain.token_estimate import estimate_text
from gateway.server.context import SERVICES
from tests.support.fault_scene import (
    PRICE,
    UNHURRIED,
    WAIT_LIMIT_S,
    audit,
    check_charged_once,
    good_script,
    healthy,
    hear,
    until,
)
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.image_scene import DATA, IMAGES, leave, read_stored
from tests.support.leaving_clients import Writer, close, reset
from tests.support.scripted_upstream import (
    COMPLETION,
    FIN,
    LAST_CHUNK,
    SSE_HEAD,
    STALL,
    Flood,
    Received,
    ScriptedUpstream,
    Step,
    answer,
    chat_events,
    chunk,
    delta,
    event,
)
from tests.support.slow_readers import unread
from tests.support.started_gateways import StartGateway
from tests.support.stored_jobs import SHORT, stored

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
    assert (row.outcome, row.status) == ("client_closed", 499)
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
        await audit(gateway, outcome="completed", channel="healthy", attempts=2, prompt_tokens=5, completion_tokens=7)


async def test_what_one_channel_bought_is_paid_for_where_no_other_answers(standing_with: StartGateway) -> None:
    """Once, whatever came of the others: the second refuses a connection, and has bought nothing."""
    async with ScriptedUpstream([STALL]) as slow:
        anonymous = channel("http://127.0.0.1:9/v1", "nobody", priority=-1)
        gateway = await standing_with(serve(channel(slow.base_url, "slow", total_timeout_s=0.15), anonymous))
        async with gateway.post(HELLO) as response:
            assert response.status in {502, 504}
        await audit(gateway, outcome="failed", attempts=2, cost_nanos=1_000, usage_source="estimate")


async def test_two_channels_that_buy_it_in_vain_are_paid_once(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as one, ScriptedUpstream([STALL]) as two:
        ups = [channel(up.base_url, name, total_timeout_s=0.15) for name, up in (("one", one), ("two", two))]
        gateway = await standing_with(serve(*ups))
        async with gateway.post(HELLO) as response:
            assert response.status == 504
        await audit(gateway, outcome="failed", attempts=2, cost_nanos=1_000)


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
    await audit(gateway, outcome="client_closed", attempts=1, cost_nanos=0, usage_source="none")
    server.close()


async def _post(gateway: RunningGateway) -> None:
    async with gateway.post(HELLO) as response:
        await hear(response)


async def test_what_was_thought_and_what_a_tool_is_told_is_counted_as_text_is(standing_with: StartGateway) -> None:
    thought, reported = (
        {"reasoning_content": CHINESE[:200]},
        {"tool_calls": [{"index": 0, "function": {"arguments": LONG[:900]}}]},
    )
    frames = [
        event({**delta(""), "choices": [{"index": 0, "delta": body, "finish_reason": None}]})
        for body in (thought, reported)
    ]
    async with ScriptedUpstream([SSE_HEAD, *map(chunk, frames), LAST_CHUNK]) as up:
        gateway = await standing_with(serve(channel(up.base_url)))
        async with gateway.post({**HELLO, "stream": True}) as response:
            assert b"error" in await response.read()
        row = await audit(gateway, outcome="failed", usage_source="estimate")
        expected = estimate_text(CHINESE[:200]) + estimate_text(LONG[:900])
        assert row.completion_tokens == pytest.approx(expected, abs=2)


async def test_a_call_that_names_itself_pays_again_where_it_was_left_and_not_where_it_is_replayed(
    standing_with: StartGateway,
) -> None:
    async with ScriptedUpstream([STALL], [answer(COMPLETION)]) as up:
        gateway = await standing_with(serve(channel(up.base_url)))
        named: dict[str, Any] = {"headers": {"Idempotency-Key": "one"}}

        async def ask() -> int:
            async with gateway.post(HELLO, **named) as response:
                await response.read()
                found: int = response.status
                return found

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


# ---- billing.abandoned = "drain"

DRAIN: dict[str, Any] = {"billing": {"abandoned": "drain"}}
SPEECH_PATH = "/v1/audio/speech"
MESSAGES = "/v1/messages"
WORDS = chat_events("some", "words")
USED = {"input_tokens": 30, "output_tokens": 70, "total_tokens": 100}
SPOKEN = b"RIFF" + b"sound " * 100
SOUND_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\n"


def piece(value: dict[str, Any]) -> bytes:
    return chunk(event(value))


@attrs.frozen
class Call:
    """What is asked, what the provider has said when the client leaves and what it says after, and what that costs.

    ``heard``: the client has the beginning of the answer.
    """

    body: dict[str, Any]
    before: list[Step]
    after: list[Step]
    cost: int
    path: str = CHAT
    heard: bool = False
    source: str = "upstream"


ANTHROPIC = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**HELLO, "stream": True}
STORY = CHINESE[:1_200]
ENDED: list[Step] = [*map(chunk, WORDS[1:]), LAST_CHUNK]
CALLS = {
    "a whole answer": Call(HELLO, [], [answer(COMPLETION)], 19_000),
    "a whole answer, begun": Call(HELLO, [answer(COMPLETION)[:-9]], [answer(COMPLETION)[-9:]], 19_000),
    "a stream before its headers": Call(STREAM, [], [SSE_HEAD, *map(chunk, WORDS), LAST_CHUNK], 19_000),
    "a stream before its first event": Call(STREAM, [SSE_HEAD], [*map(chunk, WORDS), LAST_CHUNK], 19_000),
    "a stream": Call(STREAM, [SSE_HEAD, chunk(WORDS[0])], ENDED, 19_000, heard=True),
    "a whole answer for a stream": Call(STREAM, [answer(COMPLETION)[:-9]], [answer(COMPLETION)[-9:]], 19_000),
    "a translated answer": Call(ANTHROPIC, [], [answer(COMPLETION)], 19_000, MESSAGES),
    "a translated stream": Call(
        {**ANTHROPIC, "stream": True}, [SSE_HEAD, chunk(WORDS[0])], ENDED, 19_000, MESSAGES, heard=True
    ),
    "images": Call(
        IMAGE, [], [answer({"created": 1, "data": [{"b64_json": DATA}] * 2, "usage": USED})], 500_170_000, IMAGES
    ),
    "images for a stream": Call(
        {**IMAGE, "n": 1, "stream": True},
        [],
        [answer({"created": 1, "data": [{"b64_json": DATA}], "usage": USED})],
        250_170_000,
        IMAGES,
    ),
    "speech": Call(
        SPEECH, [SOUND_HEAD, chunk(SPOKEN)], [chunk(SPOKEN), LAST_CHUNK], 16_565_000, SPEECH_PATH,
        heard=True, source="estimate",
    ),
    "speech as events": Call(
        {**SPEECH, "stream_format": "sse"},
        [SSE_HEAD, piece({"type": "speech.audio.delta", "audio": "AAAA"})],
        [piece({"type": "speech.audio.done", "usage": USED}), LAST_CHUNK],
        13_970_000,
        SPEECH_PATH,
        heard=True,
    ),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", CALLS)
WAYS = pytest.mark.parametrize("hang_up", [close, reset])


class Provider:
    """One that goes on when it is told to, and says ``after`` then."""

    def __init__(self, before: list[Step], after: list[Step]) -> None:
        self._going_on = asyncio.Event()
        self.up = ScriptedUpstream([*before, self._wait, *after])

    async def _wait(self, _received: Received) -> None:
        await self._going_on.wait()

    def go_on(self) -> None:
        self._going_on.set()


async def send(gateway: RunningGateway, body: dict[str, Any], path: str = CHAT) -> tuple[asyncio.StreamReader, Writer]:
    """A call over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    raw = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    return reader, writer


async def send_and_leave(
    gateway: RunningGateway,
    up: ScriptedUpstream,
    body: dict[str, Any],
    path: str = CHAT,
    *,
    heard: bool = False,
    hang_up: Callable[[Writer], None] = close,
) -> None:
    """Hang up when the provider has been sent all of it; return when its answer is read for nobody."""
    reader, writer = await send(gateway, body, path)
    await until(lambda: up.received)
    if heard:
        await reader.readuntil(b"\r\n\r\n")
        await reader.read(1)
    await asyncio.sleep(0.02)
    hang_up(writer)
    if gateway.app[SERVICES].billing.settlement.find_abandoned() == "drain":
        await until(lambda: find_drains(gateway).attempts)


def find_drains(gateway: RunningGateway) -> Any:
    return gateway.app[SERVICES].proxy.drains


async def check_left(gateway: RunningGateway, **expected: Any) -> RequestRecord:
    """One row of a client that left, money that adds up, and nothing that goes on."""
    (row,) = await gateway.rows(1)
    assert row.outcome == "client_closed"
    assert row.error_code is None
    assert {name: getattr(row, name) for name in expected} == expected
    assert 0 <= row.cost_nanos <= row.reserved_nanos
    assert row.status == (200 if row.first_byte_ms is not None else 499)
    check_at_rest(gateway)
    await gateway.check_books()
    check_charged_once(gateway, row.cost_nanos)
    return row


def check_at_rest(gateway: RunningGateway) -> None:
    services = gateway.app[SERVICES]
    running = services.routing.load_balancer.running
    assert (running, len(services.active_requests), services.drain.active_count) == (0, 0, 0)
    assert not find_drains(gateway).attempts


@WAYS
@EACH
async def test_what_the_provider_says_after_the_client_left_is_charged(
    standing_with: StartGateway, name: str, hang_up: Callable[[Writer], None]
) -> None:
    call = CALLS[name]
    provider = Provider(call.before, call.after)
    async with provider.up as up:
        gateway = await standing_with(serve(channel(up.base_url, **UNHURRIED), **DRAIN))
        await send_and_leave(gateway, up, call.body, call.path, heard=call.heard, hang_up=hang_up)
        services = gateway.app[SERVICES]
        assert (
            services.routing.load_balancer.running,
            len(services.active_requests),
            services.billing.quota.open_reservations,
        ) == (1, 1, 1)
        provider.go_on()
        row = await check_left(gateway, cost_nanos=call.cost, usage_source=call.source, attempts=1)
        assert (row.first_byte_ms is not None) is call.heard
        assert len(up.received) == 1
        async with gateway.post(call.body, call.path) as response:
            await response.read()
        (stayed, _) = await gateway.rows(2)
        for field in ("cost_nanos", "prompt_tokens", "completion_tokens", "images", "characters", "usage_source"):
            assert getattr(stayed, field) == getattr(row, field)


async def test_all_that_came_is_estimated_of_a_stream_whose_provider_does_not_count(
    standing_with: StartGateway,
) -> None:
    events = chat_events("one", STORY, usage=False)
    provider = Provider([SSE_HEAD, chunk(events[0])], [*map(chunk, events[1:]), LAST_CHUNK])
    async with provider.up as up:
        gateway = await standing_with(serve(channel(up.base_url, **UNHURRIED), **DRAIN))
        await send_and_leave(gateway, up, STREAM, heard=True)
        provider.go_on()
        row = await check_left(gateway, usage_source="estimate")
        assert row.completion_tokens == pytest.approx(estimate_text("one" + STORY), abs=2)


@EACH
async def test_a_provider_that_stalls_is_left_at_the_bound_and_paid_as_under_charge(
    gateway_with: StartGateway, name: str
) -> None:
    call = CALLS[name]
    costs = []
    for mode in ("charge", "drain"):
        async with ScriptedUpstream([*call.before, STALL]) as up:
            gateway = await gateway_with(serve(channel(up.base_url, **UNHURRIED), billing={"abandoned": mode}))
            find_drains(gateway).longest_s = 0.1
            await send_and_leave(gateway, up, call.body, call.path, heard=call.heard)
            await asyncio.wait_for(up.hung_up.wait(), WAIT_LIMIT_S)
            row = await check_left(gateway)
            costs.append((row.cost_nanos, row.prompt_tokens, row.completion_tokens, row.images, row.status))
            assert gateway.app[SERVICES].routing.load_balancer.channels["up"].list_tripped() == []
    assert costs[0] == costs[1]
    assert costs[0][0] > 0


FAR = {**HELLO, "messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "https://up/x.png"}}]}]}  # fmt: skip
CONTINUED = {"model": "m", "input": "hi", "previous_response_id": "resp_1"}


@pytest.mark.parametrize("whole", [False, True], ids=["as a stream", "as a whole"])
async def test_a_prompt_of_unknown_length_is_charged_as_its_provider_reports(
    gateway_with: StartGateway, *, whole: bool
) -> None:
    """The client leaves before, and the answer is read to its end; without a report the reservation is charged."""
    usage = {"prompt_tokens": 60_000, "completion_tokens": 7}
    after: list[Step] = [answer({**COMPLETION, "usage": usage})] if whole else [SSE_HEAD, *map(chunk, [
        *WORDS[:-1], event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
                            "usage": usage}), WORDS[-1]]), LAST_CHUNK]  # fmt: skip
    provider = Provider([], after)
    async with provider.up as up:
        quota: dict[str, Any] = {
            "account": [{"name": "acme"}],
            "key": [{"name": "k", "account": "acme", "secret": KEY, "quota_usd": 1}],
        }
        gateway = await gateway_with(serve(channel(up.base_url, **UNHURRIED), **quota))
        await send_and_leave(gateway, up, {**FAR, "stream": not whole})
        provider.go_on()
        row = await check_left(gateway, prompt_tokens=60_000, usage_source="upstream")
        assert row.cost_nanos > 60_000_000


@pytest.mark.parametrize(
    ("ending", "share"), [(STALL, 1.0), (FIN, 0.0)], ids=["no end in time", "the provider breaks off"]
)
async def test_a_prompt_of_unknown_length_without_a_report(
    gateway_with: StartGateway, ending: Step, share: float
) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(WORDS[0]), ending]) as up:
        quota: dict[str, Any] = {
            "account": [{"name": "acme"}],
            "key": [{"name": "k", "account": "acme", "secret": KEY, "quota_usd": 1}],
        }
        gateway = await gateway_with(serve(channel(up.base_url, **UNHURRIED), **quota))
        find_drains(gateway).longest_s = 0.1
        if share:
            await send_and_leave(gateway, up, {**FAR, "stream": True}, heard=True)
            await asyncio.wait_for(up.hung_up.wait(), WAIT_LIMIT_S)
            row = await check_left(gateway, usage_source="estimate")
        else:
            async with gateway.post({**FAR, "stream": True}) as response:
                await hear(response)
            (row,) = await gateway.rows(1)
        assert row.reserved_nanos == 1_000_000_000
        assert row.cost_nanos == pytest.approx(share * row.reserved_nanos, rel=0.01, abs=5_000_000)
        assert row.cost_nanos > 0


@pytest.mark.parametrize("ends", [True, False], ids=["read to its end", "broken off"])
async def test_a_stream_in_the_background_costs_its_end_or_what_was_reserved(
    gateway_with: StartGateway, *, ends: bool
) -> None:
    """The provider goes on after the client has left, who may take up the stream again: no drain bounds the reading."""
    used = {"input_tokens": 40, "output_tokens": 200, "total_tokens": 240}
    created, completed = (
        chunk(b"event: response.%b\ndata: %b\n\n" % (state.encode(), orjson.dumps(
            {"type": f"response.{state}", "response": {
                "id": "resp_1", "object": "response", "status": status, "output": [], "usage": usage}})))
        for state, status, usage in (("created", "queued", None), ("completed", "completed", used))
    )  # fmt: skip
    body = {"model": "m", "input": "hi", "stream": True, "background": True, "max_output_tokens": 500}
    raw = piece({"type": "response.output_text.delta", "item_id": "msg_1", "delta": "hi"})
    provider = Provider([SSE_HEAD, created, raw], [completed, LAST_CHUNK] if ends else [FIN])
    async with provider.up as up:
        gateway = await gateway_with(serve(channel(up.base_url, **UNHURRIED)))
        find_drains(gateway).longest_s = 0.0
        await send_and_leave(gateway, up, body, "/v1/responses", heard=True)
        streams = gateway.app[SERVICES].open_streams.instance
        assert streams is not None
        (stream,) = streams.streams.values()
        await until(lambda: not stream.reader_count)
        provider.go_on()
        (row,) = await gateway.rows(1)
        expected = ("completed", "upstream", 200) if ends else ("failed", "estimate", 500)
        assert (row.outcome, row.usage_source, row.completion_tokens) == expected
        assert 0 < row.cost_nanos <= row.reserved_nanos
        check_at_rest(gateway)
        await gateway.check_books()
        check_charged_once(gateway, row.cost_nanos)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [answer({"error": {"message": "no"}}, 500)]),
        ([], [answer({"error": {"message": "no"}}, 429)]),
        ([], [answer({"error": {"message": "no"}}, 400)]),
        ([], [FIN]),
    ],
    ids=["500", "429", "400", "no answer"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_that_fails_after_the_client_left_is_paid_nothing_and_no_other_is_asked(
    standing_with: StartGateway, before: list[Step], after: list[Step], stream: bool
) -> None:
    provider = Provider(before, after)
    async with provider.up as up, ScriptedUpstream(good_script(stream=stream)) as good:
        gateway = await standing_with(serve(channel(up.base_url, "bad", **UNHURRIED), healthy(good), **DRAIN))
        await send_and_leave(gateway, up, {**HELLO, "stream": stream})
        provider.go_on()
        await check_left(gateway, cost_nanos=0, usage_source="none", attempts=1, channel="bad")
        assert (len(up.received), len(good.received)) == (1, 0)


async def test_a_provider_that_breaks_off_in_its_answer_is_paid_for_the_prompt_and_what_came(
    standing_with: StartGateway,
) -> None:
    provider = Provider([SSE_HEAD, chunk(WORDS[0])], [chunk(event(delta(STORY))), FIN])
    async with provider.up as up:
        gateway = await standing_with(serve(channel(up.base_url, **UNHURRIED), **DRAIN))
        await send_and_leave(gateway, up, STREAM, heard=True)
        provider.go_on()
        row = await check_left(gateway, usage_source="estimate", prompt_tokens=1)
        assert row.completion_tokens == pytest.approx(estimate_text("some" + STORY), abs=2)


async def test_a_breaker_is_told_of_what_a_provider_does_after_the_client_left(gateway_with: StartGateway) -> None:
    provider = Provider([], [answer({}, 500)])
    async with provider.up as up:
        rules: dict[str, Any] = {"routing": {"trip_failures": 1}}
        gateway = await gateway_with(serve(channel(up.base_url, **UNHURRIED), **DRAIN, **rules))
        await send_and_leave(gateway, up, HELLO)
        provider.go_on()
        await check_left(gateway, cost_nanos=0)
        async with gateway.post(HELLO) as response:
            assert response.status in {500, 502, 503}
        assert gateway.app[SERVICES].routing.load_balancer.channels["up"].list_tripped()


async def test_a_stream_without_an_end_is_left_at_so_many_bytes(
    standing_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = chunk(event(delta("a", pad="x" * 10_000)))
    provider = Provider([SSE_HEAD, chunk(WORDS[0])], [Flood(word, 10_000)])
    async with provider.up as up:
        gateway = await standing_with(serve(channel(up.base_url, **UNHURRIED), **DRAIN))
        monkeypatch.setattr(find_drains(gateway), "max_bytes", 1_000_000)
        await send_and_leave(gateway, up, STREAM, heard=True)
        provider.go_on()
        await check_left(gateway, usage_source="estimate", prompt_tokens=1)
        assert up.flooded < 5_000 * len(word)


async def test_a_client_that_reads_slowly_and_leaves_is_drained(gateway_with: StartGateway) -> None:
    word = event(delta("x" * 30_000))
    last = [chunk(item) for item in chat_events()]
    async with ScriptedUpstream([SSE_HEAD, Flood(chunk(word), 800), *last, LAST_CHUNK]) as up:
        gateway = await gateway_with(serve(channel(up.base_url, **UNHURRIED), **DRAIN))
        async with unread(gateway) as response:
            await until(lambda: any(each._paused for each in gateway.runner.server.connections))  # type: ignore[union-attr]
            response.close()
        await check_left(gateway, cost_nanos=19_000, usage_source="upstream")


async def test_one_drain_too_many_is_none(standing_with: StartGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Provider([], [answer(COMPLETION)])
    async with provider.up as up:
        gateway = await standing_with(serve(channel(up.base_url, **UNHURRIED), **DRAIN))
        monkeypatch.setattr(find_drains(gateway), "max_drains", 2)
        for count in (1, 2, 3):
            _, writer = await send(gateway, HELLO)
            await until(lambda count=count: len(up.received) == count)  # type: ignore[misc]
            await asyncio.sleep(0.02)
            close(writer)
            await until(lambda count=count: len(find_drains(gateway).attempts) == min(count, 2))  # type: ignore[misc]
        await until(lambda: gateway.running == 2)
        provider.go_on()
        rows = await gateway.rows(3)
        assert sorted(row.cost_nanos for row in rows) == [1_000, 19_000, 19_000]
        assert {(row.outcome, row.status) for row in rows} == {("client_closed", 499)}
        check_at_rest(gateway)


async def test_a_call_that_is_cancelled_while_it_is_drained_is_charged_for_its_prompt(
    standing_with: StartGateway,
) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await standing_with(serve(channel(up.base_url, **UNHURRIED), **DRAIN))
        await send_and_leave(gateway, up, HELLO)
        (call,) = gateway.app[SERVICES].active_requests.calls.values()
        assert call.cancel()
        await asyncio.wait_for(up.hung_up.wait(), WAIT_LIMIT_S)
        await check_left(gateway, cost_nanos=1_000, usage_source="estimate")


@EACH
async def test_a_shutdown_ends_a_drain_that_lasts_and_it_is_paid_as_under_charge(
    gateway_with: StartGateway, name: str
) -> None:
    call = CALLS[name]
    async with ScriptedUpstream([*call.before, STALL]) as up:
        gateway = await gateway_with(serve(channel(up.base_url, **UNHURRIED), **DRAIN, **SHORT))
        await send_and_leave(gateway, up, call.body, call.path, heard=call.heard)
        async with asyncio.timeout(WAIT_LIMIT_S):
            await gateway.stop()
        assert (gateway.running, len(find_drains(gateway).attempts)) == (0, 0)
        await until(lambda: up.open_connections == 0)
        (row,) = await read_stored(gateway)
        assert (row.outcome, row.error_code) == ("client_closed", None)
        assert 0 < row.cost_nanos <= row.reserved_nanos


async def test_a_drain_that_ends_in_time_is_charged_while_the_gateway_stops(gateway_with: StartGateway) -> None:
    provider = Provider([], [answer(COMPLETION)])
    async with provider.up as up:
        gateway = await gateway_with(serve(channel(up.base_url, **UNHURRIED), **DRAIN))
        await send_and_leave(gateway, up, HELLO)
        stopping = asyncio.create_task(gateway.stop())
        await until(lambda: not gateway.app[SERVICES].drain.open)
        provider.go_on()
        await stopping
        (row,) = await stored(gateway)
        assert (row.outcome, row.cost_nanos) == ("client_closed", 19_000)


async def test_a_call_that_names_itself_is_given_the_answer_that_came_when_it_had_left(
    standing_with: StartGateway,
) -> None:
    provider = Provider([], [answer(COMPLETION)])
    async with provider.up as up:
        gateway = await standing_with(serve(channel(up.base_url, **UNHURRIED), **DRAIN))

        async def ask() -> tuple[int, bytes]:
            async with gateway.post(HELLO, headers={"Idempotency-Key": "drained"}) as response:
                return response.status, await response.read()

        calling = asyncio.create_task(ask())
        await until(lambda: up.received)
        await asyncio.sleep(0.02)
        await leave(calling)
        await until(lambda: find_drains(gateway).attempts)
        assert (await ask())[0] == 409
        provider.go_on()
        await until(lambda: not find_drains(gateway).attempts)
        status, body = await ask()
        assert (status, orjson.loads(body)["choices"]) == (200, COMPLETION["choices"])
        rows = await gateway.rows(3)
        assert sorted((row.outcome, row.cost_nanos) for row in rows) == [
            ("client_closed", 19_000), ("completed", 0), ("refused", 0),
        ]  # fmt: skip
        assert len(up.received) == 1


async def test_what_is_reserved_stays_so_while_it_is_drained(gateway_with: StartGateway) -> None:
    """Room for one image: there is none for a second while nobody knows what the first one costs."""
    call = CALLS["images for a stream"]
    provider = Provider(call.before, call.after)
    async with provider.up as up:
        key = {"name": "test", "account": "acme", "secret": KEY, "quota_usd": 0.4}
        gateway = await gateway_with(
            serve(channel(up.base_url, **UNHURRIED), account=[{"name": "acme"}], key=[key], **DRAIN)
        )
        await send_and_leave(gateway, up, call.body, call.path)
        async with gateway.post(call.body, call.path) as response:
            assert response.status in {402, 403, 429}
        provider.go_on()
        rows = await gateway.rows(2)
        assert sorted((row.outcome, row.cost_nanos) for row in rows) == [("client_closed", call.cost), ("refused", 0)]
        await gateway.check_books()


async def test_images_that_nobody_has_asked_for_yet_are_not_asked_for(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as up:
        model = [{"name": "m", "max_n": 1}]
        gateway = await standing_with(
            serve(channel(up.base_url, max_concurrency=1, fan_out=True, **UNHURRIED), model=model, **DRAIN)
        )
        row = await ask_and_leave(gateway, up, {**IMAGE, "n": 3}, IMAGES)
        assert (len(up.received), row.images) == (1, 1)
