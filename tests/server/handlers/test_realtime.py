"""Realtime sessions: what passes, what each response costs, and every way in which a session ends."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio

from gateway.auth.client_secrets import MAX_PER_KEY
from gateway.server.context import SERVICES
from tests.support.admin_calls import ask_office
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.realtime_provider import COST, PRICES, Event, ProviderSession, RealtimeProvider
from tests.support.started_gateways import StartGateway

PATH = "/v1/realtime"
PRICED = {"price": [{"model": "m", **PRICES}]}
CREATE = {"type": "response.create"}
ESTIMATED_PROMPT = 64
LOW = {"max_output_tokens": 9}
APPEND = "input_audio_buffer.append"
TRANSCRIBED = "conversation.item.input_audio_transcription.completed"
IMAGE = {"type": "input_image", "image_url": "https://up/x.png"}


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[RealtimeProvider]:
    async with RealtimeProvider() as started:
        yield started


def site(provider: RealtimeProvider, *, key: Any = None, **more: Any) -> dict[str, Any]:
    keys = {"key": [{"name": "test", "account": "acme", "secret": KEY, **(key or {})}], "account": [{"name": "acme"}]}
    return {"channel": [provider.channel()], **PRICED, **(keys if key else {}), **more}


@asynccontextmanager
async def connect(gateway: RunningGateway, query: str = "?model=m", **more: Any) -> AsyncIterator[Any]:
    """A client's session."""
    async with gateway.client.ws_connect(gateway.url + PATH + query, max_msg_size=2**25, **more) as socket:
        yield socket


async def ask(client: Any, event: Event) -> None:
    await client.send_str(orjson.dumps(event).decode())


async def read(client: Any, kind: str) -> Event:
    """The client's next event, which has this type."""
    async with asyncio.timeout(10):
        message = await client.receive()
    assert message.type is aiohttp.WSMsgType.TEXT, message
    event: Event = orjson.loads(message.data)
    assert event["type"] == kind, event
    return event


async def read_close(client: Any) -> int:
    """The code with which the gateway closes the session, next."""
    async with asyncio.timeout(10):
        message = await client.receive()
    assert message.type is aiohttp.WSMsgType.CLOSE, message
    return int(message.data)


async def expect_end(client: Any) -> None:
    """The session ends next, because its client has no money left."""
    assert (await read(client, "error"))["error"]["code"] == "insufficient_quota"
    assert await read_close(client) == 1008


async def respond(client: Any, session: ProviderSession) -> None:
    """One response from its request to its end."""
    await ask(client, CREATE)
    await session.expect("response.create")
    await session.create()
    await session.finish()
    await read(client, "response.created")
    await read(client, "response.done")


async def refuse(gateway: RunningGateway, **more: Any) -> int:
    """The HTTP status of a refused handshake."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with connect(gateway, **more):
            pass
    return refused.value.status


async def costs(gateway: RunningGateway, responses: int = 1) -> list[Any]:
    """The rows of the responses, without the session's own."""
    rows = await gateway.rows(responses + 1)
    return [row for row in rows if row.client_request_id is not None]


async def test_events_pass_untouched(gateway_with: StartGateway, provider: RealtimeProvider) -> None:
    gateway = await gateway_with(site(provider))
    async with connect(gateway) as client:
        session = await provider.accept()
        text = '{ "type" : "x.y",  "a": 1.0, "ü": [] }'
        await client.send_str(text)
        assert await session.receive() == orjson.loads(text)
        await session.socket.send_str(text)
        await session.socket.send_bytes(b"\xff\x00")
        assert (await client.receive()).data == text
        assert (await client.receive()).data == b"\xff\x00"


