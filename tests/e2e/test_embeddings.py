"""Embeddings with the real SDK, which asks for base64 unless it is told otherwise."""

import base64
import struct
from typing import Any, Literal

import pytest
from openai import InternalServerError

from tests.support.gateway import channels
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

VECTOR = [0.5, -0.25, 1.0]
PACKED = base64.b64encode(struct.pack("<3f", *VECTOR)).decode()


def embeddings(*vectors: Any) -> dict[str, Any]:
    """A provider's answer."""
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return {"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}}


async def test_the_demo_embeds_as_the_sdk_asks_and_as_floats_alike(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with({})
    client = sdk(gateway)
    packed = await client.embeddings.create(model="demo-embedding", input=["a small cat", "a large dog"])
    plain = await client.embeddings.create(
        model="demo-embedding", input=["a small cat", "a large dog"], encoding_format="float"
    )
    assert [item.index for item in packed.data] == [0, 1]
    for left, right in zip(packed.data, plain.data, strict=True):
        assert left.embedding == pytest.approx(right.embedding, abs=1e-6)
    assert packed.data[0].embedding != packed.data[1].embedding
    assert packed.usage.prompt_tokens > 0


async def test_dimensions_are_honoured(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with({})
    made = await sdk(gateway).embeddings.create(model="demo-embedding", input="hello", dimensions=32)
    assert len(made.data[0].embedding) == 32


async def test_floats_from_a_provider_reach_an_sdk_that_asked_for_base64(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    async with ScriptedUpstream([answer(embeddings(VECTOR, VECTOR))]) as up:
        gateway = await gateway_with(channels([up]))
        raw = await sdk(gateway).embeddings.with_raw_response.create(model="m", input=["a", "b"])
        assert up.received[0].json["encoding_format"] == "base64"
        assert [item["embedding"] for item in raw.http_response.json()["data"]] == [PACKED, PACKED]
        assert [item.embedding for item in raw.parse().data] == [VECTOR, VECTOR]


async def test_base64_from_a_provider_reaches_an_sdk_that_asked_for_floats(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    async with ScriptedUpstream([answer(embeddings(PACKED))]) as up:
        gateway = await gateway_with(channels([up]))
        made = await sdk(gateway).embeddings.create(model="m", input="a", encoding_format="float")
        assert made.data[0].embedding == VECTOR
        (row,) = await gateway.rows(1)
        assert (row.operation, row.prompt_tokens, row.completion_tokens) == ("embeddings", 3, 0)


@pytest.mark.parametrize(
    ("asked", "nonsense"),
    [("float", "?"), ("float", None), ("float", {"a": 1}), ("base64", ["x"]), ("base64", None), ("base64", 1)],
)
async def test_an_embedding_that_is_none_is_the_providers_fault(
    gateway_with: StartGateway, sdk: MakeClient, asked: Literal["float", "base64"], nonsense: Any
) -> None:
    async with ScriptedUpstream([answer(embeddings(nonsense))]) as up:
        gateway = await gateway_with(channels([up]))
        with pytest.raises(InternalServerError) as caught:
            await sdk(gateway).embeddings.create(model="m", input="a", encoding_format=asked)
        assert (caught.value.status_code, caught.value.code) == (502, "upstream_error")


async def test_token_ids_pass_as_they_are(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with ScriptedUpstream([answer(embeddings(VECTOR))]) as up:
        gateway = await gateway_with(channels([up]))
        await sdk(gateway).embeddings.create(model="m", input=[[1, 2], [3]])
        assert up.received[0].json["input"] == [[1, 2], [3]]
