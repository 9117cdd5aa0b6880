"""What a request costs, and what its row says of that: from a provider's bytes to the row and its lines."""

from decimal import Decimal
from typing import Any

import attrs
import orjson
import pytest

from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

Json = dict[str, Any]
HELLO: Json = {"messages": [{"role": "user", "content": "hi"}]}
BUDGET: Json = {"name": "test", "account": "acme", "secret": KEY, "quota_usd": 5, "quota_period": "lifetime"}
RANKED: Json = {"results": [{"index": 0, "relevance_score": 0.5}], "meta": {"billed_units": {"search_units": 3}}}
RERANK: Json = {"query": "q", "documents": ["a", "b"]}
MODERATED: Json = {"id": "m", "model": "omni-moderation-latest", "results": [{"flagged": False}]}


def chat(model: str, **usage: Any) -> Json:
    counts = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}
    choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "model": model, "choices": [choice], "usage": counts | usage}


def stream(whole: Json) -> bytes:
    """The same answer as a stream."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    shared = whole | {"object": "chat.completion.chunk"}
    chunks = [shared | {"choices": [choice], "usage": None}, shared | {"choices": []}]
    events = b"".join(b"data: %b\n\n" % orjson.dumps(one) for one in chunks)
    return answer(events + b"data: [DONE]\n\n", content_type="text/event-stream")


@attrs.frozen
class Case:
    """A request, the provider's answer, and what its row says.

    Attributes:
        served: the provider's model that was charged, if it is not the one that was asked for.
        units: what the row says beside tokens.
        limited: the key has a spending limit, which needs a price before the call.
    """

    model: str
    provider: str
    answer: Json
    cost_nanos: int
    path: str = "/v1/chat/completions"
    body: Json = HELLO
    price: tuple[Json, ...] = ()
    names: Json = attrs.field(factory=dict)
    served: str = ""
    units: tuple[str, ...] = ()
    limited: bool = True


MAPPED = {"models": ["gpt-5-mini"], "model_map": {"gpt-5-mini": "gpt-5"}}
CLAUDE = "anthropic/claude-sonnet-4.5"
REPORTED = chat(CLAUDE, cost=0.0042)
OWN_PRICE = {"model": "openrouter/auto", "input_usd_per_million": 1, "output_usd_per_million": 2}
OWN_RANKER = {"model": "our-ranker", "usd_per_call": 0.001, "usd_per_search": 0.002}
CASES = {
    "a mapped model costs what its provider's name does": Case(
        "gpt-5-mini", "openai", chat("gpt-5-2025-08-07"), 2_250_000, names=MAPPED, served="gpt-5"
    ),
    "a router names the model that has answered": Case(
        "openrouter/auto", "openrouter", chat("openai/gpt-5"), 2_250_000, limited=False, served="openai/gpt-5"
    ),
    "a provider reports the cost": Case(
        "openrouter/auto", "openrouter", REPORTED, 4_200_000, limited=False, served=CLAUDE, units=("cost",)
    ),
    "a price of one's own goes first": Case(
        "openrouter/auto", "openrouter", chat("openrouter/auto", cost=0.0042), 1_200_000, price=(OWN_PRICE,)
    ),
    "xAI counts ticks of a dollar": Case(
        "grok-4", "xai", chat("grok-4", cost_in_usd_ticks=37_756_001), 3_775_601, units=("cost",)
    ),
    "a rerank is billed by searches": Case(
        "rerank-v3.5", "cohere", RANKED, 6_000_000, "/v1/rerank", RERANK, units=("searches",)
    ),
    "a rerank by calls and searches": Case(
        "our-ranker", "custom", RANKED, 7_000_000, "/v1/rerank", RERANK, (OWN_RANKER,), units=("searches",)
    ),
    "moderation is free at OpenAI": Case(
        "omni-moderation-latest", "openai", MODERATED, 0, "/v1/moderations", {"input": "hi"}
    ),
}
STREAMED = [name for name, case in CASES.items() if case.path == "/v1/chat/completions"]


async def admin(gateway: RunningGateway, method: str, path: str, body: Json | None = None) -> Json:
    headers = {"Authorization": f"Bearer {gateway.admin_token}"}
    async with gateway.client.request(method, f"{gateway.url}/admin/v1{path}", json=body, headers=headers) as response:
        reported: Json = await response.json()
        assert response.ok, reported
        return reported


@pytest.mark.parametrize(
    ("name", "streamed"), [*((name, False) for name in CASES), *((name, True) for name in STREAMED)]
)
async def test_a_row_says_what_was_charged(name: str, streamed: bool, gateway_with: StartGateway) -> None:
    case = CASES[name]
    async with ScriptedUpstream([stream(case.answer) if streamed else answer(case.answer)]) as up:
        names = case.names or {"models": [case.model]}
        served = channel(up.base_url, "up", provider=case.provider, **names)
        key = BUDGET if case.limited else {"name": "test", "account": "acme", "secret": KEY}
        gateway = await gateway_with({"channel": [served], "price": list(case.price), "key": [key]})
        async with gateway.post({"model": case.model, **case.body, "stream": streamed}, case.path) as response:
            assert response.status == 200, await response.text()
            await response.read()
            cost = response.headers.get("x-gateway-cost-usd")
            assert cost is None if streamed else Decimal(cost or "") * 10**9 == case.cost_nanos
        (row,) = await gateway.rows(1)
        assert (row.cost_nanos, row.served_model, row.unpriced) == (case.cost_nanos, case.served, False)
        assert all(unit in row.units for unit in case.units), row.units
        lines = (await admin(gateway, "GET", f"/requests/{row.id}"))["lines"]
        assert sum(line["cost_nanos"] for line in lines) == case.cost_nanos, lines
        assert not any(line["estimated"] for line in lines)


async def test_a_price_that_is_missing_can_be_set(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(RANKED)]) as up:
        served = channel(up.base_url, "up", models=["our-ranker"])
        gateway = await gateway_with({"channel": [served], "key": [BUDGET]})
        asked = {"model": "our-ranker", **RERANK}
        async with gateway.post(asked, "/v1/rerank") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (403, "model_not_priced")
        await admin(gateway, "PUT", "/prices/our-ranker", {"usd_per_search": 0.0025})
        async with gateway.post(asked, "/v1/rerank") as response:
            assert response.status == 200
        assert [row.cost_nanos for row in await gateway.rows(2)] == [0, 7_500_000]