TWO_TRANSCRIBERS: Event = {
    "audio": {"input": {"transcription": {"model": "a"}}}, "input_audio_transcription": {"model": "b"}
}  # fmt: skip
NOT_STRICT: dict[str, tuple[str | bytes, str | None]] = {
    "no JSON": ("response.create", None),
    "an array": ('[{"type": "response.create"}]', None),
    "a binary frame": (b'{"type": "response.create"}', None),
    "two types": ('{"type": "x", "type": "response.create"}', None),
    "two types, one escaped": ('{"type": "x", "\\u0074ype": "response.create"}', None),
    "two types in a long event": ('{"type":"response.create","type":"x","y":"' + "A" * 3_000_000 + '"}', "type"),
    "another case": ('{"Type": "response.create"}', "Type"),
    "a long s": ('{"type": "session.update", "\u017fession": {}}', "\u017fession"),
    "a type in another case": ('{"type": "Response.Create"}', "type"),
    "a type that is a list": ('{"type": ["response.create"]}', "type"),
    "no type": ("{}", "type"),
    "no number": ('{"type": "response.create", "x": NaN}', None),
    "a byte order mark": ('\ufeff{"type": "response.create"}', None),
    "deep nesting": ('{"type": "response.create", "x": ' + "[" * 500 + "]" * 500 + "}", None),
    "a session that is none": ('{"type": "session.update", "session": []}', "session"),
    "a limit in another case": (
        '{"type": "response.create", "response": {"MAX_OUTPUT_TOKENS": 9}}', "response.MAX_OUTPUT_TOKENS"
    ),
    "another model": ('{"type": "session.update", "session": {"model": "dear"}}', "session.model"),
    "no model": ('{"type": "session.update", "session": {"model": null}}', "session.model"),
    "another model for a response": ('{"type": "response.create", "response": {"model": "dear"}}', "response.model"),
    "a field without its line": ('{"type": "session.update", "session": {"inputAudioTranscription": {}}}',
                                 "session.inputAudioTranscription"),
    "a wide letter": ('{"type": "session.update", "session": {"\uff4dodel": "dear"}}', "session.\uff4dodel"),
    "another case within": (
        '{"type": "session.update", "session": {"audio": {"input": {"Transcription": {"model": "dear"}}}}}',
        "session.audio.input.Transcription",
    ),
    "a limit in a string": (
        '{"type": "session.update", "session": {"max_output_tokens": "9"}}', "session.max_output_tokens"
    ),
    "a negative limit": (
        '{"type": "response.create", "response": {"max_output_tokens": -1}}', "response.max_output_tokens"
    ),
    "a limit with a point": (
        '{"type": "response.create", "response": {"max_response_output_tokens": 9000.5}}',
        "response.max_response_output_tokens",
    ),
    "two models for transcripts": (
        orjson.dumps({"type": "session.update", "session": TWO_TRANSCRIBERS}).decode(),
        "session.input_audio_transcription.model",
    ),
}  # fmt: skip


async def test_only_strict_events_for_the_sessions_model_pass(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    """What the gateway does not understand as the provider does was sent unread: 40 times the limit was spent."""
    gateway = await gateway_with(site(provider))
    async with connect(gateway) as client:
        session = await provider.accept()
        for name, (frame, param) in NOT_STRICT.items():
            await (client.send_bytes(frame) if isinstance(frame, bytes) else client.send_str(frame))
            if "long event" in name:  # it passes as what the gateway has read
                assert (await session.expect("x"))["y"]
                continue
            error = (await read(client, "error"))["error"]
            assert (error["code"], error["param"]) == ("invalid_request", param), name
        await ask(client, {"type": "session.update", "session": {"model": "m"}})
        await session.expect("session.update")  # nothing else has passed


@pytest.mark.parametrize(
    ("updates", "confirmed", "asked", "limit", "prompt"),
    [
        ([{"max_output_tokens": 9}], {"max_output_tokens": "inf"}, {}, 0.1, 64),
        ([{"max_output_tokens": 9}], {}, {}, 0.1, 64),
        ([{"max_output_tokens": 9, "max_response_output_tokens": "inf"}], {"max_output_tokens": "inf"}, {}, 0.1, 64),
        ([{"max_output_tokens": 9}, {"max_output_tokens": 9}], {"max_output_tokens": "inf"}, {}, 0.02, 64),
        ([], {}, {"response": {"max_output_tokens": 9}}, 0.02, 64),
        ([], {}, {"response": {"max_output_tokens": 9, "max_response_output_tokens": "inf"}}, 0.1, 64),
        ([], LOW, {"response": {"input": [{"type": "item_reference", "id": "item_1"}]}}, 0.02, 20_000),
        ([{"tools": [{"type": "mcp", "server_url": "https://up"}]}], LOW, {}, 0.02, 20_000),
        ([], LOW, {"response": {"input": [{"type": "message", "content": [IMAGE]}]}}, 0.05, 20_000),
    ],
)  # fmt: skip
async def test_twenty_sessions_spend_the_limit_and_at_most_one_overrun(  # noqa: PLR0917 - a case
    gateway_with: StartGateway, provider: RealtimeProvider,
    updates: list[Event], confirmed: Event, asked: Event, limit: float, prompt: int,
) -> None:  # fmt: skip
    """A limit of the output holds once the provider has confirmed it; what has no known length is a whole window."""
    gateway = await gateway_with(site(provider, key={"quota_usd": limit}))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(connect(gateway))
        session = await provider.accept()
        for update in updates:
            await ask(first, {"type": "session.update", "session": update})
            await session.expect("session.update")
        await session.send("session.updated", session=confirmed)
        await read(first, "session.updated")
        await ask(first, CREATE | asked)
        await session.expect("response.create")
        for _ in range(19):
            client = await stack.enter_async_context(connect(gateway))
            await ask(client, CREATE | asked)
            assert (await read(client, "error"))["error"]["code"] == "insufficient_quota"
            assert await read_close(client) == 1008
        await session.create()
        heard, spoken = {"audio_tokens": prompt}, {"audio_tokens": 4_096}
        await session.finish(
            usage={"input_tokens": prompt, "output_tokens": 4_096, "input_token_details": heard,
                   "output_token_details": spoken}
        )  # fmt: skip
        await read(first, "response.created")
        await read(first, "response.done")
    (row,) = [row for row in await gateway.rows(21) if row.cost_nanos]
    assert (row.usage_source, row.cost_nanos) == ("upstream", prompt * 10_000 + 4_096 * 20_000)
    assert row.overrun_nanos == max(0, row.cost_nanos - round(limit * 1e9))


async def test_each_response_is_charged_once_before_the_client_sees_its_end(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider, key={"quota_usd": 1}))
    async with connect(gateway) as client:
        session = await provider.accept()
        for number in (1, 2):
            await respond(client, session)
            assert len(gateway.app[SERVICES].billing.settlement.ended) >= number
    own, *_ = [row for row in await gateway.rows(3) if row.client_request_id is None]
    first, second = await costs(gateway, 2)
    assert [row.cost_nanos for row in (own, first, second)] == [0, COST, COST]
    assert {row.client_request_id for row in (first, second)} == {own.id}
    assert first.reserved_nanos > 4096 * 20_000
    assert (first.prompt_tokens, first.cached_tokens, first.completion_tokens) == (100, 30, 50)


