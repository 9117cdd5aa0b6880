"""The real SDK in realtime sessions, over the built-in demo and over a scripted provider."""

import base64
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.support.realtime_provider import COST, PRICES, RealtimeProvider
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

HELLO: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello demo"}]}


async def collect(connection: Any) -> list[Any]:
    """Every event up to the end of a response."""
    events = []
    async for event in connection:
        events.append(event)
        if event.type in {"response.done", "error"}:
            return events
    raise AssertionError(events)


async def test_the_demo_answers_a_session_in_text_and_in_audio(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with({})
    client: AsyncOpenAI = sdk(gateway)
    headers = {"x-gateway-user": "u1"}
    async with client.realtime.connect(model="demo-realtime", extra_headers=headers) as connection:
        assert (await connection.recv()).type == "session.created"
        await connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        assert (await connection.recv()).type == "session.updated"
        await connection.conversation.item.create(item=HELLO)
        await connection.response.create()
        written = await collect(connection)
        text = "".join(event.delta for event in written if event.type == "response.output_text.delta")
        assert "Hello demo" in text
        await connection.response.create(response={"output_modalities": ["audio"]})
        spoken = await collect(connection)
        sound = b"".join(
            base64.b64decode(event.delta) for event in spoken if event.type == "response.output_audio.delta"
        )
        assert len(sound) > 24_000
    ends = [events[-1].response for events in (written, spoken)]
    rows = [row for row in await gateway.rows(3) if row.completion_tokens]
    assert [(row.prompt_tokens, row.completion_tokens) for row in rows] == [
        (end.usage.input_tokens, end.usage.output_tokens) for end in ends
    ]
    kinds = {(row.operation, row.outcome, row.model, row.end_user) for row in rows}
    assert kinds == {("realtime", "completed", "demo-realtime", "u1")}


async def test_committed_audio_is_answered_and_costs_tokens_of_audio(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    gateway = await gateway_with({"price": [{"model": "demo-realtime", "provider": "demo", **PRICES}]})
    async with sdk(gateway).realtime.connect(model="demo-realtime") as connection:
        await connection.input_audio_buffer.append(audio=base64.b64encode(bytes(48_000)).decode())
        await connection.input_audio_buffer.commit()
        await connection.response.create(response={"output_modalities": ["text"]})
        events = await collect(connection)
    usage = events[-1].response.usage
    assert usage.input_token_details.audio_tokens == 10
    row = next(row for row in await gateway.rows(2) if row.completion_tokens)
    text = usage.input_tokens - 10
    assert row.cost_nanos == text * 1_000 + 10 * 10_000 + usage.output_tokens * 2_000


async def test_a_scripted_provider_gets_the_sdks_handshake_and_events(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    async with RealtimeProvider() as provider:
        config = {"channel": [provider.channel(model_map={"m": "theirs/1"})], "price": [{"model": "m", **PRICES}]}
        gateway = await gateway_with(config)
        async with sdk(gateway).realtime.connect(model="m") as connection:
            session = await provider.accept()
            assert session.path == "/v1/realtime?model=theirs%2F1"
            assert session.headers["authorization"] == "Bearer provider-key"
            await connection.response.create(response={"instructions": "Be brief."})
            assert (await session.expect("response.create"))["response"] == {"instructions": "Be brief."}
            await session.create()
            await session.finish()
            assert (await connection.recv()).type == "response.created"
            assert (await connection.recv()).type == "response.done"
        assert await session.receive() == 1000
        own, response = sorted(await gateway.rows(2), key=lambda row: row.cost_nanos)
        assert (own.cost_nanos, own.outcome, own.status) == (0, "completed", 200)
        assert (response.cost_nanos, response.outcome, response.client_request_id) == (COST, "completed", own.id)


async def test_a_refused_handshake_is_an_http_error(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with({})
    with pytest.raises(Exception, match="404"):
        async with sdk(gateway).realtime.connect(model="no-such-model"):
            pass
    (row,) = await gateway.rows(1)
    assert (row.status, row.error_code) == (404, "model_not_found")


async def test_a_client_secret_of_the_sdk_opens_a_session(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with({})
    made = await sdk(gateway).realtime.client_secrets.create(
        session={"type": "realtime", "model": "demo-realtime", "output_modalities": ["text"]}
    )
    assert (made.session.type, made.session.object) == ("realtime", "realtime.session")
    async with sdk(gateway, api_key=made.value).realtime.connect(model="demo-realtime") as connection:
        await connection.response.create()
        assert any(event.type == "response.output_text.delta" for event in await collect(connection))
