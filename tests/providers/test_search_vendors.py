"""Cohere, Voyage and Jina through a gateway: requests as they document them, and their answers, errors and lists."""

from collections.abc import Mapping
from typing import Any

import attrs
import orjson
import pytest

from gateway.domain.channel import Channel
from gateway.routing.model_listing import fetch_models
from gateway.upstream.client import PooledHttpClient
from tests.support.fault_scene import PRICE
from tests.support.gateway import channel
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway


@attrs.frozen
class Case:
    """One request: what the client sends, the provider gets, answers, and the client gets back."""

    provider: str
    path: str
    asked: Mapping[str, Any]
    sent_to: str
    sent: Mapping[str, Any]
    answered: Mapping[str, Any]
    heard: Mapping[str, Any]
    tokens: int | None


VECTOR = {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}
IN_BASE64 = {**VECTOR, "embedding": "AAAAPwAAgL8="}
EMBED = {"model": "m", "input": ["a"]}
RERANK = {"model": "m", "query": "q", "documents": ["a", "b"]}
RANKED = [{"index": 1, "relevance_score": 0.9}]
EMBEDDED = {"object": "list", "data": [VECTOR], "model": "m", "usage": {"prompt_tokens": 3, "total_tokens": 3}}
COHERE_RANKED = {"id": "x", "results": RANKED, "meta": {"billed_units": {"search_units": 1}}}
CASES = (
    Case(
        "cohere",
        "/v1/embeddings",
        {**EMBED, "user": "u", "encoding_format": "float"},
        "/compatibility/v1/embeddings",
        {**EMBED, "encoding_format": "float"},
        EMBEDDED,
        EMBEDDED,
        3,
    ),
    Case("cohere", "/v1/rerank", {**RERANK, "top_n": 1}, "/v2/rerank", {**RERANK, "top_n": 1}, COHERE_RANKED,
         COHERE_RANKED, None),
    Case(
        "voyage",
        "/v1/embeddings",
        {**EMBED, "dimensions": 256, "encoding_format": "base64", "user": "u", "input_type": "query"},
        "/v1/embeddings",
        {**EMBED, "output_dimension": 256, "input_type": "query"},
        {**EMBEDDED, "usage": {"total_tokens": 3}},
        {**EMBEDDED, "data": [IN_BASE64], "usage": {"total_tokens": 3}},
        3,
    ),
    Case(
        "voyage",
        "/v1/rerank",
        {**RERANK, "top_n": 1},
        "/v1/rerank",
        {**RERANK, "top_k": 1},
        {"object": "list", "data": RANKED, "model": "m", "usage": {"total_tokens": 8}},
        {"results": RANKED, "model": "m", "usage": {"total_tokens": 8}},
        8,
    ),
    Case(
        "jina",
        "/v1/embeddings",
        {**EMBED, "dimensions": 64, "encoding_format": "base64", "user": "u", "task": "retrieval.query"},
        "/v1/embeddings",
        {**EMBED, "dimensions": 64, "task": "retrieval.query"},
        EMBEDDED,
        {**EMBEDDED, "data": [IN_BASE64]},
        3,
    ),
    Case(
        "jina",
        "/v1/rerank",
        {**RERANK, "top_n": 1},
        "/v1/rerank",
        {**RERANK, "top_n": 1},
        {"results": RANKED, "usage": {"total_tokens": 8}},
        {"results": RANKED, "usage": {"total_tokens": 8}},
        8,
    ),
)  # fmt: skip


def find_base(up: ScriptedUpstream, provider: str) -> str:
    return up.base_url.removesuffix("/v1") if provider == "cohere" else up.base_url


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.provider}{case.path}")
async def test_a_request_is_sent_and_its_answer_read_as_documented(standing_with: StartGateway, case: Case) -> None:
    async with ScriptedUpstream([answer(dict(case.answered))]) as up:
        one = channel(find_base(up, case.provider), provider=case.provider)
        gateway = await standing_with({"channel": [one], "price": [PRICE]})
        async with gateway.post(dict(case.asked), path=case.path) as found:
            assert (found.status, orjson.loads(await found.read())) == (200, case.heard)
        (sent,) = up.received
        assert (sent.path, sent.json, sent.headers["authorization"]) == (case.sent_to, case.sent, "Bearer provider-key")
        (row,) = await gateway.rows(1)
        reported = case.tokens is not None or case.provider == "cohere"  # which reports searches
        assert row.usage_source == ("upstream" if reported else "estimate")
        assert case.tokens in (None, row.prompt_tokens)


@pytest.mark.parametrize("provider", ["cohere", "voyage", "jina"])
@pytest.mark.parametrize("field", ["message", "detail"])
async def test_a_vendors_error_is_the_clients(standing_with: StartGateway, provider: str, field: str) -> None:
    async with ScriptedUpstream([answer({field: "too many documents"}, status=400)]) as up:
        gateway = await standing_with({"channel": [channel(find_base(up, provider), provider=provider)]})
        async with gateway.post(RERANK, path="/v1/rerank") as found:
            assert found.status == 400
            assert "too many documents" in orjson.loads(await found.read())["error"]["message"]


async def test_a_voyage_answer_without_results_is_the_providers_fault(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({"object": "list", "usage": {"total_tokens": 8}})]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url, provider="voyage")]})
        async with gateway.post(RERANK, path="/v1/rerank") as found:
            assert found.status == 502


LISTED: dict[str, Any] = {
    "cohere": {"models": [{"name": "rerank-v4.0-pro", "endpoints": ["rerank"]}], "next_page_token": ""},
    "jina": {"data": [{"id": "jina-ai/rerank-v4.0-pro", "pricing": {"prompt": "0.00000005"}}]},
}


@pytest.mark.parametrize("provider", LISTED)
async def test_a_model_list_is_read_as_documented(provider: str) -> None:
    client = PooledHttpClient()
    async with ScriptedUpstream([answer(LISTED[provider])]) as up:
        one = Channel("up", provider, find_base(up, provider), ("provider-key",), sync=True)
        found = await fetch_models(client, one, now_s=1)
    await client.close()
    assert [model.id for model in found] == ["rerank-v4.0-pro"]
    assert up.received[0].headers["authorization"] == "Bearer provider-key"