async def test_a_response_that_the_provider_begins_is_charged(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider, key={"quota_usd": 1}))
    async with connect(gateway) as client:
        session = await provider.accept()
        await session.create()
        await session.finish()
        await read(client, "response.created")
        await read(client, "response.done")
    (row,) = await costs(gateway)
    assert (row.cost_nanos, row.outcome) == (COST, "completed")


async def test_the_spending_limit_ends_the_session_before_the_provider_is_asked(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider, key={"quota_usd": 0.0834}))
    async with connect(gateway) as client:
        session = await provider.accept()
        await respond(client, session)
        await ask(client, {**CREATE, "event_id": "mine"})
        error = (await read(client, "error"))["error"]
        assert (error["code"], error["type"]) == ("insufficient_quota", "new_api_error")
        assert error["doc_url"] == f"{gateway.url}/help/reference/errors#insufficient_quota"
        assert await read_close(client) == 1008
        assert await session.receive() == 1000
    own, *_ = [row for row in await gateway.rows(2) if row.client_request_id is None]
    assert (own.outcome, own.error_code) == ("refused", "insufficient_quota")


async def test_a_response_begun_over_the_limit_is_cancelled_and_charged(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider, key={"quota_usd": 0.0001}))
    async with connect(gateway) as client:
        session = await provider.accept()
        await session.create("resp_7")
        assert (await read(client, "error"))["error"]["code"] == "insufficient_quota"
        assert (await session.expect("response.cancel"))["response_id"] == "resp_7"
        await session.finish("resp_7", "cancelled")
        assert await read_close(client) == 1008
    (row,) = await costs(gateway)
    assert (row.cost_nanos, row.overrun_nanos) == (COST, COST - 100_000)


async def test_who_has_no_money_left_is_refused_before_the_provider_is_asked(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider, key={"quota_usd": 0}))
    assert await refuse(gateway) == 403
    assert not provider.asked


async def test_a_model_without_a_price_is_refused_under_a_limit(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider, key={"quota_usd": 1}, price=[]))
    assert await refuse(gateway) == 403
    assert not provider.asked
    (row,) = await gateway.rows(1)
    assert row.error_code == "model_not_priced"


async def test_who_leaves_pays_what_the_cancelled_response_has_cost(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))
    async with connect(gateway) as client:
        session = await provider.accept()
        await session.create()
        await read(client, "response.created")
        client._response.connection.transport.abort()  # as a browser that crashes
        await session.expect("response.cancel")
        await session.finish(status="cancelled")
        assert await session.receive() == 1000
    (row,) = await costs(gateway)
    assert (row.cost_nanos, row.outcome) == (COST, "cancelled")


async def test_a_response_without_a_report_is_charged_by_what_has_come(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))
    async with connect(gateway) as client:
        session = await provider.accept()
        await session.create()
        sound = base64.b64encode(bytes(24_000)).decode()
        await session.send("response.output_audio_transcript.delta", response_id="resp_1", delta="x" * 8)
        await session.send("response.output_audio.delta", response_id="resp_1", delta=sound)
        await session.finish(status="cancelled", usage=False)
        for _ in range(4):
            await client.receive()
    (row,) = await costs(gateway)
    assert (row.usage_source, row.prompt_tokens, row.completion_tokens) == ("estimate", ESTIMATED_PROMPT, 2 + 10)
    assert row.cost_nanos == ESTIMATED_PROMPT * 1_000 + 2 * 2_000 + 10 * 20_000


