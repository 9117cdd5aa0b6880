"""Embeddings with the real SDK from a provider that has another way to ask for them."""

import base64
import struct

import pytest
from openai import BadRequestError, InternalServerError, OpenAIError, RateLimitError

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.gateway import channel
from tests.support.gemini_provider import GeminiProvider
from tests.support.providers import Fails
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

PLAIN = {"object": "list", "model": "m", "data": [], "usage": {"prompt_tokens": 1, "total_tokens": 1}}


async def test_texts_are_embedded_in_their_order(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with GeminiProvider() as up:
        gateway = await gateway_with({"channel": [up.channel()]})
        client = sdk(gateway)
        packed = await client.embeddings.create(model="m", input=["a", "four", "füllig"])
        assert [item.embedding for item in packed.data] == [[0.25, -0.5, 1.0], [0.25, -0.5, 4.0], [0.25, -0.5, 6.0]]
        assert [item.index for item in packed.data] == [0, 1, 2]
        assert packed.object == "list"
        one = await client.embeddings.create(model="m", input="four", encoding_format="float", dimensions=2)
        assert one.data[0].embedding == [0.25, -0.5]
        assert not up.refusals
        rows = await gateway.rows(2)
        assert {(row.operation, row.usage_source, row.completion_tokens) for row in rows} == {
            ("embeddings", "estimate", 0)
        }
        assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0


async def test_what_the_sdk_asks_for_is_base64_of_little_endian_floats(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    async with GeminiProvider() as up:
        gateway = await gateway_with({"channel": [up.channel()]})
        raw = await sdk(gateway).embeddings.with_raw_response.create(model="m", input="four")
        (item,) = raw.http_response.json()["data"]
        assert base64.b64decode(item["embedding"]) == struct.pack("<3f", 0.25, -0.5, 4.0)


async def test_token_ids_are_refused_or_go_to_who_takes_them(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with GeminiProvider() as up, ScriptedUpstream([answer(PLAIN)]) as other:
        gateway = await gateway_with({"channel": [up.channel()]})
        with pytest.raises(BadRequestError) as caught:
            await sdk(gateway).embeddings.create(model="m", input=[[1, 2], [3]])
        assert (caught.value.param, caught.value.code) == ("input", "invalid_request")
        both = await gateway_with({"channel": [up.channel(priority=1), channel(other.base_url, "other")]})
        await sdk(both).embeddings.create(model="m", input=[[1, 2], [3]], encoding_format="float")
        assert other.received[0].json["input"] == [[1, 2], [3]]
        assert not up.received


@pytest.mark.parametrize(
    ("answer", "kind", "status"),
    [
        (Fails(429, "Resource has been exhausted"), RateLimitError, 429),
        (Fails(503, "The model is overloaded"), InternalServerError, 502),
        (Fails(400, "Request contains an invalid argument"), BadRequestError, 400),
    ],
)
async def test_an_error_is_the_sdks_own(
    answer: Fails, kind: type[OpenAIError], status: int, gateway_with: StartGateway, sdk: MakeClient
) -> None:
    provider = GeminiProvider()
    async with ScriptedUpstream([provider.fail(answer)]) as up:
        gateway = await gateway_with({"channel": [channel(f"{up.base_url}beta", provider="gemini")]})
        with pytest.raises(kind, match=answer.message) as caught:
            await sdk(gateway).embeddings.create(model="m", input="a")
        assert getattr(caught.value, "status_code", None) == status


async def test_a_channel_without_embeddings_is_passed_over(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with AnthropicProvider() as none, GeminiProvider() as up:
        gateway = await gateway_with({"channel": [none.channel("none", priority=9), up.channel()]})
        made = await sdk(gateway).embeddings.create(model="m", input="a")
        assert len(made.data) == 1
        assert not none.received
