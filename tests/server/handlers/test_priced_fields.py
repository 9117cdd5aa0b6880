"""What changes what is bought, over the wire: refused before any provider is asked, or charged as what it was."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
    event,
)
from tests.support.started_gateways import StartGateway

CHEAP, EXPENSIVE = "vendor/cheap", "vendor/dear"
PRICES = [
    {"model": CHEAP, "input_usd_per_million": 1, "output_usd_per_million": 2},
    {"model": EXPENSIVE, "input_usd_per_million": 10, "output_usd_per_million": 20},
]
COST = {CHEAP: 5 * 1_000 + 7 * 2_000, EXPENSIVE: 5 * 10_000 + 7 * 20_000}
CHAT: dict[str, Any] = {"model": CHEAP, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
ASKED: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": CHAT,
    "/v1/completions": {"model": CHEAP, "prompt": "hi", "max_tokens": 20},
    "/v1/responses": {"model": CHEAP, "input": "hi", "max_output_tokens": 20},
}
USAGE = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}


def router(up: ScriptedUpstream, *fields: str, **more: Any) -> dict[str, Any]:
    made = channel(up.base_url, provider="openrouter", models=[CHEAP, EXPENSIVE], allow_fields=list(fields), **more)
    return {"channel": [made], "price": PRICES}


def say(path: str, model: str, *, stream: bool) -> list[Step]:
    """An answer in the language of ``path`` by ``model``."""
    if path == "/v1/messages":
        begun: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [],
                 "stop_reason": None, "stop_sequence": None,
                 "usage": {"input_tokens": 5, "output_tokens": 1}}  # fmt: skip
        block = {"type": "text", "text": "hello"}
        if not stream:
            usage = {"input_tokens": 5, "output_tokens": 7}
            return [answer(begun | {"content": [block], "stop_reason": "end_turn", "usage": usage})]
        events: list[tuple[str, Any]] = [
            ("message_start", {"message": begun}),
            ("content_block_start", {"index": 0, "content_block": block | {"text": ""}}),
            ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "hello"}}),
            ("content_block_stop", {"index": 0}),
            ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}}),
            ("message_stop", {}),
        ]
        return play(*(name(kind, body) for kind, body in events))
    if path == "/v1/responses":
        response = {"id": "resp_1", "object": "response", "model": model, "status": "completed", "output": []}
        if not stream:
            return [answer(response | {"usage": USAGE})]
        return play(
            name("response.created", {"response": response | {"status": "in_progress"}}),
            name("response.output_text.delta", {"delta": "hello"}),
            name("response.completed", {"response": response | {"usage": USAGE}}),
        )
    kind = "message" if path == "/v1/chat/completions" else "text"
    whole = COMPLETION | {"model": model}
    if kind == "text":
        whole = whole | {"choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}]}
    if not stream:
        return [answer(whole)]
    (choice,) = whole["choices"]
    body = {"delta": {"content": "hello"}} if kind == "message" else {"text": "hello"}
    head = {"id": "x", "model": model}
    frame = head | {"choices": [{"index": 0, "finish_reason": choice["finish_reason"], **body}]}
    return play(
        b": OPENROUTER PROCESSING\n\n", event(frame), event(head | {"choices": [], "usage": whole["usage"]}), DONE
    )


def name(kind: str, body: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **body}) + b"\n\n"


def play(*events: bytes) -> list[Step]:
    return [SSE_HEAD, *map(chunk, events), LAST_CHUNK]


async def post(gateway: RunningGateway, path: str, **more: Any) -> tuple[int, bytes]:
    async with gateway.post({**ASKED[path], **more}, path=path) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", list(ASKED))
async def test_the_charge_follows_the_model_that_answered_if_that_is_dearer(
    standing_with: StartGateway, path: str, *, stream: bool
) -> None:
    scripts = [say(path, model, stream=stream) for model in (EXPENSIVE, CHEAP, f"{CHEAP}-2025-08-07", "vendor/unknown")]
    async with ScriptedUpstream(*scripts) as up:
        gateway = await standing_with(router(up, "models"))
        for _ in scripts:
            status, _ = await post(gateway, path, stream=stream, models=[EXPENSIVE])
            assert status == 200
        rows = await gateway.rows(4)
        assert sorted(row.cost_nanos for row in rows) == [COST[CHEAP]] * 3 + [COST[EXPENSIVE]]
        assert all(row.reserved_nanos >= COST[EXPENSIVE] for row in rows)
        await gateway.check_books()
    assert up.received[0].json["models"] == [EXPENSIVE]


REFUSED = [
    ({"models": [EXPENSIVE]}, "models"),
    ({"route": "fallback"}, "route"),
    ({"preset": "dear"}, "preset"),
    ({"provider": {"only": ["dear"]}}, "provider"),
    ({"plugins": [{"id": "web"}]}, "plugins"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"tools": [{"type": "openrouter:web_search"}], "tool_choice": "required"}, "tools.openrouter:web_search"),
    ({"model": f"{CHEAP}:online"}, "model"),
]


@pytest.mark.parametrize(("more", "param"), REFUSED, ids=[param for _, param in REFUSED])
async def test_it_is_refused_before_any_provider_is_asked(
    standing_with: StartGateway, more: dict[str, Any], param: str
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = router(up)
        config["channel"][0]["models"] = ["vendor/*"]
        gateway = await standing_with(config)
        status, body = await post(gateway, "/v1/chat/completions", **more)
        error = orjson.loads(body)["error"]
        assert (status, error["code"], error["param"]) == (400, "invalid_request", param)
        assert "changes what is billed" in error["message"]
        assert not up.received
        (row,) = await gateway.rows(1)
        assert (row.cost_nanos, row.reserved_nanos) == (0, 0)


async def test_what_client_libraries_send_unasked_passes(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(router(up))
        tools = [{"type": "function", "function": {"name": "f"}}]
        idle: list[dict[str, Any]] = [{"service_tier": tier} for tier in ("auto", "default", None)]
        for more in (*idle, {"web_search_options": None}, {"models": None}, {"plugins": []}, {"tools": tools}):
            status, _ = await post(gateway, "/v1/chat/completions", **more)
            assert status == 200
            assert more.items() <= up.received[-1].json.items()
        await gateway.rows(7)


async def test_a_key_cannot_name_a_model_that_it_may_not_use(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        key = {"name": "test", "account": "acme", "secret": KEY, "models": [CHEAP]}
        gateway = await standing_with({**router(up, "*"), "account": [{"name": "acme"}], "key": [key]})
        status, body = await post(gateway, "/v1/chat/completions", models=[EXPENSIVE])
        error = orjson.loads(body)["error"]
        assert (status, error["code"], error["param"]) == (403, "model_not_allowed", "models[0]")
        assert not up.received
        await gateway.rows(1)


async def test_a_caller_with_a_limit_cannot_reach_beyond_it_by_naming_a_dearer_model(
    standing_with: StartGateway,
) -> None:
    """What is held is for the most expensive of the models that may answer."""
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        key = {"name": "test", "account": "acme", "secret": KEY, "quota_usd": 0.0003}
        gateway = await standing_with({**router(up, "models"), "account": [{"name": "acme"}], "key": [key]})
        status, _ = await post(gateway, "/v1/chat/completions")
        assert status == 200
        status, body = await post(gateway, "/v1/chat/completions", models=[EXPENSIVE])
        assert (status, orjson.loads(body)["error"]["code"]) == (403, "insufficient_quota")
        assert len(up.received) == 1
        await gateway.rows(2)