async def test_a_provider_that_breaks_off_ends_the_session_with_an_error_event(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))
    async with connect(gateway) as client:
        session = await provider.accept()
        await session.create()
        await read(client, "response.created")
        assert session.socket._req is not None
        assert session.socket._req.transport is not None
        session.socket._req.transport.abort()
        assert (await read(client, "error"))["error"]["code"] == "upstream_error"
        assert await read_close(client) == 1011
    (row,) = await costs(gateway)
    assert (row.outcome, row.prompt_tokens) == ("failed", ESTIMATED_PROMPT)


@pytest.mark.parametrize(("code", "outcome"), [(1000, "completed"), (4007, "failed")])
async def test_the_providers_close_code_is_passed(
    code: int, outcome: str, gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))
    async with connect(gateway) as client:
        session = await provider.accept()
        await session.socket.close(code=code, message=b"the hour is over")
        if outcome == "failed":
            assert "the hour is over" in (await read(client, "error"))["error"]["message"]
        assert await read_close(client) == code
    (row,) = await gateway.rows(1)
    assert row.outcome == outcome


async def test_another_channel_is_tried_until_a_handshake_succeeds(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    async with RealtimeProvider(refuses=503) as broken:
        channels = [broken.channel(name="broken", priority=1), provider.channel()]
        gateway = await gateway_with(site(provider, channel=channels))
        async with connect(gateway) as client:
            await respond(client, await provider.accept())
        own = next(row for row in await gateway.rows(2) if row.client_request_id is None)
        assert (own.attempts, own.channel, broken.asked) == (2, "up", 1)


async def test_a_providers_refusal_is_an_http_error_with_its_message(gateway_with: StartGateway) -> None:
    async with RealtimeProvider(refuses=400) as strict:
        gateway = await gateway_with(site(strict))
        assert await refuse(gateway) == 400
        (row,) = await gateway.rows(1)
        assert (row.error_code, "Not with this provider." in row.error) == ("some_code", True)


async def test_a_rate_limit_refuses_a_response_and_the_session_goes_on(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider, key={"rpm": 2}))
    async with connect(gateway) as client:
        session = await provider.accept()
        await respond(client, session)
        await ask(client, {**CREATE, "event_id": "mine"})
        error = (await read(client, "error"))["error"]
        assert (error["code"], error["event_id"]) == ("rate_limit_exceeded", "mine")
        await ask(client, {"type": "input_audio_buffer.clear"})
        await session.expect("input_audio_buffer.clear")
    await gateway.rows(2)


async def test_a_session_is_one_concurrent_request_as_long_as_it_is_open(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider, key={"max_concurrency": 1}))
    async with connect(gateway) as client:
        session = await provider.accept()
        assert await refuse(gateway) == 429
        await respond(client, session)
    while gateway.running:  # noqa: ASYNC110 - a state without an event
        await asyncio.sleep(0.01)
    async with connect(gateway):
        pass


async def test_a_disabled_key_ends_its_sessions(gateway_with: StartGateway, provider: RealtimeProvider) -> None:
    gateway = await gateway_with(site(provider))
    secret = (await ask_office(gateway, "POST", "/keys", {"name": "second", "account": "acme"}))[1]["secret"]
    async with connect(gateway, headers={"Authorization": f"Bearer {secret}"}) as client:
        await provider.accept()
        keys = (await ask_office(gateway, "GET", "/keys"))[1]["data"]
        number = next(key["id"] for key in keys if key["name"] == "second")
        assert (await ask_office(gateway, "PATCH", f"/keys/{number}", {"status": "disabled"}))[0] == 200
        assert (await read(client, "error"))["error"]["code"] == "key_disabled"
        assert await read_close(client) == 1008


async def test_a_refused_response_costs_nothing(gateway_with: StartGateway, provider: RealtimeProvider) -> None:
    gateway = await gateway_with(site(provider))
    async with connect(gateway) as client:
        session = await provider.accept()
        await ask(client, {**CREATE, "event_id": "mine"})
        await session.expect("response.create")
        await session.send("error", error={"message": "No.", "event_id": "mine"})
        await read(client, "error")
    (row,) = await costs(gateway)
    assert (row.cost_nanos, row.outcome) == (0, "refused")


