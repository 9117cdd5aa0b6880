"""The providers of these tests do refuse what the real ones refuse: else all the others would show little."""

import copy
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.support.anthropic_provider import AnthropicProvider, sign
from tests.support.gemini_provider import SIGNATURE, GeminiProvider
from tests.support.openai_provider import OpenAIProvider
from tests.support.providers import KEY, Provider

Spoil = Callable[[dict[str, Any]], Any]

HEADERS: dict[type[Provider], dict[str, str]] = {
    OpenAIProvider: {"Authorization": f"Bearer {KEY}"},
    AnthropicProvider: {"x-api-key": KEY, "anthropic-version": "2023-06-01"},
    GeminiProvider: {"x-goog-api-key": KEY},
}
PATHS: dict[type[Provider], str] = {
    OpenAIProvider: "/chat/completions",
    AnthropicProvider: "/messages",
    GeminiProvider: f"/models/{GeminiProvider.model}:generateContent",
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
GOOD: dict[type[Provider], dict[str, Any]] = {
    OpenAIProvider: {
        "model": "gpt-4.1-mini",
        "messages": [
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "4"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
    },
    AnthropicProvider: {
        "model": "claude-haiku-4-5",
        "max_tokens": 2048,
        "messages": [
            {"role": "user", "content": "Go"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": sign("hm")},
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "4"},
                    {"type": "text", "text": "Hurry"},
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    GeminiProvider: {
        "contents": [
            {"role": "user", "parts": [{"text": "Go"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}, "thoughtSignature": SIGNATURE}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "4"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "f"}]}],
        "generationConfig": {"thinkingConfig": {"thinkingLevel": "LOW"}},
    },
}
SPOILED: list[tuple[type[Provider], Spoil]] = [
    (OpenAIProvider, lambda body: body.update(top_k=1)),
    (OpenAIProvider, lambda body: body.update(stream_options={"include_usage": True})),
    (OpenAIProvider, lambda body: body.pop("tools")),
    (OpenAIProvider, lambda body: body["messages"].pop()),
    (OpenAIProvider, lambda body: body["messages"].pop(1)),
    (OpenAIProvider, lambda body: body["messages"][2].update(tool_call_id="call_2")),
    (OpenAIProvider, lambda body: body["messages"][1].update(reasoning_content="hm")),
    (OpenAIProvider, lambda body: body["messages"][1]["tool_calls"][0].update(index=0)),
    (AnthropicProvider, lambda body: body.pop("max_tokens")),
    (AnthropicProvider, lambda body: body.update(seed=1)),
    (AnthropicProvider, lambda body: body.update(temperature=0.5)),
    (AnthropicProvider, lambda body: body["messages"].pop()),
    (AnthropicProvider, lambda body: body["messages"].pop(1)),
    (AnthropicProvider, lambda body: body["messages"].pop(0)),
    (AnthropicProvider, lambda body: body["messages"][2]["content"].reverse()),
    (AnthropicProvider, lambda body: body["messages"][2]["content"][1].update(text=" ")),
    (AnthropicProvider, lambda body: body["messages"][1]["content"][0].update(signature="")),
    (AnthropicProvider, lambda body: body["messages"][1]["content"].pop(0)),
    (AnthropicProvider, lambda body: body["messages"][1]["content"][1].update(id="functions.f:0")),
    (AnthropicProvider, lambda body: body["thinking"].update(budget_tokens=2048)),
    (AnthropicProvider, lambda body: body.update(tool_choice={"type": "any"})),
    (GeminiProvider, lambda body: body.update(messages=[])),
    (GeminiProvider, lambda body: body["contents"][0].update(role="assistant")),
    (GeminiProvider, lambda body: body["contents"].pop()),
    (GeminiProvider, lambda body: body["contents"].pop(1)),
    (GeminiProvider, lambda body: body["contents"][1]["parts"][0].pop("thoughtSignature")),
    (GeminiProvider, lambda body: body["contents"][1]["parts"][0].update(text="and")),
    (GeminiProvider, lambda body: body["contents"][2]["parts"][0]["functionResponse"].update(name="g")),
    (GeminiProvider, lambda body: body["tools"][0]["functionDeclarations"][0].update(strict=True)),
    (GeminiProvider, lambda body: body["generationConfig"]["thinkingConfig"].update(thinkingBudget=1)),
]


async def post(kind: type[Provider], body: Any, headers: dict[str, str]) -> tuple[int, Any]:
    async with (
        kind() as up,
        aiohttp.ClientSession() as session,
        session.post(up.base_url + PATHS[kind], json=body, headers=headers) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize("kind", list(GOOD), ids=lambda kind: kind.slug)
async def test_what_is_right_is_answered_and_a_wrong_key_is_not(kind: type[Provider]) -> None:
    assert (await post(kind, GOOD[kind], HEADERS[kind]))[0] == 200
    status, body = await post(kind, GOOD[kind], {})
    assert status in {401, 403}
    assert body["error"]["message"]


@pytest.mark.parametrize(("kind", "spoil"), SPOILED)
async def test_what_is_wrong_is_refused_in_the_vendors_shape(kind: type[Provider], spoil: Spoil) -> None:
    body = copy.deepcopy(GOOD[kind])
    spoil(body)
    status, answer = await post(kind, body, HEADERS[kind])
    assert status == 400
    error = answer["error"]
    assert error.get("status", error.get("type")) in {"INVALID_ARGUMENT", "invalid_request_error"}
