"""A route at every endpoint that makes or reads something: the second step gets the request, and its price counts."""

import base64
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.domain.request_log import parse_attempts
from tests.support.fault_scene import UNHURRIED
from tests.support.gateway import channel
from tests.support.image_providers import draw
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

BUSY = answer({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 429)
PNG = draw()
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
TEXT = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "usage": USAGE,
        "choices": [{"index": 0, "text": "hello", "finish_reason": "stop", "logprobs": None}]}  # fmt: skip
VECTORS = {"object": "list", "model": "m", "usage": {"prompt_tokens": 5, "total_tokens": 5},
           "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]}  # fmt: skip
VERDICT = {"id": "modr-1", "model": "m", "results": [{"flagged": False, "categories": {}, "category_scores": {}}]}
RANKING = {"id": "r", "model": "m", "results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 5}}
IMAGE_ANSWER = {"created": 1, "data": [{"b64_json": base64.b64encode(PNG).decode()}]}
SPEECH = b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nContent-Length: 4\r\n\r\nID3\x04"
SPOKEN = {"text": "hello", "usage": {"type": "duration", "seconds": 2}}
MESSAGES = [{"role": "user", "content": "hi"}]


def form(**fields: Any) -> aiohttp.FormData:
    made = aiohttp.FormData(default_to_multipart=True)
    for name, value in {"model": "fast", **fields}.items():
        if isinstance(value, bytes):
            made.add_field(name, value, filename="a.png" if name == "image" else "a.mp3")
        else:
            made.add_field(name, value)
    return made


OPERATIONS: dict[str, tuple[str, dict[str, Any], bytes, int]] = {
    "chat": ("/v1/chat/completions", {"json": {"messages": MESSAGES, "max_tokens": 8}}, answer(COMPLETION), 12_000),
    "messages": ("/v1/messages", {"json": {"messages": MESSAGES, "max_tokens": 8}}, answer(COMPLETION), 12_000),
    "responses": ("/v1/responses", {"json": {"input": "hi", "max_output_tokens": 16}}, answer({
        "output": [], "object": "response", "id": "resp_1", "status": "completed",
        "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}}), 12_000),
    "completions": ("/v1/completions", {"json": {"prompt": "hi", "max_tokens": 8}}, answer(TEXT), 12_000),
    "embeddings": ("/v1/embeddings", {"json": {"input": "hi"}}, answer(VECTORS), 5_000),
    "moderations": ("/v1/moderations", {"json": {"input": "hi"}}, answer(VERDICT), 1_000),
    "rerank": ("/v1/rerank", {"json": {"query": "q", "documents": ["d"]}}, answer(RANKING), 5_000),
    "images": ("/v1/images/generations", {"json": {"prompt": "a cat"}}, answer(IMAGE_ANSWER), 1_000_000),
    "image_edits": ("/v1/images/edits", {"data": {"prompt": "a cat", "image": PNG}}, answer(IMAGE_ANSWER), 1_000_000),
    "speech": ("/v1/audio/speech", {"json": {"input": "hi", "voice": "alloy"}}, SPEECH, 2_000),
    "transcriptions": ("/v1/audio/transcriptions", {"data": {"file": b"ID3\x04" * 500}}, answer(SPOKEN), 200_000),
}  # fmt: skip


def price(model: str, operation: str, times: int) -> dict[str, Any]:
    if operation.startswith("image"):
        return {"model": model, "usd_per_image": times / 1_000}
    if operation == "speech":
        return {"model": model, "usd_per_million_characters": times}
    if operation == "transcriptions":
        return {"model": model, "usd_per_second": times / 10_000}
    return {"model": model, "input_usd_per_million": times, "output_usd_per_million": times}


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_the_second_step_answers_at_its_price(standing_with: StartGateway, operation: str) -> None:
    path, sent, good, cost = OPERATIONS[operation]
    async with ScriptedUpstream([BUSY]) as dear, ScriptedUpstream([good]) as cheap:
        gateway = await standing_with(
            {
                "channel": [
                    channel(dear.base_url, "of-dear", models=["dear"], **UNHURRIED),
                    channel(cheap.base_url, "of-cheap", models=["cheap"], **UNHURRIED),
                ],
                "price": [price("dear", operation, 100), price("cheap", operation, 1)],
                "route": [{"name": "fast", "step": [{"models": ["dear"]}, {"models": ["cheap"]}]}],
            }
        )
        body = {"json": {"model": "fast", **sent["json"]}} if "json" in sent else {"data": form(**sent["data"])}
        async with gateway.client.post(gateway.url + path, **body) as response:
            assert response.status == 200, await response.text()
            assert (response.headers["x-gateway-route"], response.headers["x-gateway-step"]) == ("fast", "2")
            await response.read()
        (row,) = await gateway.rows(1)
        assert (row.model, row.route, row.served_model, row.cost_nanos) == ("fast", "fast", "cheap", cost)
        assert [(tried.step, tried.model, tried.cause) for tried in parse_attempts(row.tried)] == [
            (1, "dear", "rate_limited"),
            (2, "cheap", ""),
        ]
        for up, model in ((dear, b"dear"), (cheap, b"cheap")):
            (received,) = up.received
            assert model in received.body
            assert b"fast" not in received.body


async def test_a_batch_line_pays_its_share_of_the_step_that_answered(standing_with: StartGateway) -> None:
    """Its reservation has the multiplier of batches, too: what is left covers half of one answer's most."""
    async with ScriptedUpstream([BUSY]) as dear, ScriptedUpstream([answer(COMPLETION)]) as cheap:
        gateway = await standing_with(
            {
                "channel": [
                    channel(dear.base_url, "of-dear", models=["dear"], **UNHURRIED),
                    channel(cheap.base_url, "of-cheap", models=["cheap"], **UNHURRIED),
                ],
                "price": [price("dear", "chat", 100), price("cheap", "chat", 1)],
                "route": [{"name": "fast", "step": [{"models": ["dear"]}, {"models": ["cheap"]}]}],
                "batches": {"price_multiplier": 0.5},
            }
        )
        path = "/v1/chat/completions"
        line = {"custom_id": "a", "method": "POST", "url": path,
                "body": {"model": "fast", "messages": MESSAGES, "max_tokens": 8}}  # fmt: skip
        data = aiohttp.FormData({"purpose": "batch"})
        data.add_field("file", orjson.dumps(line), filename="lines.jsonl")
        async with gateway.client.post(f"{gateway.url}/v1/files", data=data) as response:
            file = (await response.json())["id"]
        fields = {"input_file_id": file, "endpoint": path, "completion_window": "24h"}
        async with gateway.client.post(f"{gateway.url}/v1/batches", json=fields) as response:
            assert response.status == 200, await response.text()
        (row,) = await gateway.rows(1)
        assert (row.route, row.served_model, row.cost_nanos, row.overrun_nanos) == ("fast", "cheap", 6_000, 0)
        assert [(tried.step, tried.cause) for tried in parse_attempts(row.tried)] == [(1, "rate_limited"), (2, "")]