@pytest.mark.parametrize("cause", [None, "mine"])
async def test_a_response_stays_reserved_after_an_error_that_may_be_about_another_event(
    cause: str | None, gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    """The client chooses the ids of its events: an error does not show that the provider will make no response."""
    gateway = await gateway_with(site(provider, key={"quota_usd": 0.0834}))
    async with connect(gateway) as client:
        session = await provider.accept()
        for event in ({"type": "unknown"}, CREATE):
            await ask(client, event | {"event_id": "mine"})
            await session.expect(event["type"])
        await session.send("error", error={"message": "No.", "event_id": cause})
        await read(client, "error")
        async with connect(gateway) as other:
            await ask(other, CREATE)
            assert (await read(other, "error"))["error"]["code"] == "insufficient_quota"
        await session.create()
        await session.finish()
        await read(client, "response.created")
        await read(client, "response.done")
    (row,) = [row for row in await gateway.rows(3) if row.cost_nanos]
    assert (row.cost_nanos, row.overrun_nanos, row.outcome) == (COST, 0, "completed")
    assert row.reserved_nanos > 4_096 * 20_000


async def test_each_response_is_charged_once_whatever_the_provider_tells_of_it(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider, key={"quota_usd": 1}))
    async with connect(gateway) as client:
        session = await provider.accept()
        await ask(client, CREATE)
        await session.expect("response.create")
        for _ in range(2):
            await session.finish("asked")  # it has not told the begin
        for _ in range(2):
            await session.create("begun")
        for _ in range(2):
            await session.finish("begun")
        for kind in (*["response.done"] * 2, *["response.created"] * 2, *["response.done"] * 2):
            await read(client, kind)
    assert [row.cost_nanos for row in await costs(gateway, 2)] == [COST, COST]


async def test_transcripts_end_a_session_when_nothing_is_left(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    """A session that is only heard asks for no response: nothing else checks its limit."""
    prices = [*PRICED["price"], {"model": "scribe", **PRICES}]
    gateway = await gateway_with(site(provider, key={"quota_usd": 0.0002}, price=prices))
    async with connect(gateway) as client:
        session = await provider.accept()
        await session.send("session.created", session={"audio": {"input": {"transcription": {"model": "scribe"}}}})
        await read(client, "session.created")
        sound = base64.b64encode(bytes(48_000)).decode()
        for left in (True, False):
            await ask(client, {"type": "input_audio_buffer.append", "audio": sound})
            await session.expect("input_audio_buffer.append")
            await session.send("conversation.item.input_audio_transcription.completed", transcript="x" * 40)
            if left:
                await read(client, "conversation.item.input_audio_transcription.completed")
        assert (await read(client, "error"))["error"]["code"] == "insufficient_quota"
        assert await read_close(client) == 1008
    rows = await costs(gateway, 2)
    assert {(row.usage_source, row.model) for row in rows} == {("estimate", "scribe")}
    assert [row.cost_nanos for row in rows] == [10 * 10_000 + 10 * 2_000] * 2
    assert sum(row.overrun_nanos for row in rows) == 2 * 120_000 - 200_000


@pytest.mark.parametrize(("named", "sent"), [(False, True), (True, True), (False, False)])
async def test_twenty_sessions_pay_for_transcripts_the_limit_and_at_most_one_overrun(
    gateway_with: StartGateway, provider: RealtimeProvider, *, named: bool, sent: bool
) -> None:
    """Each of twenty sessions recorded an overrun for a transcript that the session had not asked for."""
    prices = [*PRICED["price"], {"model": "scribe", **PRICES}]
    gateway = await gateway_with(site(provider, key={"quota_usd": 0.005}, price=prices))
    usage = {"type": "tokens", "input_tokens": 300, "output_tokens": 200, "input_token_details": {"audio_tokens": 300}}
    async with AsyncExitStack() as stack:
        sessions: list[tuple[Any, ProviderSession]] = []
        for _ in range(20):
            client = await stack.enter_async_context(connect(gateway))
            sessions.append((client, session := await provider.accept()))
            if named:
                transcription = {"audio": {"input": {"transcription": {"model": "scribe"}}}}
                await session.send("session.created", session=transcription)
                await read(client, "session.created")
        first, served = sessions[0]
        if sent:
            await ask(first, {"type": APPEND, "audio": "AAAA"})
            await served.expect(APPEND)
            for client, _ in sessions[1:]:  # the first has reserved all that is left
                await ask(client, {"type": APPEND, "audio": "AAAA"})
                await expect_end(client)
        await served.send(TRANSCRIBED, usage=usage, transcript="x")
        await read(first, TRANSCRIBED)
        for client, session in sessions[: 1 if sent else 20]:
            await session.send(TRANSCRIBED, usage=usage, transcript="x")
            await expect_end(client)
    rows = [row for row in await gateway.rows(22) if row.cost_nanos]
    assert [row.cost_nanos for row in rows] == 2 * [300 * 10_000 + 200 * 2_000]
    assert sorted(row.overrun_nanos for row in rows) == [0, 1_800_000]


async def test_transcripts_of_the_users_audio_are_charged(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    heard: Event = {"type": "tokens", "input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    heard["input_token_details"] = {"audio_tokens": 10, "text_tokens": 0}
    prices = [*PRICED["price"], {"model": "scribe", **PRICES}]
    gateway = await gateway_with(site(provider, key={"quota_usd": 1}, price=prices))
    async with connect(gateway) as client:
        session = await provider.accept()
        update = {"type": "session.update", "session": {"audio": {"input": {"transcription": {"model": "scribe"}}}}}
        await ask(client, update)
        await session.expect("session.update")
        await session.send("conversation.item.input_audio_transcription.completed", usage=heard, transcript="Hi")
        await read(client, "conversation.item.input_audio_transcription.completed")
    (row,) = await costs(gateway)
    assert (row.model, row.cost_nanos) == ("scribe", 10 * 10_000 + 5 * 2_000)


@pytest.mark.parametrize("kind", ["session.update", "transcription_session.update"])
async def test_a_transcriber_without_a_price_is_refused_under_a_limit(
    kind: str, gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider, key={"quota_usd": 1}))
    async with connect(gateway) as client:
        session = await provider.accept()
        await ask(client, {"type": kind, "session": {"input_audio_transcription": {"model": "scribe"}}})
        assert (await read(client, "error"))["error"]["code"] == "model_not_priced"
        assert await read_close(client) == 1008
        assert await session.receive() == 1000


FILE = {"type": "input_image", "file_id": "file_of_another"}
KEPT: list[tuple[Event, str]] = [
    ({"type": "session.update", "session": {"prompt": {"id": "pmpt_1"}}}, "session.prompt"),
    ({"type": "transcription_session.update", "session": {"prompt": {"ID": "pmpt_1"}}}, "session.prompt"),
    ({"type": "session.update", "session": {"voice": {"id": "v"}}}, "session.voice"),
    (CREATE | {"response": {"prompt": {"id": "pmpt_1"}}}, "response.prompt"),
    (CREATE | {"response": {"conversation": "conv_1"}}, "response.conversation"),
    (CREATE | {"response": {"input": [{"role": "user", "content": [FILE]}]}}, "response.input[0].content[0].file_id"),
    ({"type": "conversation.item.create", "item": {"role": "user", "content": [FILE]}}, "item.content[0].file_id"),
    (
        {"type": "conversation.item.create", "item": {"content": [{"image_url": " GS://bucket/x.png"}]}},
        "item.content[0].image_url",
    ),
]  # fmt: skip
BOUGHT: list[tuple[Event, str]] = [
    ({"type": "session.update", "session": {"tools": [{"type": "web_search"}]}}, "session.tools.web_search"),
    ({"type": "x", "session": {"tools": [{"type": "function", "google_search": {}}]}}, "session.tools.google_search"),
    (CREATE | {"response": {"tools": [{"type": "code_interpreter"}]}}, "response.tools.code_interpreter"),
    (CREATE | {"response": {"service_tier": "priority"}}, "response.service_tier"),
    (CREATE | {"response": {"Service_Tier": "priority"}}, "response.Service_Tier"),
]


async def test_what_is_kept_or_bought_at_the_provider_needs_a_channel_that_allows_it(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    """Each event is refused, and the session goes on."""
    gateway = await gateway_with(site(provider))
    async with connect(gateway) as client:
        session = await provider.accept()
        for event, place in KEPT + BOUGHT:
            await ask(client, event)
            refused = (await read(client, "error"))["error"]
            code = "not_found" if (event, place) in KEPT else "invalid_request"
            assert (refused["code"], refused["param"]) == (code, place)
        own = {"item": {"type": "item_reference", "id": "item_1"}}
        for event in ({"type": "conversation.item.create", **own}, CREATE | {"response": {"conversation": "none"}}):
            await ask(client, event)
            assert await session.receive() == event, "nothing else was sent"
        await session.send("error", error={"message": "No."})
        await read(client, "error")


@pytest.mark.parametrize(
    ("session", "code"),
    [
        ({"prompt": {"id": "pmpt_1"}}, "not_found"),
        ({"audio": {"output": {"voice": {"id": "voice_1"}}}}, "not_found"),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}, "not_found"),
        ({"tools": [{"type": "web_search"}]}, "invalid_request"),
        (TWO_TRANSCRIBERS, "invalid_request"),
    ],
)  # fmt: skip
async def test_a_secret_names_nothing_that_its_sessions_may_not(
    session: Event, code: str, gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))
    for model in ({}, {"model": "m"}):
        assert (await make_secret(gateway, {"session": session | model}))["error"]["code"] == code
    allowed = site(provider, channel=[provider.channel(allow_fields=["*"])])
    if "input_audio_transcription" not in session:
        assert "value" in await make_secret(await gateway_with(allowed), {"session": session})


async def test_a_session_does_not_go_on_without_the_settings_of_its_secret(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    """They are checked again for the channel that serves."""
    other = channel("http://127.0.0.1:9/v1", name="other", models=["x"], allow_fields=["prompt"])
    gateway = await gateway_with(site(provider, channel=[provider.channel(), other]))
    made = await make_secret(gateway, {"session": {"prompt": {"id": "pmpt_1"}, "max_output_tokens": 9}})
    async with browse(gateway, made["value"], "?model=m") as client:
        session = await provider.accept()
        assert (await read(client, "error"))["error"]["code"] == "not_found"
        assert await read_close(client) == 1008
        assert await session.receive() == 1000


async def test_an_operator_can_cancel_a_session(gateway_with: StartGateway, provider: RealtimeProvider) -> None:
    gateway = await gateway_with(site(provider))
    async with connect(gateway) as client:
        await provider.accept()
        (running,) = (await ask_office(gateway, "GET", "/running"))[1]["data"]
        assert (running["operation"], running["phase"], running["channel"]) == ("realtime", "streaming", "up")
        await ask_office(gateway, "POST", f"/running/{running['id']}/cancel")
        assert (await read(client, "error"))["error"]["code"] == "request_cancelled"
        assert await read_close(client) == 1008
    (row,) = await gateway.rows(1)
    assert row.outcome == "cancelled"


async def test_a_shutdown_lets_a_response_end_and_closes_the_session(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))
    async with connect(gateway) as client:
        session = await provider.accept()
        await session.create()
        await read(client, "response.created")
        stopping = asyncio.create_task(gateway.stop())
        while gateway.app[SERVICES].drain.open:  # noqa: ASYNC110 - a state without an event
            await asyncio.sleep(0.01)
        await session.finish()
        await read(client, "response.done")
        assert await read_close(client) == 1012
        await stopping


async def test_a_browser_sends_its_key_as_a_subprotocol(gateway_with: StartGateway, provider: RealtimeProvider) -> None:
    gateway = await gateway_with(site(provider))
    protocols = ("realtime", f"openai-insecure-api-key.{KEY}", "openai-beta.realtime-v1")
    async with (
        aiohttp.ClientSession() as browser,
        browser.ws_connect(f"{gateway.url}{PATH}?model=m", protocols=protocols) as client,
    ):
        session = await provider.accept()
        assert client.protocol == "realtime"
        assert session.headers["openai-beta"] == "realtime=v1"
        assert KEY not in str(session.headers)


async def test_two_different_keys_in_headers_and_subprotocols_are_refused(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))
    headers: tuple[dict[str, str], ...] = ({"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY})
    for header in (*headers, {"Authorization": f"bearer  {KEY}"}, {}):
        alone = [] if header else [KEY]
        for secret, status in ((f"{KEY}x", 400), (KEY, 101)):
            protocols = ("realtime", *(f"openai-insecure-api-key.{one}" for one in (*alone, secret)))
            async with aiohttp.ClientSession(headers=header) as browser:
                try:
                    async with browser.ws_connect(f"{gateway.url}{PATH}?model=m", protocols=protocols):
                        await provider.accept()
                        found = 101
                except aiohttp.WSServerHandshakeError as refused:
                    found = refused.status
            assert found == status, (header, secret)


async def test_a_request_that_is_no_websocket_says_what_to_do(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))
    async with gateway.client.get(f"{gateway.url}{PATH}?model=m") as answer:
        assert answer.status == 400
        assert "ws://" in (await answer.json())["error"]["message"]
    assert not provider.asked


async def test_a_session_needs_a_model(gateway_with: StartGateway, provider: RealtimeProvider) -> None:
    gateway = await gateway_with(site(provider))
    assert await refuse(gateway, query="") == 400


async def make_secret(gateway: RunningGateway, body: Any, path: str = "client_secrets") -> Any:
    async with gateway.post(body, f"{PATH}/{path}") as answer:
        return await answer.json()


@asynccontextmanager
async def browse(gateway: RunningGateway, secret: str, query: str = "") -> AsyncIterator[Any]:
    """A browser's session: it has no other key than a client secret."""
    protocols = ("realtime", f"openai-insecure-api-key.{secret}")
    async with (
        aiohttp.ClientSession() as browser,
        browser.ws_connect(gateway.url + PATH + query, protocols=protocols) as socket,
    ):
        yield socket


async def test_a_client_secret_opens_sessions_with_its_model_and_settings(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))
    settings = {"type": "realtime", "model": "m", "instructions": "Be brief."}
    made = await make_secret(gateway, {"session": settings})
    assert made["session"].items() >= settings.items()
    async with browse(gateway, made["value"]) as client:
        session = await provider.accept()
        update = await session.expect("session.update")
        assert update["session"] == {"type": "realtime", "instructions": "Be brief."}
        await respond(client, session)
    (row,) = await costs(gateway)
    assert (row.cost_nanos, row.key_name) == (COST, "test")


async def test_the_beta_version_gets_its_secret_in_the_session(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))
    made = await make_secret(gateway, {"model": "m", "voice": "alloy"}, "sessions")
    assert (made["object"], made["model"], made["voice"]) == ("realtime.session", "m", "alloy")
    async with browse(gateway, made["client_secret"]["value"], "?model=m"):
        assert (await (await provider.accept()).expect("session.update"))["session"] == {"voice": "alloy"}


async def test_a_client_secret_does_nothing_else(gateway_with: StartGateway, provider: RealtimeProvider) -> None:
    gateway = await gateway_with(site(provider))
    secret = (await make_secret(gateway, {"session": {"type": "realtime", "model": "m"}}))["value"]
    bearer = {"Authorization": f"Bearer {secret}"}
    for path, method in (("/v1/models", "GET"), (f"{PATH}/client_secrets", "POST"), ("/v1/chat/completions", "POST")):
        async with gateway.client.request(method, gateway.url + path, json={}, headers=bearer) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (401, "invalid_api_key")
    assert await refuse(gateway, query="?model=other", headers=bearer) == 400
    assert await refuse(gateway, headers={"Authorization": "Bearer ek_" + "0" * 48}) == 401


async def test_a_client_secret_expires(gateway_with: StartGateway, provider: RealtimeProvider) -> None:
    now = [1_800_000_000.0]
    gateway = await gateway_with(site(provider), clock=lambda: now[0])
    secret = (await make_secret(gateway, {"expires_after": {"seconds": 10}}))["value"]
    bearer = {"Authorization": f"Bearer {secret}"}
    now[0] += 9
    async with connect(gateway, headers=bearer) as client:
        session = await provider.accept()
        now[0] += 1
        await respond(client, session)
        assert await refuse(gateway, headers=bearer) == 401


async def test_a_client_secret_ends_with_its_key(gateway_with: StartGateway, provider: RealtimeProvider) -> None:
    gateway = await gateway_with(site(provider))
    _, key = await ask_office(gateway, "POST", "/keys", {"name": "second", "account": "acme"})
    own = {"Authorization": f"Bearer {key['secret']}"}
    async with gateway.post({}, f"{PATH}/client_secrets", headers=own) as answer:
        secret = (await answer.json())["value"]
    await ask_office(gateway, "DELETE", f"/keys/{key['id']}")
    assert await refuse(gateway, headers={"Authorization": f"Bearer {secret}"}) == 401


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"session": {"type": "transcription"}}, "session.type"),
        ({"session": {"model": ""}}, "session.model"),
        ({"session": []}, "session"),
        ({"session": {"model": None}}, "session.model"),
        ({"model": None}, "model"),
        ({"session": {"instructions": {}}}, "session.instructions"),
        ({"session": {"tools": {}}}, "session.tools"),
        ({"session": {"Model": "dear"}}, "session.Model"),
        ({"session": {"max_output_tokens": "9"}}, "session.max_output_tokens"),
        ({"session": "x"}, "session"),
        ({"expires_after": {"seconds": 9}}, "seconds"),
        ({"expires_after": {"seconds": 7_201}}, "seconds"),
        ({"session": {"instructions": "x" * 40_000}}, "session"),
        ({"session": {"model": "unknown"}}, "model"),
    ],
)
async def test_a_secret_that_could_open_nothing_is_not_made(
    body: Any, param: str | None, standing_with: StartGateway
) -> None:
    gateway = await standing_with({"channel": [channel("http://127.0.0.1:9/v1")]})
    async with gateway.post(body, f"{PATH}/client_secrets") as answer:
        error = (await answer.json()).get("error", {})
        assert (answer.status >= 400, error.get("param")) == (param is not None, param)


async def test_one_key_has_only_so_many_client_secrets(gateway_with: StartGateway, provider: RealtimeProvider) -> None:
    gateway = await gateway_with(site(provider))
    for _ in range(MAX_PER_KEY):
        assert "value" in await make_secret(gateway, {})
    async with gateway.post({}, f"{PATH}/client_secrets") as answer:
        assert (answer.status, int(answer.headers["Retry-After"]) > 500) == (429, True)
